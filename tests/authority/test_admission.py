"""Admission: what is stored, what is refused, and batches. Sections 1, 2, 4 and 9."""

from __future__ import annotations

import datetime as dt
import hashlib
from typing import Any

import pytest
from django.db import connection
from django.db.models.signals import post_init, pre_init

from tests.authority.builders import admit, events, id_of, record, refused, request, text, unchanged
from tests.support import T0, at
from workloads import authority
from workloads.authority import admission as module
from workloads.authority.records import Transaction
from workloads.contract import Admission, AdmissionRequest, Backoff, Dependency, RetryPolicy, Timeouts
from workloads.errors import WorkloadError
from workloads.lifecycle.snapshot import Snapshot
from workloads.models import Admitted, Workload

pytestmark = pytest.mark.django_db

KEY = "AKIA" + "Q" * 16


def outcome(answer: Admission | WorkloadError) -> Any:
    """Return an item's answer, short: whether it was created, or the code."""
    return answer.code if isinstance(answer, WorkloadError) else answer.created


@pytest.mark.parametrize("key", ["k", "é", 'a "quoted" \\ key', "日本 / 🎈"])
def test_the_scope_is_the_identity(key: str) -> None:
    workload = authority.admit(request(key, tenant_id="ténant"), now=T0).workload
    assert workload.workload_id == id_of(key, tenant_id="ténant")
    assert len(workload.workload_id) == 33


@pytest.mark.parametrize("name", ["tenant_id", "application_id", "requested_by", "idempotency_key"])
def test_another_scope_is_other_work(name: str) -> None:
    first = authority.admit(request(), now=T0)
    second = authority.admit(request(**{name: "other"}), now=T0)
    assert second.created
    assert first.workload.workload_id != second.workload.workload_id


def test_the_answer_holds_what_a_query_would_find() -> None:
    workload = authority.admit(request(input={"a": [1]}, capability_snapshot={"c"}), now=T0).workload
    fresh = Workload.objects.get(workload_id=id_of())
    names = [column.attname for column in Workload._meta.get_fields() if hasattr(column, "attname")]
    assert {"id", "admitted_id", "input", "version"} <= set(names)
    assert {name: workload.__dict__[name] for name in names} == {name: getattr(fresh, name) for name in names}
    assert (workload.pk, workload._state.adding, workload._state.db) == (fresh.pk, False, "default")


@pytest.mark.parametrize("signal", [pre_init, post_init])
def test_a_site_that_listens_for_new_instances_is_told(signal: Any) -> None:
    told: list[dict[str, Any]] = []

    def listen(**given: Any) -> None:
        told.append(given)

    signal.connect(listen, sender=Workload)
    try:
        workload = authority.admit(request(), now=T0).workload
    finally:
        signal.disconnect(listen, sender=Workload)
    assert told
    assert (workload.workload_id, workload.version) == (id_of(), 1)


def test_work_that_depends_on_nothing_can_be_part_of_no_cycle() -> None:
    assert Admitted.objects.get(workload_id=admit()).ancestry_is_closed
    assert module.judge(Transaction(connection, T0), request(), id_of(), {}).is_closed


def test_work_of_other_capabilities_is_asked_for_by_those_who_have_them() -> None:
    plain, skilled = admit("a"), admit("b", capability_snapshot={"c"})
    lanes = dict(Workload.objects.values_list("workload_id", "lane__capabilities"))
    assert lanes == {plain: frozenset(), skilled: frozenset({"c"})}


def test_new_work_has_every_field_of_a_snapshot_before_its_first_event(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Snapshot] = []
    create = module.created_snapshot

    def keep(*given: Any) -> Snapshot:
        made.append(create(*given))
        return made[-1]

    monkeypatch.setattr(module, "created_snapshot", keep)
    monkeypatch.setattr("workloads.authority.at_once.created_snapshot", keep)
    workload = authority.get(admit(priority=3))
    (before,) = made
    assert set(vars(before)) == set(Snapshot.__dataclass_fields__)
    assert (before.pk, before.updated_at, before.overall_from, before.priority) == (workload.pk, T0, T0, 3)


