"""Claiming: one question is enough to begin, and places that are freed one by one are filled together."""

from __future__ import annotations

import threading
import time

import pytest
from django.db import connection

from tests.worker.tools import PATIENCE_S, admit, drain, eventually, state, working
from workloads import authority
from workloads.contract import Timeouts
from workloads.models import Admitted, Attempt
from workloads.worker import LeaseLost, loop

pytestmark = pytest.mark.django_db(transaction=True)


def asked(monkeypatch, verb):
    """Return the calls that are made of a verb from now on, each with its answer."""
    real = getattr(authority, verb)
    calls = []

    def ask(*args, **kwargs):
        answer = real(*args, **kwargs)
        calls.append((args, kwargs, answer))
        return answer

    monkeypatch.setattr(authority, verb, ask)
    return calls


def known(context):
    """Return what a handler is told of its work, all that was asked for by name."""
    names = set(type(context).__dataclass_fields__) - {"lease_left_ms"}
    return {name: getattr(context, name) for name in names}


def test_several_are_begun_with_one_question_and_know_what_the_authority_would_say(monkeypatch):
    calls = asked(monkeypatch, "context")
    ids = [
        admit(input={"n": n}, environment="test", connection_scopes={f"db/{n}"}, capability_snapshot={"gpu"})
        for n in range(3)
    ]
    seen = {}

    def run(attempt):
        mine = known(attempt.context)
        seen[attempt.workload_id, attempt.attempt_number] = mine
        assert mine == known(authority.context(attempt.fence))
        if attempt.attempt_number == 1:
            attempt.checkpoint({"n": attempt.input["n"]}, key="k")
            attempt.checkpoint("second")
            raise TimeoutError
        return [saved.state for saved in attempt.checkpoints]

    drain(run, concurrency=3, capabilities={"gpu"})
    assert len(seen) == 6
    # The handlers' own questions, and no others.
    assert len(calls) == 6
    for n, workload_id in enumerate(ids):
        assert authority.get(workload_id).result.output == [{"n": n}, "second"]
        assert seen[workload_id, 1]["checkpoints"] == ()
        assert seen[workload_id, 2]["checkpoints"][0].key == "k"


def test_a_record_that_cannot_be_read_fails_its_own_attempt_and_no_other():
    ids = [admit(input=n) for n in range(3)]
    with connection.cursor() as cursor:
        # As a hand or a disk may leave it.
        cursor.execute(f"UPDATE {Admitted._meta.db_table} SET input = %s WHERE workload_id = %s", ["{not JSON", ids[1]])
    drain(lambda attempt: attempt.input, concurrency=3)
    assert [state(i) for i in (ids[0], ids[2])] == ["SUCCEEDED"] * 2
    (row,) = Attempt.objects.filter(record__admitted__workload_id=ids[1])
    assert (row.status, row.failure_kind) == ("FAILED", "exception")


def test_heartbeat_deadlines_of_several_are_kept():
    ids = [admit(timeouts=Timeouts(heartbeat_ms=1_500)), admit(), admit(timeouts=Timeouts(heartbeat_ms=900_000))]
    paces = {}

    def run(attempt):
        paces[attempt.workload_id] = attempt._lease.beat_every_ms
        if attempt.workload_id == ids[0]:
            time.sleep(2.5)  # work that takes longer than its heartbeat deadline
        return "out"

    drain(run, concurrency=3, lease_ms=60_000)
    assert [state(i) for i in ids] == ["SUCCEEDED"] * 3
    assert [paces[i] for i in ids] == [500, 20_000, 20_000]


def test_a_body_is_not_begun_once_its_work_was_taken_back_in_between(monkeypatch):
    real = authority.claim_next

    def claim(**kwargs):
        claims = real(**kwargs)
        for claimed in claims:
            authority.cancel(claimed.workload_id, actor="op", force=True)
        return claims

    monkeypatch.setattr(authority, "claim_next", claim)
    for _ in range(2):
        admit()

    def run(attempt):
        with pytest.raises(LeaseLost):
            attempt.checkpoint(1)
        attempt.check()

    assert dict(drain(run, concurrency=2).endings) == {"lost": 2}


# How much is claimed at a time.


def test_places_that_are_freed_while_reports_are_under_way_are_filled_together(monkeypatch):
    size = 16
    limits = []
    real_claim, real_complete = authority.claim_next, authority.complete
    go_on, begun = threading.Event(), threading.Event()

    def complete(fence, **report):
        if not begun.is_set():
            begun.set()
            assert go_on.wait(PATIENCE_S)
        return real_complete(fence, **report)

    monkeypatch.setattr(authority, "complete", complete)
    monkeypatch.setattr(authority, "claim_next", lambda **k: (limits.append(k["limit"]), real_claim(**k))[1])
    monkeypatch.setattr(loop, "SOON_S", PATIENCE_S)
    first, *_ = [admit() for _ in range(2 * size)]

    def run(attempt):
        assert attempt.workload_id == first or begun.wait(PATIENCE_S)
        return "out"

    with working(run, concurrency=size) as worker:
        eventually(lambda: len(worker._reporter._completions._waiting) == size - 1)
        assert limits == [size]
        go_on.set()
        eventually(lambda: worker._endings["succeeded"] == 2 * size)
    # One place is free once the first is answered, and not worth a claim while the others are about to be.
    assert limits[:2] == [size, size]


def test_one_free_place_is_filled_at_once_where_no_other_will_be_free_soon():
    go_on = threading.Event()
    size = 8
    long = {admit() for _ in range(size - 1)}

    def run(attempt):
        if attempt.workload_id in long:
            assert go_on.wait(PATIENCE_S)
        return "out"

    with working(run, concurrency=size, poll_ms=60_000) as worker:
        eventually(lambda: worker._count() == size - 1)
        for turn in range(3):
            admit()
            worker._wake()
            eventually(lambda turn=turn: worker._endings["succeeded"] == turn + 1, 10)
        go_on.set()
        eventually(lambda: worker._endings["succeeded"] == size + 2)


def test_places_are_not_kept_empty_for_long_by_reports_that_are_not_answered(monkeypatch):
    size = 8
    go_on, begun = threading.Event(), threading.Event()
    real = authority.complete

    def complete(fence, **report):
        if fence.workload_id == held:
            begun.set()
            assert go_on.wait(PATIENCE_S)
        return real(fence, **report)

    monkeypatch.setattr(authority, "complete", complete)
    held = admit()
    busy = {admit() for _ in range(size - 2)}

    def run(attempt):
        if attempt.workload_id in busy:
            assert go_on.wait(PATIENCE_S)
        return "out"

    with working(run, concurrency=size) as worker:
        assert begun.wait(PATIENCE_S)
        eventually(lambda: worker._count() == size - 1)
        later = admit()
        # One place is free, and a report under way that takes its time.
        eventually(lambda: state(later) == "RUNNING", 10)
        go_on.set()
        eventually(lambda: worker._endings["succeeded"] == size)
