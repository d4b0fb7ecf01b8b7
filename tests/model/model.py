"""The contract once more, written from its text alone: one workload after another, in dictionaries, slow and simple.

Every verb takes `now`, changes the records and answers, or raises `ModelRefusal`. It leaves out what has no history:
bounds, secrets, grants and sizes (tests/lifecycle has those). Where the contract leaves a choice to the authority
(which rows a limited pass takes), the model is told what was chosen and checks that it was a choice.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from tests.model import records
from tests.model.records import (
    CANCELLED,
    DEAD_LETTER,
    HELD,
    IN_WORK,
    PARKED,
    READY,
    RECOVERING,
    REQUESTED,
    SUCCEEDED,
    TIMED_OUT,
    OneOf,
    Record,
    iso,
    ms,
)
from tests.model.site import Cycle, ModelRefusal, denied, given, invalid, timed_out
from tests.model.workers import Workers
from workloads.contract import AdmissionRequest

COMPARED = (
    "definition_id",
    "definition_revision",
    "environment",
    "input_hash",
    "capability_snapshot",
    "connection_scopes",
    "priority",
    "retry_policy",
    "timeouts",
    "dependencies",
    "not_before",
)


class Model(Workers):
    """The verbs of the other sections."""

    # Section 4.

    def admit(self, request: AdmissionRequest, *, now: dt.datetime) -> tuple[Record, bool]:
        if request.retry_policy.max_attempts < 1:
            raise invalid("retry_policy.max_attempts")
        needed: dict[str, str] = {}
        for one in request.dependencies:
            if needed.setdefault(one.workload_id, str(one.required_state)) != one.required_state:
                raise invalid("dependencies")
        new = records.admitted(request, request.dependencies, now)
        if new.workload_id in needed:
            raise ModelRefusal("WORKLOAD_INVALID")
        if stored := self.records.get(new.workload_id):
            fields = [name for name in COMPARED if getattr(stored, name) != getattr(new, name)]
            if fields:
                names = ["input" if name == "input_hash" else name for name in fields]
                raise ModelRefusal("IDEMPOTENCY_KEY_REUSED", {"fields": names})
            return stored, False
        self._refuse_cycle(new)
        self.records[new.workload_id] = new
        return new, True

    def _refuse_cycle(self, new: Record) -> None:
        edges = {new.workload_id: {name for name, _ in new.dependencies}}
        seen, ahead = set(), [new.workload_id]
        while ahead:
            reached = ahead.pop()
            if reached in seen:
                continue
            seen.add(reached)
            if other := self._dependency(new, reached):
                edges[reached] = {name for name, _ in other.dependencies}
            ahead.extend(edges.get(reached, ()))
        if any(new.workload_id in named for named in edges.values()):
            raise ModelRefusal("WORKLOAD_INVALID", {"cycle": Cycle(new.workload_id, edges)})

    def admit_many(self, requests: Sequence[AdmissionRequest], *, now: dt.datetime) -> list[Any]:
        return self._each(self.admit, [{"request": request, "now": now} for request in requests])

    # Section 7.

    def _operated(self, workload_id: str, expected_version: int | None) -> Record:
        record = self._found(workload_id)
        if expected_version not in {None, record.version}:
            raise ModelRefusal("WORKLOAD_CONFLICT", {"version": record.version})
        return record

    def cancel(
        self,
        workload_id: str,
        *,
        actor: str,
        reason: str,
        expected_version: int | None,
        force: bool,
        now: dt.datetime,
    ) -> Record:
        record = self._operated(workload_id, expected_version)
        if record.state == SUCCEEDED:
            raise denied(record, CANCELLED)
        if record.state == CANCELLED or (record.state == REQUESTED and not force):
            return record
        if record.state not in HELD:
            record.move(CANCELLED, now, actor, **given(reason=reason))
        else:
            said = given(reason=reason, forced="true" if force else "")
            if record.state != REQUESTED:
                record.move(REQUESTED, now, actor, **said)
            if force:
                record.end_attempt("CANCELLED", now)
                record.move(CANCELLED, now, actor, **said)
        record.step(now)
        return record

    def rearm(
        self,
        workload_id: str,
        *,
        actor: str,
        reason: str,
        expected_version: int | None,
        restart_overall: bool,
        now: dt.datetime,
    ) -> Record:
        if not reason.strip():
            raise invalid("reason")
        record = self._operated(workload_id, expected_version)
        if record.state not in PARKED:
            raise denied(record, READY)
        overall_ms = record.timeouts.overall_ms if record.contract_version >= 2 else None
        if overall_ms is not None and not restart_overall and now >= (at := record.overall_from + ms(overall_ms)):
            raise timed_out("overall", at)
        if restart_overall:
            record.overall_from = now
        record.operator_retries += 1
        record.next_attempt_at = now
        record.move(READY, now, actor, decision="operator_rearm", reason=reason)
        record.step(now)
        return record

    def time_out(
        self, workload_id: str, *, actor: str, reason: str, expected_version: int | None, now: dt.datetime
    ) -> Record:
        record = self._operated(workload_id, expected_version)
        if record.state not in IN_WORK | {READY}:
            raise denied(record, TIMED_OUT)
        record.last_failure = f"timeout: by {actor}"
        if record.state in IN_WORK:
            record.end_attempt("TIMED_OUT", now, record.last_failure)
        record.move(TIMED_OUT, now, actor, **given(reason=reason))
        record.step(now)
        return record

    # Section 8.

    def _taken(self, due: list[str], limit: int | None, picked: Sequence[str]) -> list[Record]:
        """Return the records that a pass took, once it is clear that it took as many as it may, all of them due."""
        if limit is not None and limit < 1:
            raise invalid("limit")
        wanted = len(due) if limit is None else min(limit, len(due))
        assert len(picked) == len(set(picked)) == wanted, (due, limit, picked)
        assert set(picked) <= set(due), (due, picked)
        return [self.records[name] for name in picked]

    def enforce_deadlines(self, *, limit: int | None, now: dt.datetime, picked: Sequence[str]) -> list[str]:
        due = [name for name, record in self.records.items() if record.passed(now)]
        for record in self._taken(due, limit, picked):
            self._pass_deadline(record, now)
        return list(picked)

    def recover_expired(self, *, limit: int | None, now: dt.datetime, picked: Sequence[str]) -> list[str]:
        held = [record for record in self.records.values() if record.state in HELD]
        due = [record.workload_id for record in held if record.expires_at <= now]
        for record in self._taken(due, limit, picked):
            expires_at = iso(record.expires_at)
            said = {"claim_id": record.claim_id, "worker_id": record.worker_id, "expires_at": expires_at}
            requested = record.state == REQUESTED
            record.last_failure = f"worker_failure: lease over at {expires_at}"
            record.end_attempt("WORKER_LOST", now, record.last_failure)
            record.move(RECOVERING, now, "authority.recovery", **said)
            if requested:
                record.move(CANCELLED, now, "authority.recovery")
            elif "worker_failure" not in record.retry_policy.retry_on:
                self._settle(record, now, "authority.recovery", "worker_failure_not_retryable")
            else:
                decision = "attempt_budget_exhausted" if record.budget_used() else "retry"
                self._settle(record, now, "authority.recovery", decision)
            record.step(now)
        return list(picked)

    def dead_letter_unsatisfiable(self, *, limit: int | None, now: dt.datetime, picked: Sequence[str]) -> list[str]:
        ready = [record for record in self.records.values() if record.state == READY]
        due = [record.workload_id for record in ready if self.unmeetable(record)]
        for record in self._taken(due, limit, picked):
            said = {"dependency": OneOf(self.unmeetable(record)), "decision": "dependency_unsatisfiable"}
            record.move(DEAD_LETTER, now, "authority.recovery", **said)
            record.step(now)
        return list(picked)

    def run_pass(self, *, limit: int | None, now: dt.datetime, picked: dict[str, Any]) -> dict[str, Any]:
        return {
            "timed_out": self.enforce_deadlines(limit=limit, now=now, picked=picked["timed_out"]),
            "recovered": self.recover_expired(limit=limit, now=now, picked=picked["recovered"]),
            "unsatisfiable": self.dead_letter_unsatisfiable(limit=limit, now=now, picked=picked["unsatisfiable"]),
            "failed": {},
        }