def test_new_work_stands_as_the_contract_says() -> None:
    workload = authority.get(admit(input={"b": 1, "a": [1.0, None]}, trigger="cron", session_id="s-1"))
    expected: dict[str, Any] = {
        "workload_id": id_of(),
        "tenant_id": "t",
        "application_id": "app",
        "requested_by": "user",
        "idempotency_key": "k",
        "contract_version": 2,
        "version": 1,
        "definition_id": "d",
        "definition_revision": "1",
        "environment": "production",
        "input": {"a": [1, None], "b": 1},
        "input_hash": hashlib.sha256(b'{"a":[1,null],"b":1}').hexdigest(),
        "trigger": "cron",
        "session_id": "s-1",
        "capability_snapshot": frozenset(),
        "connection_scopes": frozenset(),
        "grant": None,
        "priority": 0,
        "retry_policy": RetryPolicy(
            max_attempts=3,
            backoff=Backoff.EXPONENTIAL,
            initial_delay_ms=1_000,
            max_delay_ms=60_000,
            jitter=0.0,
            retry_on=frozenset({"timeout", "transient_connection", "worker_failure"}),
        ),
        "timeouts": Timeouts(),
        "not_before": None,
        "state": "READY",
        "next_attempt_at": T0,
        "attempt_count": 0,
        "retry_count": 0,
        "release_count": 0,
        "uncounted_releases": 0,
        "operator_retries": 0,
        "fencing_token": 0,
        "last_failure": None,
        "created_at": T0,
        "updated_at": T0,
        "finished_at": None,
        "overall_from": T0,
        "claim_id": None,
        "worker_id": None,
        "claimed_at": None,
        "last_heartbeat": None,
        "expires_at": None,
    }
    assert {name: getattr(workload, name) for name in expected} == expected
    assert not workload.attempts.exists()
    assert not workload.checkpoints.exists()
    assert not hasattr(workload, "result")


def test_admission_writes_two_events() -> None:
    first, second = events(admit())
    assert (first.sequence, first.from_state, first.to_state, first.at, first.actor) == (1, "", "CREATED", T0, "user")
    assert (second.sequence, second.from_state, second.to_state) == (2, "CREATED", "READY")
    assert (second.at, second.actor) == (T0, "user")
    assert first.evidence == {}
    assert second.evidence == {}


def test_work_for_later_is_due_later_and_says_so() -> None:
    workload_id = admit(not_before=at(5_000))
    workload = authority.get(workload_id)
    assert workload.not_before == workload.next_attempt_at == at(5_000)
    first, second = events(workload_id)
    assert first.evidence["not_before"] == text(at(5_000))
    assert second.evidence["next_attempt_at"] == text(at(5_000))


def test_work_for_an_instant_that_is_past_is_due_since_then() -> None:
    workload_id = admit(not_before=at(-5_000))
    assert authority.get(workload_id).next_attempt_at == at(-5_000)
    assert "next_attempt_at" not in events(workload_id)[1].evidence


def test_the_answer_is_the_workload_as_stored() -> None:
    given = authority.admit(
        request(
            input={"x": (1, 2.0)},
            capability_snapshot=["b", "a", "a"],
            connection_scopes=["s"],
            retry_policy=RetryPolicy(jitter=1, retry_on=["b", "a"]),
            timeouts=Timeouts(queue_ms=5),
            not_before=at(7).astimezone(dt.timezone(dt.timedelta(hours=5))),
            dependencies=[Dependency(workload_id="nobody")],
        ),
        now=T0,
    ).workload
    stored = record(given.workload_id)["workload"]
    assert {name: getattr(given, name) for name in stored} == stored
    assert [d.depends_on for d in given.dependencies.all()] == ["nobody"]
    assert given == authority.get(given.workload_id)


