"""The frozen values that rules return, and the draft in which a rule puts one together."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workloads.contract import AttemptStatus, Effect, WorkloadState
from workloads.errors import WorkloadError
from workloads.lifecycle.canonical import iso
from workloads.lifecycle.snapshot import CurrentClaim, Snapshot
from workloads.lifecycle.states import RESTING, denied, is_legal


@dataclass(frozen=True, kw_only=True, slots=True)
class NewEvent:
    """An event to be written; its sequence follows from the snapshot before it."""

    sequence: int
    from_state: str
    to_state: str
    at: dt.datetime
    actor: str
    evidence: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptOpened:
    """A new attempt, to be inserted."""

    number: int
    claim: CurrentClaim
    fencing_token: int
    status: AttemptStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptStarted:
    """The open attempt runs."""

    number: int
    started_at: dt.datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptClosed:
    """The open attempt ended. `ended_by` is the voice that ended it; the last five belong to a failure report."""

    number: int
    status: AttemptStatus
    ended_at: dt.datetime
    ended_by: str
    error: str | None = None
    failure_kind: str | None = None
    effect: Effect | None = None
    outcome_state: WorkloadState | None = None
    outcome_decision: str | None = None
    outcome_next_attempt_at: dt.datetime | None = None


AttemptChange = AttemptOpened | AttemptStarted | AttemptClosed


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What becomes true of one workload in one commit.

    `after` is the workload's snapshot after it. With `refusal`, the decision is recorded and the call refused:
    a deadline that passed, a budget found used up.
    """

    before: Snapshot
    after: Snapshot
    now: dt.datetime
    events: tuple[NewEvent, ...] = ()
    attempt: AttemptChange | None = None
    refusal: WorkloadError | None = None


class Draft:
    """A decision in the making: `move` adds an event, `set` changes the snapshot, `decide` closes it."""

    __slots__ = ("_values", "after", "attempt", "before", "events", "now")

    def __init__(self, before: Snapshot, now: dt.datetime) -> None:
        self.before = before
        self.now = now
        self.events: list[NewEvent] = []
        self.attempt: AttemptChange | None = None
        # The draft's own copy, which it changes in place until it is decided: one copy a decision, not one a step.
        self.after = before.but()
        self._values = self.after.__dict__

    def set(self, **changes: Any) -> None:
        """Change fields of the snapshot. A name that is none of its fields: TypeError."""
        if not changes.keys() <= self._values.keys():
            raise TypeError(f"not fields of a snapshot: {sorted(changes.keys() - self._values.keys())}")
        self._values.update(changes)

    def move(self, to: WorkloadState, *, actor: str, **evidence: str) -> None:
        """Add the event that leads to `to`, and keep what goes with a state: `finished_at`, `next_attempt_at`.

        Refused with WORKLOAD_TRANSITION_DENIED where the table has no such pair (section 3).
        """
        after = self.after
        source, sequence, due = after.state, after.event_count + 1, after.next_attempt_at
        if not is_legal(source, to):
            raise denied(source, to)
        if to is WorkloadState.READY and due is not None and due > self.now:
            evidence["next_attempt_at"] = iso(due)
        self.events.append(
            NewEvent(
                sequence=sequence,
                from_state=str(source),
                to_state=str(to),
                at=self.now,
                actor=actor,
                evidence=evidence,
            )
        )
        self._values["state"] = to
        self._values["event_count"] = sequence
        self._values["finished_at"] = self.now if to in RESTING else None

    def close_attempt(self, status: AttemptStatus, *, by: str, **outcome: Any) -> None:
        """End the open attempt and drop the current claim."""
        self.attempt = AttemptClosed(
            number=self.after.attempt_count, status=status, ended_at=self.now, ended_by=by, **outcome
        )
        self._values["claim"] = None

    def decide(self, *, refusal: WorkloadError | None = None) -> Decision:
        """Return the decision: one step of `version`, however many events it has (section 2)."""
        self._values["version"] = self.before.version + 1
        self._values["updated_at"] = self.now
        return Decision(
            before=self.before,
            after=self.after,
            now=self.now,
            events=tuple(self.events),
            attempt=self.attempt,
            refusal=refusal,
        )
