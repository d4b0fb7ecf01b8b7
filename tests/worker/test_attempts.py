"""One attempt, run by a worker in this process: what the handler sees, and what is recorded of it."""

from __future__ import annotations

import logging
import time

import pytest
from django.db import IntegrityError, InterfaceError, OperationalError, connection, transaction

from tests.worker.tools import admit, attempts, drain, eventually, get, registry, state, working
from workloads import authority
from workloads.contract import RetryPolicy, Timeouts
from workloads.errors import WorkloadError
from workloads.worker import Cancelled, LeaseLost, WorkloadFailure, loop, reports
from workloads.worker.registry import Registry

pytestmark = pytest.mark.django_db(transaction=True)

ONCE = RetryPolicy(max_attempts=1)


def test_a_handler_sees_the_work_and_its_output_is_kept():
    seen = {}

    def run(attempt):
        seen.update(
            input=attempt.input,
            revision=attempt.definition_revision,
            number=attempt.attempt_number,
            checkpoints=attempt.checkpoints,
            last=attempt.last_checkpoint,
            scopes=attempt.connection_scopes,
            left=attempt.lease_left,
            left_ms=attempt.lease_left_ms,
            cancelled=attempt.cancelled,
            fence=attempt.fence,
        )
        return {"sum": sum(attempt.input)}

    workload_id = admit(input=[1, 2], definition_revision="7", connection_scopes={"db/main"})
    summary = drain(run, lease_ms=30_000)
    assert dict(summary.endings) == {"succeeded": 1}
    workload = get(workload_id)
    assert (workload.state, workload.result.output) == ("SUCCEEDED", {"sum": 3})
    (row,) = attempts(workload_id)
    assert workload.result.result_id == row.attempt_id
    assert (seen["input"], seen["revision"], seen["number"], seen["scopes"]) == ([1, 2], "7", 1, {"db/main"})
    assert (seen["checkpoints"], seen["last"], seen["cancelled"]) == ((), None, False)
    assert 25 < seen["left"] <= 30
    assert 25_000 < seen["left_ms"] <= 30_000
    assert (seen["fence"].workload_id, seen["fence"].fencing_token) == (workload_id, 1)
    assert [e.to_state for e in workload.events.all()] == ["CREATED", "READY", "CLAIMED", "RUNNING", "SUCCEEDED"]


@pytest.mark.parametrize(
    ("error", "kind", "ends_in"),
    [
        (TimeoutError("slow"), "timeout", "SUCCEEDED"),
        (ConnectionResetError("gone"), "transient_connection", "SUCCEEDED"),
        (ValueError("bad"), "exception", "DEAD_LETTER"),
        (SystemExit(1), "exception", "DEAD_LETTER"),
        (KeyboardInterrupt(), "exception", "DEAD_LETTER"),
        (GeneratorExit(), "exception", "DEAD_LETTER"),
        (Cancelled("not asked for"), "exception", "DEAD_LETTER"),
        (WorkloadFailure("custom", effect="none"), "custom", "DEAD_LETTER"),
        (WorkloadFailure("timeout", effect="unknown"), "timeout", "SUCCEEDED"),
    ],
)
def test_what_a_handler_raises_is_its_attempts_failure_and_the_worker_goes_on(error, kind, ends_in):
    first = admit()
    second = admit()

    def run(attempt):
        if attempt.workload_id == first and attempt.attempt_number == 1:
            raise error
        return "fine"

    drain(run)
    row = attempts(first)[0]
    assert (row.status, row.failure_kind) == ("FAILED", kind)
    assert (state(first), state(second)) == (ends_in, "SUCCEEDED")


def test_a_failure_says_its_effect_and_its_delay():
    workload_id = admit()

    def run(attempt):
        raise WorkloadFailure("timeout", "busy", effect="none", retry_after_ms=3_600_000)

    drain(run)
    (row,) = attempts(workload_id)
    assert (row.failure_kind, row.error, row.effect) == ("timeout", "busy", "none")
    assert (row.outcome_state, row.outcome_decision) == ("READY", "retry")
    assert (row.outcome_next_attempt_at - row.ended_at).total_seconds() == pytest.approx(3600, abs=1)


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        (object(), "output_invalid"),
        ({1: 2}, "output_invalid"),
        (float("nan"), "output_invalid"),
        ("\0", "output_invalid"),
        ("x" * 300_000, "output_too_large"),
        ({"api_key": "hunter2"}, "output_secret"),
    ],
)
def test_an_output_that_cannot_be_kept_fails_the_attempt_not_the_worker(output, kind, monkeypatch):
    monkeypatch.setattr(authority, "complete", lambda *a, **k: pytest.fail("it was sent"))
    workload_id = admit()
    assert dict(drain(lambda attempt: output).endings) == {"failed": 1}
    (row,) = attempts(workload_id)
    assert (row.status, row.failure_kind, state(workload_id)) == ("FAILED", kind, "DEAD_LETTER")
    assert "hunter2" not in row.error