def test_without_now_the_clock_is_the_databases() -> None:
    before = dt.datetime.now(dt.UTC)
    workload = authority.admit(request()).workload
    after = dt.datetime.now(dt.UTC)
    assert before - dt.timedelta(milliseconds=2) <= workload.created_at <= after + dt.timedelta(milliseconds=2)
    assert workload.created_at == workload.updated_at == workload.overall_from == workload.next_attempt_at


def test_every_bound_is_inclusive_on_this_database() -> None:
    long = "🎈" * 200
    widest = AdmissionRequest(
        tenant_id=long,
        application_id=long,
        requested_by=long,
        idempotency_key=long,
        definition_id=long,
        definition_revision=long,
        environment=long,
        trigger=long,
        session_id=long,
        capability_snapshot=[f"{n:03}" + "🎈" * 197 for n in range(100)],
        connection_scopes=[f"{n:03}" + "🎈" * 197 for n in range(100)],
        priority=2**31 - 1,
        retry_policy=RetryPolicy(
            max_attempts=2**31 - 1,
            backoff=Backoff.FIXED,
            initial_delay_ms=3_155_760_000_000,
            max_delay_ms=3_155_760_000_000,
            jitter=1.0,
            retry_on=[f"{n:03}" + "🎈" * 197 for n in range(100)],
        ),
        timeouts=Timeouts(
            overall_ms=3_155_760_000_000,
            queue_ms=3_155_760_000_000,
            claim_ms=3_155_760_000_000,
            execution_ms=3_155_760_000_000,
            heartbeat_ms=1,
        ),
        dependencies=[Dependency(workload_id=f"{n:03}" + "🎈" * 197) for n in range(100)],
        not_before=dt.datetime(2899, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC),
    )
    workload = authority.admit(widest, now=dt.datetime(2000, 1, 1, tzinfo=dt.UTC)).workload
    stored = authority.get(workload.workload_id)
    assert stored.capability_snapshot == frozenset(widest.capability_snapshot)
    assert stored.retry_policy.retry_on == frozenset(widest.retry_policy.retry_on)
    assert stored.timeouts == widest.timeouts
    assert stored.not_before == widest.not_before
    assert stored.dependencies.count() == 100
    assert not authority.admit(widest, now=T0).created
    lowest = authority.get(admit("low", priority=-(2**31)))
    assert lowest.priority == -(2**31)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        *(
            (name, {name: bad})
            for name in (
                "tenant_id",
                "application_id",
                "requested_by",
                "idempotency_key",
                "definition_id",
                "definition_revision",
                "environment",
                "session_id",
            )
            for bad in ("", "x" * 201, " x", "x\u00a0", "a\x00b", "a\x1fb", "a\udc00", 7)
        ),
        *(("definition_id", {"definition_id": bad}) for bad in ("a@b", "@", None)),
        ("definition_revision", {"definition_revision": "1@2"}),
        ("trigger", {"trigger": " "}),
        ("trigger", {"trigger": None}),
        ("capability_snapshot", {"capability_snapshot": "letters"}),
        ("capability_snapshot", {"capability_snapshot": ["ok", " bad"]}),
        ("capability_snapshot", {"capability_snapshot": [str(n) for n in range(101)]}),
        ("connection_scopes", {"connection_scopes": [1]}),
        ("priority", {"priority": 2**31}),
        ("priority", {"priority": -(2**31) - 1}),
        ("priority", {"priority": True}),
        ("priority", {"priority": 1.0}),
        ("retry_policy", {"retry_policy": None}),
        ("retry_policy.max_attempts", {"retry_policy": RetryPolicy(max_attempts=0)}),
        ("retry_policy.initial_delay_ms", {"retry_policy": RetryPolicy(initial_delay_ms=-1)}),
        ("retry_policy.max_delay_ms", {"retry_policy": RetryPolicy(max_delay_ms=3_155_760_000_001)}),
        ("retry_policy.jitter", {"retry_policy": RetryPolicy(jitter=1.01)}),
        ("retry_policy.jitter", {"retry_policy": RetryPolicy(jitter=float("nan"))}),
        ("retry_policy.backoff", {"retry_policy": RetryPolicy(backoff="LINEAR")}),  # type: ignore[arg-type]
        ("retry_policy.retry_on", {"retry_policy": RetryPolicy(retry_on="timeout")}),
        ("timeouts.overall_ms", {"timeouts": Timeouts(overall_ms=0)}),
        ("timeouts.queue_ms", {"timeouts": Timeouts(queue_ms=-1)}),
        ("timeouts.claim_ms", {"timeouts": Timeouts(claim_ms=0)}),
        ("timeouts.execution_ms", {"timeouts": Timeouts(execution_ms=3_155_760_000_001)}),
        ("timeouts.heartbeat_ms", {"timeouts": Timeouts(heartbeat_ms=1.5)}),  # type: ignore[arg-type]
        ("not_before", {"not_before": dt.datetime(2041, 1, 1)}),
        ("not_before", {"not_before": dt.datetime(1999, 12, 31, tzinfo=dt.UTC)}),
        ("not_before", {"not_before": dt.datetime(2900, 1, 1, tzinfo=dt.UTC)}),
        ("dependencies", {"dependencies": [Dependency(workload_id="x", required_state="READY")]}),  # type: ignore[arg-type]
        ("dependencies", {"dependencies": [Dependency(workload_id="")]}),
        ("dependencies", {"dependencies": ["x"]}),
        ("dependencies", {"dependencies": [Dependency(workload_id=str(n)) for n in range(101)]}),
        (
            "dependencies",
            {"dependencies": [Dependency(workload_id="x"), Dependency(workload_id="x", required_state="CANCELLED")]},  # type: ignore[arg-type]
        ),
        ("input", {"input": {"a": {1, 2}}}),
        ("grant", {"grant": 5}),
    ],
)
def test_what_is_out_of_bounds_is_refused_and_nothing_touched(
    field: str, changes: dict[str, Any], django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(0), refused("WORKLOAD_INVALID") as caught:
        authority.admit(request(**changes), now=T0)
    assert caught.value.details is not None
    assert caught.value.details["field"] == field


@pytest.mark.parametrize("wrong", [None, {}, "request"])
def test_what_is_no_request_is_refused(wrong: Any) -> None:
    with refused("WORKLOAD_INVALID"):
        authority.admit(wrong, now=T0)


def test_input_at_the_limit_passes_and_one_byte_more_is_too_large(limits: Any) -> None:
    limits(MAX_INPUT_BYTES=12)
    admit("fits", input="é" * 5)
    with refused("WORKLOAD_TOO_LARGE") as caught:
        authority.admit(request(input="é" * 5 + "a"), now=T0)
    assert caught.value.details == {"field": "input", "limit": 12, "size": 13}
    assert Workload.objects.count() == 1


def test_the_default_limit_of_input_is_256_kib() -> None:
    admit("fits", input="x" * 262_142)
    with refused("WORKLOAD_TOO_LARGE"):
        authority.admit(request(input="x" * 262_143), now=T0)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {"b": [f"see {KEY} here"]}}, "$.a.b[0]"),
        ({"db_password": "hunter2"}, "$.db_password"),
        ({"secret": [["x"]]}, "$.secret[0][0]"),
    ],
)
def test_input_with_secret_material_is_refused_by_path_and_rule(value: Any, path: str) -> None:
    with refused("WORKLOAD_SECRET_MATERIAL") as caught:
        authority.admit(request(input=value), now=T0)
    assert caught.value.details is not None
    assert set(caught.value.details) == {"path", "rule"}
    assert caught.value.details["path"] == path
    assert KEY not in f"{caught.value} {caught.value.details}"
    assert "hunter2" not in f"{caught.value} {caught.value.details}"
    assert not Admitted.objects.exists()


