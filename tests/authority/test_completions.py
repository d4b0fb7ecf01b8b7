"""Completion: success with its one result, and its repeats. Section 6."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from dataclasses import replace
from typing import Any

import pytest

from tests.authority.builders import (
    ENDED_AT,
    EXPIRES_AT,
    S,
    admit,
    attempts,
    bring,
    claim,
    events,
    refused,
    running,
    state_of,
    text,
    unchanged,
)
from tests.support import at
from workloads import authority
from workloads.authority.dependencies import key_of, result_key_of
from workloads.authority.records import make_id
from workloads.contract import (
    CompletionReport,
    FailureOutcome,
    Fence,
    ResultRecord,
    Timeouts,
)
from workloads.errors import WorkloadError
from workloads.models import Result, Tombstone

pytestmark = pytest.mark.django_db

KEY = "AKIA" + "Q" * 16


def complete(fence: Fence, result_id: str = "r", output: Any = 1, *, now: Any = ENDED_AT, **more: Any) -> ResultRecord:
    return authority.complete(fence, result_id=result_id, output=output, now=now, **more)


def fail(
    fence: Fence, kind: str = "timeout", error: str = "slow", *, now: Any = ENDED_AT, **more: Any
) -> FailureOutcome:
    return authority.fail(fence, kind=kind, error=error, now=now, **more)


@pytest.mark.parametrize(
    ("result_id", "begins"),
    [
        ("0123456789ab7" + "f" * 19, "0123456789ab7"),
        ("0123456789ab7" + "0" * 19, "0123456789ab7"),
        ("0123456789ab4" + "f" * 19, None),
        ("0123456789AB7" + "f" * 19, None),
        ("0123456789ab7" + "f" * 18, None),
        ("0123456789ab7" + "f" * 20, None),
        ("g123456789ab7" + "f" * 19, None),
        ("r", None),
    ],
)
def test_the_key_of_a_result_begins_with_the_instant_with_which_its_id_begins(
    result_id: str, begins: str | None
) -> None:
    fence = running()
    complete(fence, result_id)
    key = Result.objects.get().result_key
    assert key == result_key_of("t", result_id)
    digest = key_of("t", result_id)
    assert key.hex == (digest.hex if begins is None else begins + digest.hex[13:])
    assert key != result_key_of("u", result_id)
    assert complete(fence, result_id).result_id == result_id
    with refused("WORKLOAD_RESULT_DUPLICATE"):
        complete(running("other"), result_id)


@pytest.mark.parametrize(
    ("instant", "begins"),
    [
        (dt.datetime(2001, 9, 9, 1, 46, 40, 999, tzinfo=dt.UTC), "00e8d4a51000"),
        (dt.datetime(2001, 9, 9, 3, 46, 40, 1_000, tzinfo=dt.timezone(dt.timedelta(hours=2))), "00e8d4a51001"),
        (dt.datetime(1970, 1, 1, tzinfo=dt.UTC), "000000000000"),
        (dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC), "ffffffffffff"),
    ],
)
def test_the_id_of_an_attempt_begins_with_the_instant_of_its_claim(instant: dt.datetime, begins: str) -> None:
    ids = {make_id(instant) for _ in range(50)}
    assert len(ids) == 50
    assert all(re.fullmatch(f"{begins}7[0-9a-f]{{19}}", made) for made in ids)
    made = make_id()
    assert len(made) == 32
    assert made != make_id()


def test_the_attempts_of_both_claims_have_such_ids() -> None:
    claims = [claim(admit("a"), now=at(1_500))]
    admit("b")
    claims += authority.claim_next(worker_id="w", capabilities=[], lease_ms=5, now=at(1_500))
    begins = make_id(at(1_500))[:13]
    assert [given.attempt_id[:13] for given in claims] == [begins, begins]
    assert not any(given.claim_id.startswith(begins) for given in claims)


@pytest.mark.parametrize("state", [S.RUNNING, S.CHECKPOINTED])
def test_completion_ends_the_work_well_with_its_one_result(state: str) -> None:
    workload_id, fence = bring(state)
    before = authority.get(workload_id)
    given = complete(fence, output={"b": 1.0, "a": ("x",)}, artifacts=[{"name": "f"}], schema_version=3)
    (attempt,) = attempts(workload_id)
    assert given == ResultRecord(
        result_id="r",
        attempt_id=attempt.attempt_id,
        produced_by="w",
        output={"a": ["x"], "b": 1},
        output_hash=hashlib.sha256(b'{"a":["x"],"b":1}').hexdigest(),
        artifacts=[{"name": "f"}],
        schema_version=3,
        provenance={"claim_id": fence.claim_id, "fencing_token": 1},
        at=ENDED_AT,
    )
    workload = authority.get(workload_id)
    names = ("result_id", "attempt_id", "produced_by", "output", "output_hash", "artifacts", "schema_version", "at")
    assert {n: getattr(workload.result, n) for n in names} == {n: getattr(given, n) for n in names}
    assert workload.result.provenance == given.provenance
    assert (workload.state, workload.finished_at, workload.version) == ("SUCCEEDED", ENDED_AT, before.version + 1)
    assert (workload.claim_id, workload.worker_id, workload.claimed_at) == (None, None, None)
    assert (workload.last_heartbeat, workload.expires_at, workload.next_attempt_at) == (None, None, None)
    last = events(workload_id)[-1]
    assert (last.from_state, last.to_state, last.actor, last.at) == (state, "SUCCEEDED", "w", ENDED_AT)
    assert last.evidence == {"attempt_id": attempt.attempt_id, "result_id": "r"}
    assert (attempt.status, attempt.ended_at, attempt.error) == ("SUCCEEDED", ENDED_AT, None)


def test_without_more_there_are_no_artifacts_and_the_schema_is_the_first() -> None:
    given = complete(running())
    assert (given.artifacts, given.schema_version) == ([], 1)


@pytest.mark.parametrize("state", [S.CLAIMED, S.CANCELLATION_REQUESTED])
def test_only_running_work_succeeds(state: str) -> None:
    workload_id, fence = bring(state)
    with unchanged(workload_id), refused("WORKLOAD_TRANSITION_DENIED", {"from": state, "to": "SUCCEEDED"}):
        complete(fence)
    assert not Result.objects.exists()


def test_the_very_same_report_again_is_answered_whatever_has_happened_since() -> None:
    fence = running(timeouts=Timeouts(overall_ms=10_000))
    first = complete(fence, output={"a": 1, "b": 2}, artifacts=["x"])
    with unchanged(fence.workload_id):
        assert complete(fence, output={"b": 2.0, "a": 1}, artifacts=("x",), now=at(10**10)) == first


@pytest.mark.parametrize(
    "other",
    [
        {"output": 2},
        {"output": True},
        {"artifacts": ["y"]},
        {"schema_version": 2},
    ],
)
def test_another_report_under_the_same_id_is_a_conflict(other: dict[str, Any]) -> None:
    fence = running()
    complete(fence)
    with unchanged(fence.workload_id), refused("WORKLOAD_RESULT_CONFLICT"):
        complete(fence, **other)


@pytest.mark.parametrize("other", [{"worker_id": "x"}, {"claim_id": "x"}, {"fencing_token": 0}, {"fencing_token": 9}])
def test_the_same_report_by_another_fence_is_a_conflict(other: dict[str, Any]) -> None:
    fence = running()
    complete(fence)
    with unchanged(fence.workload_id), refused("WORKLOAD_RESULT_CONFLICT"):
        complete(replace(fence, **other))


def test_a_result_id_of_another_workload_is_taken_in_its_tenant_alone() -> None:
    complete(running("a"))
    other, elsewhere = running("b", application_id="other"), running("c", tenant_id="u")
    with unchanged(other.workload_id), refused("WORKLOAD_RESULT_DUPLICATE"):
        complete(other)
    assert complete(elsewhere).result_id == "r"
    assert complete(other, "R").result_id == "R"


def test_the_result_id_is_judged_before_deadlines_and_fence() -> None:
    complete(running("a"))
    late = running("b", timeouts=Timeouts(execution_ms=1_000))
    with unchanged(late.workload_id), refused("WORKLOAD_RESULT_DUPLICATE"):
        complete(replace(late, fencing_token=0), now=EXPIRES_AT)


def test_a_result_id_of_pruned_work_stays_taken() -> None:
    Tombstone.objects.create(
        workload_id="gone",
        tenant_id="t",
        application_id="app",
        state="SUCCEEDED",
        finished_at=at(1),
        result_key=key_of("t", "r"),
        pruned_at=at(2),
    )
    other = running()
    with unchanged(other.workload_id), refused("WORKLOAD_RESULT_DUPLICATE"):
        complete(other)


def test_a_second_result_of_the_same_work_is_refused_by_the_fence() -> None:
    fence = running()
    complete(fence)
    with unchanged(fence.workload_id), refused("WORKLOAD_CLAIM_INVALID"):
        complete(fence, "another")


def test_a_result_id_whose_report_was_refused_is_free() -> None:
    fence = running()
    with refused("WORKLOAD_STALE_FENCE"):
        complete(replace(fence, fencing_token=0))
    with refused("WORKLOAD_LEASE_EXPIRED"):
        complete(fence, now=EXPIRES_AT)
    assert complete(fence).result_id == "r"


def test_a_completion_that_is_late_never_lands() -> None:
    fence = running(timeouts=Timeouts(execution_ms=1_000))
    with refused("WORKLOAD_TIMED_OUT", {"deadline": "execution", "deadline_at": text(at(3_000))}):
        complete(fence, now=at(3_000))
    assert state_of(fence.workload_id) == "READY"
    assert not Result.objects.exists()
    with refused("WORKLOAD_CLAIM_INVALID"):
        complete(fence, now=at(2_999))


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        *(("result_id", {"result_id": bad}) for bad in ("", " r", "r" * 201, None, "a\0", 5)),
        *(("schema_version", {"schema_version": bad}) for bad in (0, -1, 2**31, True, 1.0, None)),
        ("output", {"output": {1, 2}}),
        ("output", {"output": {"a": float("inf")}}),
        ("output", {"output": ["\ud800"]}),
        ("artifacts", {"artifacts": {"a": b""}}),
        ("artifacts", {"artifacts": ["\0"]}),
        ("now", {"now": at(1).replace(tzinfo=None)}),
    ],
)
def test_the_arguments_of_a_completion_come_first(
    field: str, changes: dict[str, Any], django_assert_num_queries: Any
) -> None:
    fence = running()
    with django_assert_num_queries(0), refused("WORKLOAD_INVALID") as caught:
        complete(fence, **changes)
    assert caught.value.details is not None
    assert caught.value.details["field"] == field
    assert complete(fence).result_id == "r"


@pytest.mark.parametrize("field", ["output", "artifacts"])
def test_output_and_artifacts_are_limited_each(field: str, limits: Any) -> None:
    limits(MAX_OUTPUT_BYTES=10)
    fence = running()
    with unchanged(fence.workload_id), refused("WORKLOAD_TOO_LARGE") as caught:
        complete(fence, **{field: "x" * 9})
    assert caught.value.details == {"field": field, "limit": 10, "size": 11}
    complete(fence, output="x" * 8, artifacts="y" * 8)


@pytest.mark.parametrize("field", ["output", "artifacts"])
def test_output_and_artifacts_hold_no_secrets(field: str) -> None:
    fence = running(connection_scopes={"billing"})
    with unchanged(fence.workload_id):
        for value, place in (({"a": KEY}, "$.a"), ({"api_key": "hunter2"}, "$.api_key")):
            with refused("WORKLOAD_SECRET_MATERIAL") as caught:
                complete(fence, **{field: value})
            assert caught.value.details is not None
            assert caught.value.details["path"] == place
    complete(fence, **{field: {"api_key": "billing", "cookie": "env:COOKIE"}})


def test_a_batch_of_completions_records_each() -> None:
    fences = [running(f"k{n}") for n in range(5)]
    answers = authority.complete_many(
        [CompletionReport(fence=fence, result_id=f"r{n}", output=n) for n, fence in enumerate(fences)], now=ENDED_AT
    )
    assert [answer.output for answer in answers] == list(range(5))  # type: ignore[union-attr]
    assert [authority.get(f.workload_id).result.output for f in fences] == list(range(5))
    again = authority.complete_many(
        [CompletionReport(fence=fence, result_id=f"r{n}", output=n) for n, fence in enumerate(fences)], now=at(10**9)
    )
    assert again == answers


def test_in_a_batch_a_result_id_goes_to_the_first_that_names_it() -> None:
    first, second, third = running("a"), running("b"), running("c")
    answers = authority.complete_many(
        [
            CompletionReport(fence=second, result_id="r", output=2),
            CompletionReport(fence=first, result_id="r", output=1),
            CompletionReport(fence=third, result_id="other", output=3),
        ],
        now=ENDED_AT,
    )
    assert [getattr(answer, "code", "fine") for answer in answers] == ["fine", "WORKLOAD_RESULT_DUPLICATE", "fine"]
    assert authority.get(second.workload_id).result.output == 2
    assert state_of(first.workload_id) == "RUNNING"


@pytest.mark.parametrize("wrong", [None, 5, "reports"])
def test_what_is_no_list_of_reports_is_refused(wrong: Any) -> None:
    with refused("WORKLOAD_INVALID", {"field": "reports"}):
        authority.complete_many(wrong, now=ENDED_AT)


@pytest.mark.parametrize("wrong", [None, 5, ()])
def test_what_is_no_report_refuses_its_item_alone(wrong: Any) -> None:
    report = CompletionReport(fence=running(), result_id="r", output=1, schema_version=2**31 - 1)
    refusal, given = authority.complete_many([wrong, report], now=ENDED_AT)
    assert isinstance(refusal, WorkloadError)
    assert (refusal.code, refusal.details) == ("WORKLOAD_INVALID", {"field": "reports"})
    assert isinstance(given, ResultRecord)
    assert given.schema_version == 2**31 - 1


def test_a_batch_goes_on_after_each_kind_of_refusal_and_after_a_repeat() -> None:
    done, stale, taken, *good = (running(f"k{n}") for n in range(7))
    complete(done, "done")
    gone = {"workload_id": "gone", "tenant_id": "t", "application_id": "app", "state": "SUCCEEDED"}
    Tombstone.objects.create(**gone, pruned_at=ENDED_AT, result_key=key_of("t", "gone"))
    asked = [
        (replace(done, workload_id="none"), "none", "WORKLOAD_NOT_FOUND"),
        (good[0], "0", "0"),
        (done, "done", "done"),
        (good[1], "1", "1"),
        (replace(stale, claim_id="none"), "stale", "WORKLOAD_CLAIM_INVALID"),
        (good[2], "2", "2"),
        (taken, "gone", "WORKLOAD_RESULT_DUPLICATE"),
        (good[3], "3", "3"),
    ]
    reports = [CompletionReport(fence=fence, result_id=result_id, output=1) for fence, result_id, _ in asked]
    answers = authority.complete_many(reports, now=ENDED_AT)
    told = [answer.code if isinstance(answer, WorkloadError) else answer.result_id for answer in answers]
    assert told == [expected for _, _, expected in asked]
    assert [state_of(fence.workload_id) for fence in good] == ["SUCCEEDED"] * 4


def test_one_workload_is_ended_once_in_a_batch_whatever_the_result_is_called() -> None:
    fence = running()
    first, second = authority.complete_many(
        [CompletionReport(fence=fence, result_id=name, output=1) for name in "ab"], now=ENDED_AT
    )
    assert isinstance(first, ResultRecord)
    assert isinstance(second, WorkloadError)
    assert authority.get(fence.workload_id).result.result_id == "a"


def test_a_repeat_beside_a_new_report_is_answered_and_the_new_one_recorded() -> None:
    old, new = (CompletionReport(fence=running(key), result_id=key, output=1) for key in "ab")
    first = authority.complete_many([old], now=ENDED_AT)
    again, recorded = authority.complete_many([old, new], now=ENDED_AT)
    assert [again] == first
    assert isinstance(recorded, ResultRecord)
    assert recorded.result_id == "b"
