"""Admission: what makes two requests the same, how admitted work begins, and what closes a cycle. Section 4."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields

from workloads.contract import AdmissionRequest, Dependency, RetryPolicy, Timeouts, WorkloadState
from workloads.errors import IDEMPOTENCY_KEY_REUSED, WORKLOAD_INVALID, WorkloadError
from workloads.lifecycle.canonical import iso
from workloads.lifecycle.decision import Decision, Draft, NewEvent
from workloads.lifecycle.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What a repeated admission must equal, in the order in which differences are named."""

    definition_id: str
    definition_revision: str
    environment: str
    input: str
    capability_snapshot: frozenset[str]
    connection_scopes: frozenset[str]
    priority: int
    retry_policy: RetryPolicy
    timeouts: Timeouts
    dependencies: frozenset[tuple[str, str]]
    not_before: dt.datetime | None


def terms_of(request: AdmissionRequest, *, input_hash: str) -> Terms:
    """Return the terms of a request whose arguments have been checked and normalised."""
    return Terms(
        definition_id=request.definition_id,
        definition_revision=request.definition_revision,
        environment=request.environment,
        input=input_hash,
        capability_snapshot=frozenset(request.capability_snapshot),
        connection_scopes=frozenset(request.connection_scopes),
        priority=request.priority,
        retry_policy=request.retry_policy,
        timeouts=request.timeouts,
        dependencies=frozenset((d.workload_id, str(d.required_state)) for d in request.dependencies),
        not_before=request.not_before,
    )


def check_replay(stored: Terms, asked: Terms) -> None:
    """Let a repeated admission through only if it asks for the same thing.

    Any difference: IDEMPOTENCY_KEY_REUSED, with all differing fields in the order of `Terms`.
    """
    differing = [f.name for f in fields(Terms) if getattr(stored, f.name) != getattr(asked, f.name)]
    if differing:
        raise WorkloadError(
            IDEMPOTENCY_KEY_REUSED, "The idempotency key was used for other work.", {"fields": differing}
        )


def admit(created: Snapshot, *, requested_by: str, not_before: dt.datetime | None) -> Decision:
    """Begin the history of a workload that has just been inserted in state CREATED: events 1 and 2, READY."""
    now = created.created_at
    evidence = {} if not_before is None else {"not_before": iso(not_before)}
    first = NewEvent(
        sequence=1, from_state="", to_state=str(WorkloadState.CREATED), at=now, actor=requested_by, evidence=evidence
    )
    draft = Draft(created.but(event_count=1), now)
    draft.events.append(first)
    draft.set(next_attempt_at=not_before or now)
    draft.move(WorkloadState.READY, actor=requested_by, **evidence)
    return draft.decide()


def find_cycle(
    workload_id: str,
    dependencies: Collection[Dependency],
    dependencies_of: Callable[[Collection[str]], Mapping[str, Collection[str]]],
) -> list[str] | None:
    """Look whether `workload_id`, admitted with `dependencies`, would depend on itself.

    `dependencies_of` answers, for a set of ids, what those that exist depend on; ids that do not exist, and those that
    it need not look behind, it leaves out. Returns the ids along the cycle, each once and `workload_id` first, or None.
    """
    came_from: dict[str, str] = {d.workload_id: workload_id for d in dependencies}
    frontier = set(came_from)
    while frontier:
        if workload_id in frontier:
            path = [workload_id]
            step = came_from[workload_id]
            while step != workload_id:
                path.append(step)
                step = came_from[step]
            return [workload_id, *reversed(path[1:])]
        found = dependencies_of(frontier)
        frontier = set()
        for source, targets in found.items():
            for target in targets:
                if target not in came_from:
                    came_from[target] = source
                    frontier.add(target)
    return None


def cyclic(cycle: list[str]) -> WorkloadError:
    """Return the refusal of a dependency that closes a cycle."""
    return WorkloadError(
        WORKLOAD_INVALID,
        "dependencies: they would close a cycle",
        {"field": "dependencies", "cycle": cycle},
    )
