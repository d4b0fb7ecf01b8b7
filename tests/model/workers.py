"""What a worker says, in the model: claims and the fence (section 5), reports (section 6)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from typing import Any

from tests.model.records import (
    CANCELLED,
    CHECKPOINTED,
    CLAIMED,
    DEAD_LETTER,
    FAILED,
    IN_WORK,
    READY,
    REQUESTED,
    RUNNING,
    SUCCEEDED,
    Attempt,
    Checkpoint,
    Opaque,
    Record,
    Result,
    Unordered,
    digest,
    iso,
    ms,
    plain,
)
from tests.model.site import ModelRefusal, Site, denied, given, invalid
from workloads.contract import CompletionReport, Fence


class Workers(Site):
    """The verbs of sections 5 and 6."""

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

        # A stable sort: of those due equally long, the one that was admitted first, whatever the clock said then.
        ordered = sorted(filter(wanted, self.records.values()), key=lambda one: (-one.priority, one.next_attempt_at))
        chosen = ordered[:limit]
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
        made = Checkpoint(len(record.checkpoints) + 1, self._opaque("checkpoint"), attempt_id, key, plain(state), now)
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
