"""The contract once more, written from its text alone: one workload after another, in dictionaries, slow and simple.

Every verb takes `now`, changes the records and answers, or raises `ModelRefusal`. It leaves out what has no history:
bounds, secrets, grants and sizes (tests/lifecycle has those). Where the contract leaves a choice to the authority
(which rows a limited pass takes), the model is told what was chosen and checks that it was a choice.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from tests.model import records
from tests.model.records import (
    CANCELLED,
    CHECKPOINTED,
    CLAIMED,
    DEAD_LETTER,
    FAILED,
    FINAL,
    HELD,
    IN_WORK,
    PARKED,
    READY,
    RECOVERING,
    REQUESTED,
    RUNNING,
    SUCCEEDED,
    TIMED_OUT,
    Attempt,
    Checkpoint,
    OneOf,
    Opaque,
    Record,
    Result,
    Unordered,
    digest,
    iso,
    ms,
    plain,
)
from workloads.contract import AdmissionRequest, CompletionReport, Fence


class ModelRefusal(Exception):
    """What the contract refuses. `details` is None where the contract names none."""

    def __init__(self, code: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(code, details)
        self.code, self.details = code, details


class Cycle(list):
    """The workloads that reach the new one, as edges. Equal to the ids along any cycle through `start`."""

    def __init__(self, start: str, edges: dict[str, set[str]]) -> None:
        super().__init__([start])
        self.start, self.edges = start, edges

    def __eq__(self, other: object) -> bool:
        ring = list(other)
        if len(ring) > 1 and ring[0] == ring[-1]:
            ring.pop()
        steps = zip(ring, [*ring[1:], ring[0]], strict=True)
        return self.start in ring and all(after in self.edges.get(before, ()) for before, after in steps)

    __hash__ = None


def invalid(field: str) -> ModelRefusal:
    return ModelRefusal("WORKLOAD_INVALID", {"field": field})


def denied(record: Record, to_state: str) -> ModelRefusal:
    return ModelRefusal("WORKLOAD_TRANSITION_DENIED", {"from": record.state, "to": to_state})


def timed_out(deadline: str, at: dt.datetime) -> ModelRefusal:
    return ModelRefusal("WORKLOAD_TIMED_OUT", {"deadline": deadline, "deadline_at": iso(at)})


def given(**evidence: str) -> dict[str, str]:
    """Return the evidence that says something."""
    return {key: value for key, value in evidence.items() if value}


class Model:
    """All workloads of a site, by id, in the order of their admission."""

    def __init__(self, *, max_releases: int, accept_late: bool, max_checkpoints: int, max_lease_ms: int) -> None:
        self.max_releases, self.accept_late = max_releases, accept_late
        self.max_checkpoints, self.max_lease_ms = max_checkpoints, max_lease_ms
        self.records: dict[str, Record] = {}
        self.requests: dict[tuple[str, str], tuple[str, str | None, list[tuple[str, Opaque]]]] = {}
        self.made = 0

    # What the verbs share.

    def _opaque(self, kind: str) -> Opaque:
        self.made += 1
        return Opaque(f"{kind}-{self.made}")

    def _found(self, workload_id: str) -> Record:
        if workload_id not in self.records:
            raise ModelRefusal("WORKLOAD_NOT_FOUND")
        return self.records[workload_id]

    def _dependency(self, record: Record, workload_id: str) -> Record | None:
        """Return the workload depended on, if it exists for this tenant and application."""
        other = self.records.get(workload_id)
        same = other and (other.tenant_id, other.application_id) == (record.tenant_id, record.application_id)
        return other if same else None

    def unmet(self, record: Record) -> list[str]:
        states = {name: self._dependency(record, name) for name, _ in record.dependencies}
        return [name for name, needed in record.dependencies if not states[name] or states[name].state != needed]

    def unmeetable(self, record: Record) -> list[str]:
        return [
            name
            for name, needed in record.dependencies
            if (other := self._dependency(record, name)) and other.state in FINAL and other.state != needed
        ]

    def missing(self, record: Record) -> list[str]:
        return [name for name, _ in record.dependencies if not self._dependency(record, name)]

    def _judge(self, record: Record, fence: Fence, now: dt.datetime, *, late: bool = False) -> dict[str, str]:
        """Refuse what the fence refuses. With `late`, a lease that is over is excused where the site says so."""
        if record.claim_id is None:
            raise ModelRefusal("WORKLOAD_CLAIM_INVALID")
        if fence.fencing_token < record.fencing_token:
            raise ModelRefusal("WORKLOAD_STALE_FENCE")
        if not record.attempt.is_of(fence):
            raise ModelRefusal("WORKLOAD_CLAIM_INVALID")
        if record.expires_at > now:
            return {}
        if late and self.accept_late:
            return {"late": "true"}
        raise ModelRefusal("WORKLOAD_LEASE_EXPIRED")

    def _enforce(self, record: Record, now: dt.datetime) -> None:
        """Time out what is past a deadline, and refuse the call that found it so."""
        if passed := record.passed(now):
            self._pass_deadline(record, now)
            raise timed_out(*passed)

    def _pass_deadline(self, record: Record, now: dt.datetime) -> None:
        deadline, at = record.passed(now)
        error = f"timeout: {deadline} deadline passed"
        evidence = {"deadline": deadline, "deadline_at": iso(at)}
        if record.state in IN_WORK:
            evidence |= {"claim_id": record.claim_id, "worker_id": record.worker_id}
            record.end_attempt("TIMED_OUT", now, error)
        record.last_failure = error
        record.move(TIMED_OUT, now, "authority.deadline", **evidence)
        if deadline in {"overall", "queue"}:
            decision = "deadline_not_retryable"
        elif "timeout" not in record.retry_policy.retry_on:
            decision = "timeout_not_retryable"
        else:
            decision = "attempt_budget_exhausted" if record.budget_used() else "retry"
        self._settle(record, now, "authority.deadline", decision)
        record.step(now)

    def _settle(self, record: Record, now: dt.datetime, actor: str, decision: str, after: int | None = None) -> None:
        """Write the event of a decision: READY after a delay for `retry`, else DEAD_LETTER."""
        if decision == "retry":
            record.back_off(now, after)
        record.move(READY if decision == "retry" else DEAD_LETTER, now, actor, decision=decision)

    def _claim_of(self, record: Record, now: dt.datetime) -> dict[str, Any]:
        """Return the current claim as its holder sees it."""
        return {
            "workload_id": record.workload_id,
            "attempt_id": record.attempt.attempt_id,
            "attempt_number": record.attempt.number,
            "claim_id": record.claim_id,
            "worker_id": record.worker_id,
            "fencing_token": record.fencing_token,
            "claimed_at": record.claimed_at,
            "last_heartbeat": record.last_heartbeat,
            "expires_at": record.expires_at,
            "lease_left_ms": (record.expires_at - now) // ms(1),
            "cancellation_requested": record.state == REQUESTED,
            "definition_id": record.definition_id,
            "definition_revision": record.definition_revision,
        }

    def _each(self, verb: Callable[..., Any], calls: Iterable[dict[str, Any]]) -> list[Any]:
        answers: list[Any] = []
        for call in calls:
            try:
                answers.append(verb(**call))
            except ModelRefusal as refusal:
                answers.append(refusal)
        return answers

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
            if new.workload_id in edges.get(reached, ()):
                raise ModelRefusal("WORKLOAD_INVALID", {"cycle": Cycle(new.workload_id, edges)})

    def admit_many(self, requests: Sequence[AdmissionRequest], *, now: dt.datetime) -> list[Any]:
        return self._each(self.admit, [{"request": request, "now": now} for request in requests])

    # Section 5.

    def _asked(self, worker_id: str, request_id: str | None, verb: str, workload_id: str | None) -> list | None:
        """Return what this request was given, or None for a new one."""
        if (worker_id, request_id) not in self.requests:
            return None
        *use, claims = self.requests[worker_id, request_id]
        if use != [verb, workload_id]:
            raise invalid("request_id")
        return claims

    def _current(self, claims: list[tuple[str, Opaque]], now: dt.datetime) -> list[Record]:
        found = [self.records[name] for name, claim_id in claims if self.records[name].claim_id == claim_id]
        return [record for record in found if record.expires_at > now]

    def _hand_out(self, record: Record, worker_id: str, lease_ms: int, now: dt.datetime) -> None:
        record.attempt_count += 1
        record.fencing_token += 1
        record.claim_id, record.worker_id = self._opaque("claim"), worker_id
        record.claimed_at = record.last_heartbeat = now
        record.expires_at = now + ms(lease_ms)
        attempt = Attempt(
            number=record.attempt_count,
            attempt_id=self._opaque("attempt"),
            claim_id=record.claim_id,
            worker_id=worker_id,
            fencing_token=record.fencing_token,
            claimed_at=now,
        )
        record.attempts.append(attempt)
        record.move(
            CLAIMED,
            now,
            worker_id,
            claim_id=record.claim_id,
            worker_id=worker_id,
            attempt_id=attempt.attempt_id,
            fencing_token=str(record.fencing_token),
            expires_at=iso(record.expires_at),
        )

    def _begin(self, record: Record, now: dt.datetime) -> None:
        record.attempt.status, record.attempt.started_at = "RUNNING", now
        record.move(RUNNING, now, record.worker_id, attempt_id=record.attempt.attempt_id)

    def _lease(self, field: str, lease_ms: int) -> None:
        if not 1 <= lease_ms <= self.max_lease_ms:
            raise invalid(field)

    def claim(
        self,
        workload_id: str,
        *,
        worker_id: str,
        capabilities: Collection[str],
        lease_ms: int,
        request_id: str | None,
        now: dt.datetime,
    ) -> dict[str, Any]:
        self._lease("lease_ms", lease_ms)
        record = self._found(workload_id)
        claims = self._asked(worker_id, request_id, "claim", workload_id)
        self._enforce(record, now)
        if claims is not None:
            if self._current(claims, now):
                return self._claim_of(record, now)
            raise ModelRefusal("WORKLOAD_NOT_READY", {"state": record.state})
        if record.state != READY:
            raise ModelRefusal("WORKLOAD_NOT_READY", {"state": record.state})
        if unmet := self.unmet(record):
            raise ModelRefusal("WORKLOAD_NOT_READY", {"state": READY, "dependencies": Unordered(unmet)})
        if record.next_attempt_at > now:
            due = iso(record.next_attempt_at)
            raise ModelRefusal("WORKLOAD_NOT_READY", {"state": READY, "next_attempt_at": due})
        if record.budget_used():
            record.move(DEAD_LETTER, now, "authority.claim", decision="attempt_budget_exhausted")
            record.step(now)
            raise ModelRefusal("WORKLOAD_ATTEMPTS_EXHAUSTED")
        if missing := record.capability_snapshot - set(capabilities):
            raise ModelRefusal("WORKLOAD_CAPABILITY_DENIED", {"missing": Unordered(missing)})
        self._hand_out(record, worker_id, lease_ms, now)
        record.step(now)
        if request_id is not None:
            self.requests[worker_id, request_id] = ("claim", workload_id, [(workload_id, record.claim_id)])
        return self._claim_of(record, now)

    def claim_next(
        self,
        *,
        worker_id: str,
        capabilities: Collection[str],
        lease_ms: int,
        limit: int,
        tenant_id: str | None,
        application_id: str | None,
        definitions: Collection[str] | None,
        start: bool,
        request_id: str | None,
        now: dt.datetime,
        picked: Sequence[str],
    ) -> list[dict[str, Any]]:
        self._lease("lease_ms", lease_ms)
        if limit < 1:
            raise invalid("limit")
        claims = self._asked(worker_id, request_id, "claim_next", None)
        if claims is not None:
            return [self._claim_of(record, now) for record in self._current(claims, now)]

        def wanted(record: Record) -> bool:
            names = {record.definition_id, f"{record.definition_id}@{record.definition_revision}"}
            return (
                record.state == READY
                and record.next_attempt_at <= now
                and not self.unmet(record)
                and not record.passed(now)
                and not record.budget_used()
                and record.capability_snapshot <= set(capabilities)
                and tenant_id in {None, record.tenant_id}
                and application_id in {None, record.application_id}
                and (definitions is None or bool(names & set(definitions)))
            )

        def place(record: Record) -> tuple[Any, ...]:
            # Of those admitted at the same instant, in one batch, none is the oldest.
            free = [name != record.workload_id for name in picked]
            return -record.priority, record.next_attempt_at, record.created_at, *free

        chosen = sorted(filter(wanted, self.records.values()), key=place)[:limit]
        for record in chosen:
            self._hand_out(record, worker_id, lease_ms, now)
            if start:
                self._begin(record, now)
            record.step(now)
        if request_id is not None and chosen:
            named = [(record.workload_id, record.claim_id) for record in chosen]
            self.requests[worker_id, request_id] = ("claim_next", None, named)
        return [self._claim_of(record, now) for record in chosen]

    def start(self, fence: Fence, *, now: dt.datetime) -> dict[str, Any]:
        record = self._found(fence.workload_id)
        self._enforce(record, now)
        self._judge(record, fence, now)
        if record.attempt.started_at is None:
            if record.state != CLAIMED:
                raise denied(record, RUNNING)
            self._begin(record, now)
            record.step(now)
        return self._claim_of(record, now)

    def heartbeat(self, fence: Fence, *, extend_ms: int, now: dt.datetime) -> dict[str, Any]:
        self._lease("extend_ms", extend_ms)
        record = self._found(fence.workload_id)
        self._enforce(record, now)
        self._judge(record, fence, now)
        record.last_heartbeat = now
        record.expires_at = max(record.expires_at, now + ms(extend_ms))
        record.version += 1
        record.updated_at = now
        return self._claim_of(record, now)

    def heartbeat_many(self, items: Sequence[tuple[Fence, int]], *, now: dt.datetime) -> list[Any]:
        calls = [{"fence": fence, "extend_ms": extend_ms, "now": now} for fence, extend_ms in items]
        return self._each(self.heartbeat, calls)

    def context(self, fence: Fence, *, secret_references: Collection[str], now: dt.datetime) -> dict[str, Any]:
        record = self._found(fence.workload_id)
        self._enforce(record, now)
        self._judge(record, fence, now)
        if set(secret_references) - record.connection_scopes:
            raise ModelRefusal("WORKLOAD_SCOPE_DENIED")
        return self._claim_of(record, now) | {
            "tenant_id": record.tenant_id,
            "application_id": record.application_id,
            "environment": record.environment,
            "input": record.input,
            "checkpoints": list(record.checkpoints),
            "capability_snapshot": record.capability_snapshot,
            "connection_scopes": record.connection_scopes,
            "secret_references": frozenset(secret_references),
        }

    def checkpoint(self, fence: Fence, state: Any, *, key: str | None, now: dt.datetime) -> Checkpoint:
        record = self._found(fence.workload_id)
        self._enforce(record, now)
        self._judge(record, fence, now)
        attempt_id = record.attempt.attempt_id
        for one in record.checkpoints:
            if key is not None and (one.attempt_id, one.key) == (attempt_id, key):
                if digest(one.state) == digest(state):
                    return one
                raise ModelRefusal("WORKLOAD_CHECKPOINT_CONFLICT")
        if record.state not in {RUNNING, CHECKPOINTED}:
            raise denied(record, CHECKPOINTED)
        if len(record.checkpoints) >= self.max_checkpoints:
            raise ModelRefusal("WORKLOAD_TOO_LARGE")
        made = Checkpoint(
            len(record.checkpoints) + 1, self._opaque("checkpoint"), attempt_id, key, plain(state), now
        )
        record.checkpoints.append(made)
        record.move(CHECKPOINTED, now, fence.worker_id, attempt_id=attempt_id, checkpoint_id=made.checkpoint_id)
        record.step(now)
        return made

    def release(self, fence: Fence, *, reason: str, now: dt.datetime) -> Record:
        record = self._found(fence.workload_id)
        if any(one.is_of(fence) and one.status == "RELEASED" for one in record.attempts):
            return record
        self._enforce(record, now)
        self._judge(record, fence, now)
        if record.state not in IN_WORK:
            raise denied(record, READY)
        free = record.uncounted_releases < self.max_releases
        record.release_count += 1
        record.uncounted_releases += free
        record.end_attempt("RELEASED", now)
        if not free and record.budget_used():
            said = given(decision="attempt_budget_exhausted", reason=reason)
            record.move(DEAD_LETTER, now, fence.worker_id, **said)
        else:
            record.next_attempt_at = now
            record.move(READY, now, fence.worker_id, **given(decision="released", reason=reason))
        record.step(now)
        return record

    def confirm_cancel(self, fence: Fence, *, now: dt.datetime) -> Record:
        record = self._found(fence.workload_id)
        if any(one.is_of(fence) and one.confirmed for one in record.attempts):
            return record
        late = self._judge(record, fence, now, late=True)
        if record.state != REQUESTED:
            raise denied(record, CANCELLED)
        record.end_attempt("CANCELLED", now).confirmed = True
        record.move(CANCELLED, now, fence.worker_id, **late)
        record.step(now)
        return record

    # Section 6.

    def complete(
        self,
        fence: Fence,
        *,
        result_id: str,
        output: Any,
        artifacts: Any,
        schema_version: int,
        now: dt.datetime,
    ) -> Result:
        record = self._found(fence.workload_id)
        for other in self.records.values():
            if other.tenant_id != record.tenant_id or not other.result or other.result.result_id != result_id:
                continue
            if other is not record:
                raise ModelRefusal("WORKLOAD_RESULT_DUPLICATE")
            stored = record.result
            same = (
                record.attempt.is_of(fence)
                and stored.output_hash == digest(output)
                and digest(stored.artifacts) == digest(artifacts)
                and stored.schema_version == schema_version
            )
            if same:
                return stored
            raise ModelRefusal("WORKLOAD_RESULT_CONFLICT")
        self._enforce(record, now)
        late = self._judge(record, fence, now, late=True)
        if record.state not in {RUNNING, CHECKPOINTED}:
            raise denied(record, SUCCEEDED)
        attempt = record.end_attempt("SUCCEEDED", now)
        record.result = Result(
            result_id=result_id,
            attempt_id=attempt.attempt_id,
            produced_by=fence.worker_id,
            output=plain(output),
            output_hash=digest(output),
            artifacts=plain(artifacts),
            schema_version=schema_version,
            provenance={"claim_id": attempt.claim_id, "fencing_token": attempt.fencing_token},
            at=now,
        )
        record.move(SUCCEEDED, now, fence.worker_id, attempt_id=attempt.attempt_id, result_id=result_id, **late)
        record.step(now)
        return record.result

    def complete_many(self, reports: Sequence[CompletionReport], *, now: dt.datetime) -> list[Any]:
        names = ("fence", "result_id", "output", "artifacts", "schema_version")
        calls = [{name: getattr(report, name) for name in names} | {"now": now} for report in reports]
        return self._each(self.complete, calls)

    def fail(
        self,
        fence: Fence,
        *,
        kind: str,
        error: str,
        effect: str | None,
        retry_after_ms: int | None,
        now: dt.datetime,
    ) -> dict[str, Any]:
        record = self._found(fence.workload_id)
        for one in record.attempts:
            if one.is_of(fence) and (one.failure_kind, one.error) == (kind, error) and effect in {None, one.effect}:
                return self._outcome(one)
        self._enforce(record, now)
        late = self._judge(record, fence, now, late=True)
        if record.state not in IN_WORK:
            raise denied(record, FAILED)
        if effect is None and record.attempt.started_at is None:
            effect = "none"
        retried = record.retry_policy.retry_on
        attempt = record.end_attempt("FAILED", now, error)
        attempt.failure_kind, attempt.effect = kind, effect
        record.last_failure = f"{kind}: {error}"
        said = given(attempt_id=attempt.attempt_id, failure_kind=kind, effect=effect)
        record.move(FAILED, now, fence.worker_id, **said, **late)
        if effect == "unknown" and "worker_failure" not in retried:
            decision = "effect_unknown_not_retryable"
        elif effect != "unknown" and kind not in retried:
            decision = "failure_kind_not_retryable"
        else:
            decision = "attempt_budget_exhausted" if record.budget_used() else "retry"
        self._settle(record, now, "authority.retry", decision, retry_after_ms)
        attempt.outcome_state, attempt.outcome_decision = record.state, decision
        attempt.outcome_next_attempt_at = record.next_attempt_at if decision == "retry" else None
        record.step(now)
        return self._outcome(attempt)

    def _outcome(self, attempt: Attempt) -> dict[str, Any]:
        return {
            "state": attempt.outcome_state,
            "decision": attempt.outcome_decision,
            "next_attempt_at": attempt.outcome_next_attempt_at,
        }

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
