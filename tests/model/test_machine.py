"""The authority and the model live through the same random histories: the same answers, the same records."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any, ClassVar

import pytest
from django.db import connection, transaction
from django.test import override_settings
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.model.compare import Pairs
from tests.model.model import Model, ModelRefusal
from tests.model.records import HELD, READY, Opaque, identity
from tests.support import T0, at
from workloads import authority
from workloads.authority.verification import verify
from workloads.contract import (
    AdmissionRequest,
    Backoff,
    CompletionReport,
    Dependency,
    Effect,
    Fence,
    RetryPolicy,
    Timeouts,
    WorkloadState,
)
from workloads.errors import WorkloadError

# The last is of another tenant, so that nothing it is named by can see it.
SCOPES = [("t", "app", "alice", f"k{number}") for number in range(5)] + [("other", "app", "alice", "k0")]
REQUESTS = [
    AdmissionRequest(tenant_id=tenant, application_id=app, requested_by=by, idempotency_key=key, definition_id="d")
    for tenant, app, by, key in SCOPES
]
IDS = [identity(request) for request in REQUESTS]
WORKERS = ["w", "W", "w2"]
CAPABILITIES = [frozenset(), frozenset({"gpu"}), frozenset({"gpu", "net"})]
MAX_LEASE_MS = 500

policies = st.builds(
    RetryPolicy,
    max_attempts=st.sampled_from([2, 1, 3, 0]),
    backoff=st.sampled_from(Backoff),
    initial_delay_ms=st.sampled_from([0, 10]),
    max_delay_ms=st.sampled_from([15, 5, 1000]),
    retry_on=st.sampled_from(
        [
            frozenset({"timeout", "transient_connection", "worker_failure"}),
            frozenset({"timeout", "broken"}),
            frozenset({"worker_failure"}),
            frozenset(),
        ]
    ),
)
timeouts = st.one_of(
    st.just(Timeouts()),
    st.builds(
        Timeouts,
        overall_ms=st.sampled_from([None, 200]),
        queue_ms=st.sampled_from([None, 60]),
        claim_ms=st.sampled_from([None, 20]),
        execution_ms=st.sampled_from([None, 50]),
        heartbeat_ms=st.sampled_from([None, 30]),
    ),
)
dependencies = st.lists(
    st.builds(
        Dependency,
        workload_id=st.sampled_from([*IDS, "nothing"]),
        required_state=st.sampled_from(
            [WorkloadState.SUCCEEDED, WorkloadState.CANCELLED, WorkloadState.DEAD_LETTER]
        ),
    ),
    max_size=2,
)
plain_requests = st.sampled_from(REQUESTS)
requests = st.one_of(
    plain_requests,
    st.builds(
        dataclasses.replace,
        plain_requests,
        definition_revision=st.sampled_from(["1", "2"]),
        input=st.sampled_from([None, {"n": 1.0}, {"n": 1}, [True]]),
        capability_snapshot=st.sampled_from(CAPABILITIES),
        connection_scopes=st.sampled_from([frozenset(), frozenset({"s3"})]),
        priority=st.sampled_from([0, 1, -1]),
        retry_policy=policies,
        timeouts=timeouts,
        dependencies=dependencies,
        not_before=st.sampled_from([None, at(0), at(40), at(-40)]),
        trigger=st.sampled_from(["", "cron"]),
    ),
)
workers = st.sampled_from(WORKERS)
request_ids = st.sampled_from([None, "r", "R"])
leases = st.sampled_from([40, 100, MAX_LEASE_MS, 1, 0, MAX_LEASE_MS + 1])
# Mostly a worker that can do everything, so that most claims lead on.
able = st.sampled_from([CAPABILITIES[2], CAPABILITIES[2], CAPABILITIES[1], CAPABILITIES[0]])
numbers = st.integers(0, 11)
ways = st.sampled_from([*["current"] * 8, "past", "past", "token+1", "token-1", "worker", "claim", "workload", "none"])
fences = st.tuples(ways, numbers)
states = st.sampled_from([{"page": 1}, {"page": 2}, {"page": 1.0}, None])
outputs = st.sampled_from([{"rows": 1}, {"rows": 1.0}, None])
targets = st.sampled_from([*IDS, *IDS[:3], "nothing"])
reasons = st.sampled_from(["asked for", "", " "])
versions = st.sampled_from(["none", "none", "current", "old"])
limits = st.sampled_from([None, None, 1, 2, 0])


class Histories(RuleBasedStateMachine):
    """Each step is one call to both, at the same instant, with the same arguments."""

    examples: ClassVar[int] = 0
    steps: ClassVar[int] = 0
    # What was answered, by verb and code: a run that never succeeds at something has shown nothing about it.
    answers: ClassVar[dict[tuple[str, str], int]] = {}

    def __init__(self) -> None:
        super().__init__()
        type(self).examples += 1
        self.now = T0
        self.pairs = Pairs()
        self.said: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.site = override_settings()
        self.site.enable()
        self.atomic = transaction.atomic()
        self.atomic.__enter__()

    def teardown(self) -> None:
        try:
            if not connection.needs_rollback:
                assert not self.unsound()
        finally:
            self.site.disable()
            transaction.set_rollback(True)
            self.atomic.__exit__(None, None, None)

    def unsound(self) -> list[Any]:
        """Return the invariants of section 12 that do not hold."""
        return list(verify(now=self.now))

    # How a step is made.

    def limit_site(self, max_releases: int, accept_late: bool) -> None:
        self.site.disable()
        allowed = {
            "MAX_RELEASES": max_releases,
            "ACCEPT_LATE_REPORTS": accept_late,
            "MAX_CHECKPOINTS": 3,
            "MAX_LEASE_MS": MAX_LEASE_MS,
        }
        self.site = override_settings(WORKLOADS=allowed)
        self.site.enable()

    def say(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        """Make one call to the authority and to the model, and hold the answers and the records against each other."""
        type(self).steps += 1
        self.said.append((verb, args, kwargs))
        theirs = [self.pairs.translate(value) for value in args]
        real = outcome(getattr(authority, verb), *theirs, **self.named(kwargs))
        more = {"picked": picked(real)} if verb in CHOOSING else {}
        mine = outcome(getattr(self.model, verb), *args, **kwargs, **more, now=self.now)
        code = getattr(mine, "code", "answered")
        self.answers[verb, code] = self.answers.get((verb, code), 0) + 1
        found = [*self.pairs.differences(mine, shown(real), verb), *self.pairs.record_differences(self.model.records)]
        assert not found, f"{verb}{args}{kwargs} at {self.now}:\n" + "\n".join(found)
        return mine

    def named(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {name: self.pairs.translate(value) for name, value in kwargs.items()} | {"now": self.now}

    def fence(self, given: tuple[str, int]) -> Fence:
        """Return a fence that was handed out, or one made from it that never was."""
        way, number = given
        held = [record for record in self.model.records.values() if record.state in HELD]
        past = [
            Fence(
                workload_id=record.workload_id,
                claim_id=attempt.claim_id,
                worker_id=attempt.worker_id,
                fencing_token=attempt.fencing_token,
            )
            for record in self.model.records.values()
            for attempt in record.attempts
        ]
        current = [fence for fence in past for record in held if fence.claim_id == record.claim_id]
        among = past if way == "past" else current or past
        if not among or way == "none":
            return Fence(workload_id=IDS[number % 6], claim_id=Opaque("no-claim"), worker_id="w", fencing_token=1)
        fence = among[number % len(among)]
        if way in {"token+1", "token-1"}:
            return dataclasses.replace(fence, fencing_token=fence.fencing_token + int(way[5:]))
        if way == "worker":
            return dataclasses.replace(fence, worker_id=WORKERS[number % 3])
        if way == "claim":
            return dataclasses.replace(fence, claim_id=past[number % len(past)].claim_id)
        if way == "workload":
            return dataclasses.replace(fence, workload_id=[*IDS, "nothing"][number % 7])
        return fence

    def version(self, workload_id: str, way: str) -> int | None:
        if way == "none" or workload_id not in self.model.records:
            return None
        return self.model.records[workload_id].version - (way == "old")

    # Admission.

    @initialize(
        given=st.lists(requests, min_size=1, max_size=4),
        max_releases=st.sampled_from([1, 0, 2]),
        accept_late=st.booleans(),
    )
    def begin(self, given: list[AdmissionRequest], max_releases: int, accept_late: bool) -> None:
        self.model = Model(
            max_releases=max_releases, accept_late=accept_late, max_checkpoints=3, max_lease_ms=MAX_LEASE_MS
        )
        self.limit_site(max_releases, accept_late)
        self.say("admit_many", given)

    @rule(accept_late=st.booleans())
    def decide_about_late_reports(self, accept_late: bool) -> None:
        self.model.accept_late = accept_late
        self.limit_site(self.model.max_releases, accept_late)

    @rule(request=requests, is_old=st.booleans())
    def admit(self, request: AdmissionRequest, is_old: bool) -> None:
        admission = self.say("admit", request)
        if is_old and not isinstance(admission, ModelRefusal) and admission[1]:
            self.age(admission[0])

    def age(self, record: Any) -> None:
        """Make a workload just admitted one of contract version 1, as an import of an older site's records would."""
        record.contract_version = 1
        table, standing = "workloads_admitted", "workloads_workload"
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table} SET contract_version = 1 WHERE workload_id = %s", [record.workload_id])
            # No deadline runs for it: unless it waits for what may never come, the clock has nothing to look for.
            if not self.model.unmeetable(record) and not self.model.missing(record):
                cursor.execute(
                    f"UPDATE {standing} SET due_at = NULL WHERE admitted_id ="
                    f" (SELECT id FROM {table} WHERE workload_id = %s)",
                    [record.workload_id],
                )

    @rule(given=st.lists(requests, max_size=3))
    def admit_many(self, given: list[AdmissionRequest]) -> None:
        self.say("admit_many", given)

    # Workers.

    @rule(workload_id=targets, worker_id=workers, capabilities=able, lease_ms=leases, request_id=request_ids)
    def claim(self, workload_id: str, **asked: Any) -> None:
        self.say("claim", workload_id, **asked)

    @rule(
        worker_id=workers,
        capabilities=able,
        lease_ms=leases,
        limit=st.sampled_from([1, 2, 3, 0]),
        tenant_id=st.sampled_from([None, "t", "other"]),
        application_id=st.sampled_from([None, "app", "App"]),
        definitions=st.sampled_from([None, None, ["d"], ["d@1"], ["d@2", "x"], []]),
        start=st.booleans(),
        request_id=request_ids,
    )
    def claim_next(self, **asked: Any) -> None:
        self.say("claim_next", **asked)

    @rule(worker_id=workers, start=st.booleans(), lease_ms=st.sampled_from([MAX_LEASE_MS, 60]))
    def claim_anything(self, worker_id: str, start: bool, lease_ms: int) -> None:
        self.say(
            "claim_next",
            worker_id=worker_id,
            capabilities=CAPABILITIES[2],
            lease_ms=lease_ms,
            limit=2,
            tenant_id=None,
            application_id=None,
            definitions=None,
            start=start,
            request_id=None,
        )

    is_claimed = precondition(lambda self: any(record.attempts for record in self.model.records.values()))

    @is_claimed
    @rule(given=fences)
    def start(self, given: tuple[str, int]) -> None:
        self.say("start", self.fence(given))

    @is_claimed
    @rule(given=st.lists(st.tuples(fences, leases), min_size=1, max_size=3), alone=st.booleans())
    def heartbeat(self, given: list[Any], alone: bool) -> None:
        items = [(self.fence(one), extend_ms) for one, extend_ms in given]
        if alone:
            self.say("heartbeat", items[0][0], extend_ms=items[0][1])
        else:
            self.say("heartbeat_many", items)

    @is_claimed
    @rule(given=fences, secret_references=st.sampled_from([(), ("s3",), ("s4",)]))
    def context(self, given: tuple[str, int], secret_references: tuple[str, ...]) -> None:
        self.say("context", self.fence(given), secret_references=secret_references)

    @is_claimed
    @rule(given=fences, state=states, key=st.sampled_from([None, "a", "b"]))
    def checkpoint(self, given: tuple[str, int], state: Any, key: str | None) -> None:
        self.say("checkpoint", self.fence(given), state, key=key)

    @is_claimed
    @rule(given=fences, reason=reasons)
    def release(self, given: tuple[str, int], reason: str) -> None:
        self.say("release", self.fence(given), reason=reason)

    @is_claimed
    @rule(given=fences)
    def confirm_cancel(self, given: tuple[str, int]) -> None:
        self.say("confirm_cancel", self.fence(given))

    # Reports.

    reports = st.tuples(fences, st.sampled_from(["r1", "r2", "r3"]), outputs, st.sampled_from([(), ("a",)]))

    @is_claimed
    @rule(given=st.lists(reports, min_size=1, max_size=3), version=st.sampled_from([1, 2]), alone=st.booleans())
    def complete(self, given: list[Any], version: int, alone: bool) -> None:
        reports = [
            CompletionReport(
                fence=self.fence(one), result_id=name, output=output, artifacts=artifacts, schema_version=version
            )
            for one, name, output, artifacts in given
        ]
        if not alone:
            self.say("complete_many", reports)
            return
        names = ("result_id", "output", "artifacts", "schema_version")
        self.say("complete", reports[0].fence, **{name: getattr(reports[0], name) for name in names})

    @is_claimed
    @rule(
        given=fences,
        kind=st.sampled_from(["broken", "timeout", "transient_connection"]),
        error=st.sampled_from(["it broke", ""]),
        effect=st.sampled_from([None, None, Effect.NONE, Effect.UNKNOWN]),
        retry_after_ms=st.sampled_from([None, None, 30, 10**12]),
    )
    def fail(self, given: tuple[str, int], **report: Any) -> None:
        self.say("fail", self.fence(given), **report)

    @precondition(lambda self: self.said)
    @rule(back=st.integers(1, 8))
    def say_it_again(self, back: int) -> None:
        verb, args, kwargs = self.said[-min(back, len(self.said))]
        self.say(verb, *args, **kwargs)

    # Operators.

    @rule(workload_id=targets, reason=reasons, version=versions, force=st.booleans())
    def cancel(self, workload_id: str, reason: str, version: str, force: bool) -> None:
        expected = self.version(workload_id, version)
        self.say("cancel", workload_id, actor="olga", reason=reason, expected_version=expected, force=force)

    @rule(workload_id=targets, reason=reasons, version=versions, restart_overall=st.booleans())
    def rearm(self, workload_id: str, reason: str, version: str, restart_overall: bool) -> None:
        parked = [name for name, record in self.model.records.items() if record.state in {"DEAD_LETTER", "TIMED_OUT"}]
        if parked and workload_id in IDS[:3]:
            workload_id = parked[IDS.index(workload_id) % len(parked)]
        expected = self.version(workload_id, version)
        self.say(
            "rearm", workload_id, actor="olga", reason=reason, expected_version=expected, restart_overall=restart_overall
        )

    @rule(workload_id=targets, reason=reasons, version=versions)
    def time_out(self, workload_id: str, reason: str, version: str) -> None:
        self.say("time_out", workload_id, actor="olga", reason=reason, expected_version=self.version(workload_id, version))

    # The clock.

    @rule(
        verb=st.sampled_from(
            ["run_pass", "run_pass", "enforce_deadlines", "recover_expired", "dead_letter_unsatisfiable"]
        ),
        limit=limits,
    )
    def look(self, verb: str, limit: int | None) -> None:
        self.say(verb, limit=limit)

    @rule(number=numbers, nudge=st.sampled_from([0, -1_000, -1, 1]))
    def wait_for(self, number: int, nudge: int) -> None:
        """Go to an instant at which something changes, or just before or after it (microseconds)."""
        instants: set[dt.datetime] = set()
        for record in self.model.records.values():
            instants |= {deadline_at for _, deadline_at in record.deadlines()}
            instants |= {record.expires_at} if record.expires_at else set()
            instants |= {record.next_attempt_at} if record.state == READY else set()
        ahead = sorted(instant for instant in instants if instant > self.now)
        if ahead:
            aim = ahead[number % len(ahead)] + dt.timedelta(microseconds=nudge)
            self.now = max(self.now, aim)

    @rule(count=st.sampled_from([1, 5, 20]))
    def wait(self, count: int) -> None:
        self.now += dt.timedelta(milliseconds=count)