def test_references_and_scopes_are_no_secrets() -> None:
    admit(
        input={"password": "vault:db", "token": "secret://a", "api_key": "billing", "cookie": None, "tokens_used": "x"},
        connection_scopes={"billing"},
    )


def test_a_scope_excuses_a_key_and_not_a_pattern() -> None:
    with refused("WORKLOAD_SECRET_MATERIAL"):
        authority.admit(request(input={"a": KEY}, connection_scopes={KEY}), now=T0)


def test_a_batch_is_answered_in_its_order_and_a_refused_item_refuses_itself_alone() -> None:
    admit("old", priority=1)
    answers = authority.admit_many(
        [
            request("a"),
            request("old"),
            request("b", priority=2**31),
            request("old", priority=1),
            request("a"),
            request("a", priority=3),
            None,  # type: ignore[list-item]
            request("c", input={"password": "x"}),
            request("d"),
        ],
        now=at(9),
    )
    assert [outcome(answer) for answer in answers] == [
        True,
        "IDEMPOTENCY_KEY_REUSED",
        "WORKLOAD_INVALID",
        False,
        False,
        "IDEMPOTENCY_KEY_REUSED",
        "WORKLOAD_INVALID",
        "WORKLOAD_SECRET_MATERIAL",
        True,
    ]
    assert Workload.objects.count() == 3
    assert answers[0].workload.workload_id == id_of("a")  # type: ignore[union-attr]
    assert answers[8].workload.workload_id == id_of("d")  # type: ignore[union-attr]


