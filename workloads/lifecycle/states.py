"""The transition table, as data. Section 3 of the contract."""

from __future__ import annotations

from typing import Final

from workloads.contract import AttemptStatus, WorkloadState
from workloads.errors import WORKLOAD_TRANSITION_DENIED, WorkloadError

S = WorkloadState

_HELD_EXITS: Final = frozenset({S.READY, S.DEAD_LETTER, S.FAILED, S.RECOVERING, S.TIMED_OUT, S.CANCELLATION_REQUESTED})

TRANSITIONS: Final[dict[WorkloadState, frozenset[WorkloadState]]] = {
    S.CREATED: frozenset({S.READY, S.CANCELLED}),
    S.READY: frozenset({S.CLAIMED, S.TIMED_OUT, S.DEAD_LETTER, S.CANCELLED}),
    S.CLAIMED: _HELD_EXITS | {S.RUNNING},
    S.RUNNING: _HELD_EXITS | {S.CHECKPOINTED, S.SUCCEEDED},
    S.CHECKPOINTED: _HELD_EXITS | {S.CHECKPOINTED, S.SUCCEEDED},
    S.CANCELLATION_REQUESTED: frozenset({S.CANCELLED, S.RECOVERING}),
    S.RECOVERING: frozenset({S.READY, S.DEAD_LETTER, S.CANCELLED}),
    S.FAILED: frozenset({S.READY, S.DEAD_LETTER, S.CANCELLED}),
    S.TIMED_OUT: frozenset({S.READY, S.DEAD_LETTER, S.CANCELLED}),
    S.DEAD_LETTER: frozenset({S.READY, S.CANCELLED}),
    S.SUCCEEDED: frozenset(),
    S.CANCELLED: frozenset(),
}

RELEASE_ONLY: Final = frozenset(
    (source, target) for source in (S.CLAIMED, S.RUNNING, S.CHECKPOINTED) for target in (S.READY, S.DEAD_LETTER)
)
"""Pairs that a worker's release alone may take."""

FINAL: Final = frozenset({S.SUCCEEDED, S.CANCELLED})
PARKED: Final = frozenset({S.DEAD_LETTER, S.TIMED_OUT, S.FAILED})
RESTING: Final = FINAL | PARKED
CLAIMED: Final = frozenset({S.CLAIMED, S.RUNNING, S.CHECKPOINTED})
STARTED: Final = frozenset({S.RUNNING, S.CHECKPOINTED})
HELD: Final = CLAIMED | {S.CANCELLATION_REQUESTED}

OPEN_ATTEMPT: Final = frozenset({AttemptStatus.CLAIMED, AttemptStatus.RUNNING})

_MAY_FOLLOW: Final[dict[str, frozenset[WorkloadState]]] = {
    "": frozenset({S.CREATED}),
    **{str(source): targets for source, targets in TRANSITIONS.items()},
}


def is_legal(source: str, target: str) -> bool:
    """Tell whether an event may lead from `source` ("" before the first) to `target`."""
    return target in _MAY_FOLLOW.get(source, ())


def denied(source: WorkloadState, target: WorkloadState) -> WorkloadError:
    """Return the refusal of a pair that is not in the table, or not open to the caller."""
    return WorkloadError(
        WORKLOAD_TRANSITION_DENIED,
        f"A workload in {source} can't go to {target} by this call.",
        {"from": str(source), "to": str(target)},
    )
