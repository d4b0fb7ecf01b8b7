"""How a dependency stands. Section 4, "Dependencies"."""

from __future__ import annotations

from collections.abc import Iterable

from workloads.contract import WorkloadState
from workloads.lifecycle.snapshot import Standing
from workloads.lifecycle.states import FINAL

_WORST_FIRST = (Standing.UNMEETABLE, Standing.MISSING, Standing.WAITING, Standing.MET)

REQUIRABLE = frozenset({WorkloadState.SUCCEEDED, WorkloadState.CANCELLED, WorkloadState.DEAD_LETTER})


def standing_of(state: str | None, required: str, *, pruned: bool = False) -> Standing:
    """Return how a dependency stands whose workload is in `state` (None: there is no such workload).

    Parked work is waited for, since an operator may re-arm it; what was pruned stays in the state that it ended in.
    """
    if state is None:
        return Standing.MISSING
    if state == required:
        return Standing.MET
    return Standing.UNMEETABLE if pruned or state in FINAL else Standing.WAITING


def worst(standings: Iterable[str]) -> Standing:
    """Return how several dependencies stand together: met only when all are."""
    present = set(standings)
    return next((standing for standing in _WORST_FIRST if standing in present), Standing.MET)


def changes_a_standing(before: str, after: str) -> bool:
    """Tell whether a workload that goes from `before` to `after` may change how its dependents stand."""
    return before != after and (before in REQUIRABLE or after in REQUIRABLE)