def test_an_output_that_the_authority_alone_refuses_fails_the_attempt_too(monkeypatch):
    monkeypatch.setattr(reports, "settle_output", lambda output, **_: (output, None))
    workload_id = admit()
    drain(lambda attempt: {1, 2})
    assert [row.failure_kind for row in attempts(workload_id)] == ["output_invalid"]


def test_a_secret_in_an_exception_is_redacted_and_the_failure_kept():
    workload_id = admit()

    def run(attempt):
        address = "postgres://user:hunter2@host/db"
        raise ValueError(f"no connection to {address}\0")

    drain(run)
    (row,) = attempts(workload_id)
    assert row.failure_kind == "exception"
    assert "ValueError: no connection to" in row.error
    assert "[redacted]" in row.error
    assert "hunter2@" not in row.error.replace('"postgres://user:hunter2@host/db"', "")


def test_checkpoints_are_there_for_the_next_attempt():
    workload_id = admit()
    seen = []

    def run(attempt):
        seen.append([c.state for c in attempt.checkpoints])
        attempt.checkpoint({"n": attempt.attempt_number})
        attempt.checkpoint([2], key="k")
        assert attempt.checkpoint([2], key="k") == attempt.last_checkpoint
        seen.append([c.state for c in attempt.checkpoints])
        if attempt.attempt_number == 1:
            raise TimeoutError
        return attempt.last_checkpoint.state

    drain(run)
    assert seen == [[], [{"n": 1}, [2]], [{"n": 1}, [2]], [{"n": 1}, [2], {"n": 2}, [2]]]
    assert get(workload_id).result.output == [2]


@pytest.mark.parametrize(
    ("saved", "kind"),
    [
        (object(), "checkpoint_invalid"),
        ("x" * 70_000, "checkpoint_too_large"),
        ({"password": "hunter2"}, "checkpoint_secret"),
    ],
)
def test_a_checkpoint_that_cannot_be_kept_fails_the_attempt_with_a_clear_kind(saved, kind):
    workload_id = admit()
    drain(lambda attempt: attempt.checkpoint(saved))
    assert [row.failure_kind for row in attempts(workload_id)] == [kind]


def test_another_state_under_a_used_key_fails_the_attempt():
    workload_id = admit()
    drain(lambda attempt: (attempt.checkpoint(1, key="k"), attempt.checkpoint(2, key="k")))
    assert [row.failure_kind for row in attempts(workload_id)] == ["checkpoint_conflict"]


def lose_answers(monkeypatch, verb, times, error=OperationalError):
    """Let the verb do its work, but let its first answers be lost. Returns the calls' arguments."""
    real = getattr(authority, verb)
    calls = []

    def lossy(*args, **kwargs):
        calls.append((args, kwargs))
        answer = real(*args, **kwargs)
        if len(calls) <= times:
            raise error("the server closed the connection")
        return answer

    monkeypatch.setattr(authority, verb, lossy)
    return calls


@pytest.mark.parametrize("error", [OperationalError, InterfaceError, IntegrityError])
def test_a_completion_whose_answer_is_lost_is_repeated_as_it_was(monkeypatch, error):
    calls = lose_answers(monkeypatch, "complete", 3, error)
    workload_id = admit()
    assert dict(drain(lambda attempt: "out").endings) == {"succeeded": 1}
    assert len(calls) == 4
    assert all(call == calls[0] for call in calls)
    assert [e.to_state for e in get(workload_id).events.all()].count("SUCCEEDED") == 1


def test_a_failure_whose_answer_is_lost_is_repeated_as_it_was(monkeypatch):
    calls = lose_answers(monkeypatch, "fail", 3)
    workload_id = admit(retry_policy=RetryPolicy(max_attempts=2, initial_delay_ms=3_600_000, max_delay_ms=3_600_000))

    def run(attempt):
        raise TimeoutError("slow")

    drain(run)
    assert len(calls) == 4
    assert all(call == calls[0] for call in calls)
    assert get(workload_id).retry_count == 1


def test_a_claim_whose_answer_is_lost_is_asked_for_again_by_the_same_request(monkeypatch):
    calls = lose_answers(monkeypatch, "claim_next", 2)
    ids = [admit() for _ in range(3)]
    drain(lambda attempt: "out", concurrency=3)
    assert {kwargs["request_id"] for _, kwargs in calls[:3]} == {calls[0][1]["request_id"]}
    assert calls[3][1]["request_id"] != calls[0][1]["request_id"]
    assert [len(attempts(i)) for i in ids] == [1, 1, 1]
    assert [state(i) for i in ids] == ["SUCCEEDED"] * 3


def test_a_checkpoint_whose_answer_is_lost_is_saved_once(monkeypatch):
    lose_answers(monkeypatch, "checkpoint", 2)
    workload_id = admit()
    drain(lambda attempt: attempt.checkpoint({"a": 1}).sequence)
    assert get(workload_id).result.output == 1
    assert get(workload_id).checkpoints.count() == 1


def test_a_loss_of_the_database_is_logged_once_and_its_return_once(monkeypatch, caplog):
    lose_answers(monkeypatch, "complete", 5)
    admit()
    with caplog.at_level(logging.DEBUG, "workloads"):
        drain(lambda attempt: "out")
    told = [r.message for r in caplog.records if "database" in r.message]
    assert len(told) == 2
    assert "does not answer" in told[0]
    assert "answers again" in told[1]


