"""The record as readers see it: attributes, filters, relations, and the codes. Sections 1, 2 and 10."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tests.authority.builders import S, admit, bring, claim, running
from tests.support import T0, at
from workloads import authority, errors
from workloads.contract import Backoff, Dependency, RetryPolicy, Timeouts
from workloads.errors import WorkloadError
from workloads.models import Attempt, Checkpoint, Event, Result, Workload

pytestmark = pytest.mark.django_db

SCALARS = """
workload_id tenant_id application_id requested_by idempotency_key contract_version version
definition_id definition_revision environment input_hash trigger session_id
grant priority not_before
state next_attempt_at attempt_count retry_count release_count uncounted_releases operator_retries fencing_token
last_failure created_at updated_at finished_at overall_from
claim_id worker_id claimed_at last_heartbeat expires_at
""".split()
VALUES = ["input", "capability_snapshot", "connection_scopes", "retry_policy", "timeouts"]

POLICY = RetryPolicy(
    max_attempts=2,
    backoff=Backoff.FIXED,
    initial_delay_ms=5,
    max_delay_ms=6,
    jitter=0.25,
    retry_on=frozenset({"a", "timeout"}),
)


def rich() -> Workload:
    """Return a workload in which as many fields as may be have a value."""
    grant = authority.issue_grant(
        subject="user", tenant_id="t", application_id="app", capabilities=["c"], issued_at=T0, expires_at=at(9)
    )
    workload_id = admit(
        input={"a": [1, "é"]},
        trigger="cron",
        session_id="s",
        grant=grant,
        capability_snapshot={"c"},
        connection_scopes={"y", "x"},
        priority=-3,
        retry_policy=POLICY,
        timeouts=Timeouts(overall_ms=10**9, claim_ms=7),
        not_before=at(5),
    )
    fence = claim(workload_id, capabilities={"c"}).fence
    authority.fail(fence, kind="timeout", error="é", now=at(1_001))
    claim(workload_id, now=at(2_000), capabilities={"c"})
    return authority.get(workload_id)


@pytest.mark.parametrize("name", [*SCALARS, *VALUES])
def test_each_field_is_an_attribute_and_a_name_to_filter_by(name: str) -> None:
    workload = rich()
    bring(S.CANCELLED, "other", tenant_id="u", trigger="x")
    value = getattr(workload, name)
    lookup = {f"{name}__isnull": True} if value is None else {name: value}
    assert workload in Workload.objects.filter(**lookup)
    assert Workload.objects.filter(pk=workload.pk).values_list(name, flat=True).get() == value
    list(Workload.objects.order_by(name))


def test_sets_read_as_frozensets_and_policies_as_the_dataclasses() -> None:
    workload = rich()
    assert workload.capability_snapshot == frozenset({"c"})
    assert workload.connection_scopes == frozenset({"x", "y"})
    assert type(workload.connection_scopes) is frozenset
    assert workload.retry_policy == POLICY
    assert type(workload.retry_policy.backoff) is Backoff
    assert type(workload.retry_policy.retry_on) is frozenset
    assert type(workload.retry_policy.jitter) is float
    assert workload.timeouts == Timeouts(overall_ms=10**9, claim_ms=7)
    assert workload.input == {"a": [1, "é"]}


def test_instants_are_aware_and_in_utc() -> None:
    workload = rich()
    for name in (
        "created_at",
        "updated_at",
        "not_before",
        "claimed_at",
        "last_heartbeat",
        "expires_at",
        "overall_from",
    ):
        value = getattr(workload, name)
        assert value.utcoffset() == dt.timedelta(0), name
    assert workload.created_at.microsecond == 123_456


def test_states_compare_with_the_enum() -> None:
    workload = rich()
    assert workload.state == S.CLAIMED == "CLAIMED"
    assert Workload.objects.filter(state=S.CLAIMED).get() == workload


def test_relations_hold_the_history() -> None:
    workload_id, fence = bring(S.CHECKPOINTED, dependencies=[])
    authority.complete(fence, result_id="r", output=1, now=at(5_000))
    workload = authority.get(workload_id)
    attempt = workload.attempts.get()
    assert isinstance(attempt, Attempt)
    assert workload.events.filter(to_state="CLAIMED").get().evidence["attempt_id"] == attempt.attempt_id
    assert workload.checkpoints.get().attempt_id == attempt.attempt_id
    assert workload.result.attempt_id == attempt.attempt_id
    assert Workload.objects.filter(attempts__attempt_id=attempt.attempt_id).get() == workload
    assert Workload.objects.filter(result__result_id="r").get() == workload
    assert Workload.objects.filter(events__actor="w").distinct().count() == 1
    assert isinstance(attempt.attempt_id, str)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (Event, "sequence from_state to_state at actor evidence"),
        (
            Attempt,
            "number attempt_id claim_id worker_id fencing_token status claimed_at started_at ended_at error "
            "failure_kind effect outcome_state outcome_decision outcome_next_attempt_at",
        ),
        (Checkpoint, "sequence checkpoint_id attempt_id key state at"),
        (Result, "result_id attempt_id produced_by output output_hash artifacts schema_version at"),
    ],
)
def test_history_models_have_the_fields_of_the_contract(model: Any, names: str) -> None:
    fields = {field.attname for field in model._meta.concrete_fields}
    assert set(names.split()) <= fields


def test_dependencies_are_a_relation_of_rows() -> None:
    workload = authority.get(admit(dependencies=[Dependency(workload_id="x", required_state=S.CANCELLED)]))
    row = workload.dependencies.get()
    assert (row.depends_on, row.required_state) == ("x", "CANCELLED")


def test_ids_that_the_authority_makes_are_opaque_and_short() -> None:
    seen: set[str] = set()
    for n in range(20):
        fence = running(f"k{n}")
        saved = authority.checkpoint(fence, 1, now=at(3_000))
        made = [fence.claim_id, saved.checkpoint_id, saved.attempt_id]
        assert all(0 < len(each) <= 64 and each.isascii() for each in made)
        seen.update(made)
    assert len(seen) == 60


def test_the_codes_are_those_of_the_contract() -> None:
    assert set(
        """
        WORKLOAD_INVALID WORKLOAD_TOO_LARGE WORKLOAD_SECRET_MATERIAL WORKLOAD_GRANT_INVALID WORKLOAD_NOT_FOUND
        WORKLOAD_CONFLICT WORKLOAD_NOT_READY WORKLOAD_ATTEMPTS_EXHAUSTED WORKLOAD_CAPABILITY_DENIED
        WORKLOAD_SCOPE_DENIED WORKLOAD_CLAIM_INVALID WORKLOAD_STALE_FENCE WORKLOAD_LEASE_EXPIRED
        WORKLOAD_TRANSITION_DENIED WORKLOAD_TIMED_OUT WORKLOAD_RESULT_CONFLICT WORKLOAD_RESULT_DUPLICATE
        WORKLOAD_CHECKPOINT_CONFLICT IDEMPOTENCY_KEY_REUSED IDEMPOTENCY_KEY_RETIRED
        """.split()
    ) == set(errors.CODES)


def test_an_error_has_a_code_a_message_and_details() -> None:
    with pytest.raises(WorkloadError) as caught:
        authority.get("nothing")
    assert caught.value.code == "WORKLOAD_NOT_FOUND"
    assert isinstance(caught.value.message, str)
    assert caught.value.message
    assert caught.value.details is None or isinstance(caught.value.details, dict)