CHOOSING = {"claim_next", "enforce_deadlines", "recover_expired", "dead_letter_unsatisfiable", "run_pass"}


def outcome(verb: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return verb(*args, **kwargs)
    except (WorkloadError, ModelRefusal) as refusal:
        return refusal


def picked(real: Any) -> Any:
    """Return which workloads the authority chose where the contract leaves it a choice, nothing if it refused."""
    if isinstance(real, list):
        return [getattr(one, "workload_id", one) for one in real]
    return {name: getattr(real, name, []) for name in ("timed_out", "recovered", "unsatisfiable")}


def shown(real: Any) -> Any:
    """Return an answer as the model gives it: an admission is a pair."""
    if isinstance(real, list):
        return [shown(one) for one in real]
    return (real.workload, real.created) if hasattr(real, "created") else real


QUICK = settings(
    max_examples=100,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=1_000, stateful_step_count=50, derandomize=False, print_blob=True)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("given", [QUICK, pytest.param(LONG, marks=pytest.mark.long)], ids=["quick", "long"])
def test_the_authority_and_the_model_live_the_same_histories(given: settings) -> None:
    Histories.examples, Histories.steps, Histories.answers = 0, 0, {}
    run_state_machine_as_test(Histories, settings=given)
    answered = {verb for verb, code in Histories.answers if code == "answered"}
    assert answered == set(authority.__all__) - {"explain", "get", "issue_grant", "list_for"}
    print(f"{Histories.examples} examples, {Histories.steps} steps")