def test_a_refusal_is_final(monkeypatch):
    calls = []

    def refuse(fence, **report):
        calls.append(report)
        raise WorkloadError("WORKLOAD_LEASE_EXPIRED", "over")

    monkeypatch.setattr(authority, "complete", refuse)
    admit()
    assert dict(drain(lambda attempt: "out").endings) == {"lost": 1}
    assert len(calls) == 1


def test_work_admitted_without_what_its_handler_needs_is_failed_not_run():
    workload_id = admit()
    able = admit(capability_snapshot={"files:read"})
    drain(registry(lambda attempt: "ran", capabilities={"files:read"}))
    (row,) = attempts(workload_id)
    assert (row.failure_kind, state(workload_id)) == ("capability_missing", "DEAD_LETTER")
    assert "files:read" in row.error
    assert state(able) == "SUCCEEDED"


def test_what_a_handler_leaves_open_does_not_swallow_its_report():
    workload_id = admit()

    def run(attempt):
        transaction.set_autocommit(False)
        connection.cursor().execute("SELECT 1")
        return "out"

    def enter(attempt):
        transaction.atomic().__enter__()
        connection.cursor().execute("SELECT 1")
        return "out"

    drain(run)
    assert state(workload_id) == "SUCCEEDED"
    workload_id = admit()
    drain(enter)
    assert state(workload_id) == "SUCCEEDED"


def test_a_handler_may_checkpoint_within_its_own_transaction():
    workload_id = admit()

    def run(attempt):
        with transaction.atomic():
            attempt.checkpoint({"a": 1})
        try:
            with transaction.atomic():
                attempt.checkpoint({"a": 2})
                raise ValueError
        except ValueError:
            pass
        return "out"

    drain(run)
    assert [c.state for c in get(workload_id).checkpoints.all()] == [{"a": 1}]
    assert state(workload_id) == "SUCCEEDED"


def test_a_record_that_cannot_be_read_fails_its_own_attempt(monkeypatch):
    def broken(fence):
        raise ValueError("not to be decoded")

    monkeypatch.setattr(authority, "context", broken)
    workload_id = admit()
    drain(lambda attempt: "out")
    (row,) = attempts(workload_id)
    assert (row.failure_kind, state(workload_id)) == ("exception", "DEAD_LETTER")


def test_work_of_an_unknown_definition_is_given_back_without_spending_an_attempt():
    workload_id = admit("new", priority=5)
    known = admit()
    with working(registry(lambda attempt: "out"), definitions=["new", "test"]):
        # The unknown one is first in the queue, and must not hide the other for ever.
        eventually(lambda: state(known) == "SUCCEEDED")
    workload = get(workload_id)
    assert (workload.attempt_count, workload.uncounted_releases) == (1, 1)
    assert "no handler for new@1" in workload.events.filter(to_state="READY").last().evidence["reason"]


def test_a_worker_asks_only_for_what_it_knows():
    workload_id = admit("new")
    other = admit("test", definition_revision="2")
    assert not drain(registry(lambda attempt: "out", revisions=["1"])).endings
    assert [state(workload_id), state(other)] == ["READY", "READY"]
    assert not drain(Registry()).endings


def test_a_batch_is_claimed_up_to_the_room_there_is(monkeypatch):
    limits = []
    real = authority.claim_next
    monkeypatch.setattr(authority, "claim_next", lambda **k: (limits.append(k["limit"]), real(**k))[1])
    ids = [admit() for _ in range(7)]
    summary = drain(lambda attempt: "out", concurrency=4)
    assert summary.endings["succeeded"] == 7
    assert [state(i) for i in ids] == ["SUCCEEDED"] * 7
    assert limits[0] == 4
    assert max(limits) == 4


def test_drain_waits_for_what_its_own_work_makes_claimable():
    parent = admit()
    child = admit(dependencies=[_on(parent)])

    def run(attempt):
        time.sleep(0.3)
        return "out"

    drain(run, concurrency=2)
    assert [state(parent), state(child)] == ["SUCCEEDED", "SUCCEEDED"]


def _on(workload_id):
    from workloads.contract import Dependency

    return Dependency(workload_id=workload_id)


def test_a_late_completion_is_refused_and_not_repeated():
    workload_id = admit(timeouts=Timeouts(execution_ms=200), retry_policy=ONCE)

    def run(attempt):
        time.sleep(0.6)
        with pytest.raises(LeaseLost):
            attempt.checkpoint(1)
        return "late"

    assert dict(drain(run).endings) == {"lost": 1}
    assert state(workload_id) == "DEAD_LETTER"
    assert not hasattr(get(workload_id), "result") or get(workload_id).events.last().actor == "authority.deadline"


@pytest.mark.parametrize(
    "bad", [{"concurrency": 0}, {"lease_ms": 2}, {"poll_ms": 0}, {"grace_ms": -1}, {"poll_ms": 1.5}]
)
def test_a_worker_refuses_numbers_that_make_no_sense(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        loop.Worker(handlers=Registry(), **bad)