def test_items_for_one_key_are_judged_in_order() -> None:
    first, second, third = authority.admit_many([request(priority=1), request(priority=2), request(priority=1)], now=T0)
    assert [outcome(first), outcome(second), outcome(third)] == [True, "IDEMPOTENCY_KEY_REUSED", False]
    assert authority.get(id_of()).priority == 1


def test_a_batch_may_be_empty_or_any_iterable_of_requests() -> None:
    assert authority.admit_many([], now=T0) == []
    assert [outcome(a) for a in authority.admit_many((request(k) for k in "ab"), now=T0)] == [True, True]


@pytest.mark.parametrize("wrong", [None, 5, "requests", request()])
def test_what_is_no_list_of_requests_is_refused(wrong: Any) -> None:
    with refused("WORKLOAD_INVALID") as caught:
        authority.admit_many(wrong, now=T0)
    assert caught.value.details == {"field": "requests"}


def test_a_batch_stores_what_single_admissions_store() -> None:
    changes: dict[str, Any] = {"input": [1], "capability_snapshot": {"c"}, "timeouts": Timeouts(queue_ms=9)}
    admit("single", **changes)
    authority.admit_many([request("other"), request("batch", **changes)], now=T0)
    single, batch = record(id_of("single")), record(id_of("batch"))
    own = {"id", "admitted_id", "workload_id", "idempotency_key"}
    assert {k: v for k, v in single["workload"].items() if k not in own} == {
        k: v for k, v in batch["workload"].items() if k not in own
    }
    assert [(e["sequence"], e["to_state"], e["evidence"]) for e in single["events"]] == [
        (e["sequence"], e["to_state"], e["evidence"]) for e in batch["events"]
    ]


def test_a_batch_larger_than_a_statement_is_cut() -> None:
    keys = [f"k{n:04}" for n in range(520)]
    answers = authority.admit_many([request(key) for key in keys], now=T0)
    assert [a.workload.idempotency_key for a in answers if isinstance(a, Admission)] == keys
    repeated = authority.admit_many([request(key) for key in keys], now=at(1))
    assert [outcome(answer) for answer in repeated] == [False] * 520
    assert [a.workload.idempotency_key for a in repeated if isinstance(a, Admission)] == keys
    assert Workload.objects.count() == 520


def test_a_batch_larger_than_a_packet_is_cut() -> None:
    answers = authority.admit_many([request(f"k{n}", input="é" * 131_000) for n in range(70)], now=T0)
    assert all(outcome(answer) is True for answer in answers)
    assert authority.get(id_of("k69")).input == "é" * 131_000


def test_a_refused_admission_changes_nothing() -> None:
    workload_id = admit()
    with unchanged(workload_id), refused("IDEMPOTENCY_KEY_REUSED"):
        authority.admit(request(priority=1), now=at(1))
