"""Completions: at once on an idle line, together while a call is under way, each with its own answer once committed."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager

import pytest
from django.db import OperationalError, connection, transaction

from tests.worker.tools import PATIENCE_S, admit, attempts, drain, eventually, state, working
from workloads import authority
from workloads.errors import WorkloadError
from workloads.models import Event, Result, Workload
from workloads.worker import completions, heartbeats
from workloads.worker.completions import Completion, Completions
from workloads.worker.port import Unanswered
from workloads.worker.site import COMPLETIONS_A_CALL, SitePort

pytestmark = pytest.mark.django_db(transaction=True)


class Line:
    """What the authority's verbs for completions are told, and a first call that is held up until it may go on."""

    def __init__(self, monkeypatch):
        self.go_on = threading.Event()
        self.begun = threading.Event()
        self.alone = []
        self.together = []
        self._one, self._many = authority.complete, authority.complete_many
        monkeypatch.setattr(authority, "complete", self.complete)
        monkeypatch.setattr(authority, "complete_many", self.complete_many)

    def complete(self, fence, **report):
        self.alone.append(fence.workload_id)
        if not self.begun.is_set():
            self.begun.set()
            assert self.go_on.wait(PATIENCE_S)
        return self._one(fence, **report)

    def complete_many(self, reports):
        self.together.append([report.fence.workload_id for report in reports])
        return self._many(reports)


@pytest.fixture
def line(monkeypatch):
    return Line(monkeypatch)


def waiting(worker):
    return len(worker._reporter._completions._waiting)


@contextmanager
def grouped(line, size, body=lambda attempt: "out", before=lambda ids: None, **options):
    """Let a worker have `size` completions ready that wait for the one that is under way; yield them and the worker."""
    ids = [admit() for _ in range(size + 1)]

    def run(attempt):
        if attempt.workload_id != ids[0]:
            assert line.begun.wait(PATIENCE_S)
            return body(attempt)
        return "first"

    with working(run, **{"concurrency": size + 1} | options) as worker:
        eventually(lambda: waiting(worker) == size)
        before(ids[1:])
        yield ids, worker


def test_the_first_goes_out_at_once_and_the_others_together(line):
    with grouped(line, 5) as (ids, worker):
        # Their handlers have ended; their work is theirs until that is recorded.
        assert {state(i) for i in ids} == {"RUNNING"}
        assert worker._count() == 6
        line.go_on.set()
        eventually(lambda: worker._endings["succeeded"] == 6)
    assert line.alone == ids[:1]
    assert [sorted(group) for group in line.together] == [sorted(ids[1:])]
    assert [state(i) for i in ids] == ["SUCCEEDED"] * 6
    assert Result.objects.count() == 6
    assert list(authority.verify()) == []


def test_on_an_idle_line_each_goes_alone(line):
    line.go_on.set()
    ids = [admit() for _ in range(3)]
    drain(lambda attempt: "out")
    assert (line.alone, line.together) == (ids, [])


def test_no_more_is_held_than_there_is_room_for_while_reports_are_under_way(line):
    with grouped(line, 3, poll_ms=20) as (ids, worker):
        later = [admit() for _ in range(4)]
        for _ in range(5):
            worker._news.put("freed")
        assert not line.go_on.wait(0.3)
        assert [state(i) for i in later] == ["READY"] * 4
        line.go_on.set()
        eventually(lambda: [state(i) for i in ids + later] == ["SUCCEEDED"] * 8)


def test_each_of_a_group_has_its_own_answer(line, caplog):
    def disturb(ids):
        authority.cancel(ids[0], actor="op")
        authority.cancel(ids[1], actor="op", force=True)

    with caplog.at_level(logging.INFO, "workloads"), grouped(line, 4, before=disturb) as (ids, worker):
        line.go_on.set()
        eventually(lambda: sum(worker._endings.values()) == 5)
    assert dict(worker._endings) == {"succeeded": 3, "cancelled": 1, "lost": 1}
    assert sorted(state(i) for i in ids[1:]) == ["CANCELLED", "CANCELLED", "SUCCEEDED", "SUCCEEDED"]
    assert [row.status for i in ids[1:3] for row in attempts(i)] == ["CANCELLED"] * 2
    assert len([r for r in caplog.records if "without a report" in r.message]) == 1


@pytest.mark.parametrize("error", [OperationalError("the server closed the connection"), ValueError("unforeseen")])
def test_a_group_whose_answer_is_lost_is_said_one_by_one_and_recorded_once(line, error):
    real = line._many

    def lossy(reports):
        real(reports)
        raise error

    line._many = lossy
    with grouped(line, 4) as (ids, worker):
        line.go_on.set()
        eventually(lambda: worker._endings["succeeded"] == 5)
    assert sorted(line.alone) == sorted(ids)
    assert len(line.together) == 1
    assert Event.objects.filter(to_state="SUCCEEDED").count() == Result.objects.count() == 5


def test_what_is_wrong_with_one_befalls_none_of_the_others(line, caplog):
    poisoned = []
    one, many = line._one, line._many

    def fail(fence, **report):
        if fence.workload_id in poisoned:
            raise ValueError("not to be recorded")
        return one(fence, **report)

    def fail_all(reports):
        assert not {report.fence.workload_id for report in reports} & set(poisoned), "not to be recorded"
        return many(reports)

    line._one, line._many = fail, fail_all
    with grouped(line, 4, before=lambda ids: poisoned.append(ids[2])) as (ids, worker):
        line.go_on.set()
        eventually(lambda: sum(worker._endings.values()) == 5)
    assert dict(worker._endings) == {"succeeded": 4, "lost": 1}
    assert [state(i) for i in ids if i not in poisoned] == ["SUCCEEDED"] * 4
    assert state(poisoned[0]) == "RUNNING"
    assert len([r for r in caplog.records if "was left" in r.message]) == 1


def test_a_database_that_is_away_is_met_by_each_and_told_once(line, caplog):
    is_away = threading.Event()
    one, many = line._one, line._many

    def away(real):
        def ask(*args, **kwargs):
            if is_away.is_set():
                raise OperationalError("connection refused")
            return real(*args, **kwargs)

        return ask

    line._one, line._many = away(one), away(many)
    with caplog.at_level(logging.INFO, "workloads"), grouped(line, 4) as (ids, worker):
        is_away.set()
        line.go_on.set()
        # All five, each on its own, again and again.
        eventually(lambda: min(line.alone.count(i) for i in ids) >= 3)
        is_away.clear()
        eventually(lambda: worker._endings["succeeded"] == 5)
    assert [state(i) for i in ids] == ["SUCCEEDED"] * 5
    told = [r.message for r in caplog.records if "database" in r.message]
    assert ["does not answer" in told[0], "answers again" in told[1], len(told)] == [True, True, 2]


def test_a_row_that_somebody_holds_holds_up_no_other_completion_for_long(line, monkeypatch):
    if connection.vendor != "postgresql":
        pytest.skip("MariaDB waits for the row by its own clock; SQLite has one writer")
    monkeypatch.setattr(completions, "ANSWER_S", 0.5)
    with grouped(line, 4) as (ids, worker), transaction.atomic():
        list(Workload.objects.select_for_update().filter(workload_id=ids[2]))
        line.go_on.set()
        eventually(lambda: worker._endings["succeeded"] == 4)
        assert worker._count() == 1
    assert [state(i) for i in ids] == ["SUCCEEDED"] * 5


def test_a_stopping_worker_reports_what_has_ended(line):
    with grouped(line, 4, grace_ms=0) as (ids, worker):
        worker.stop()
        line.go_on.set()
    assert [state(i) for i in ids] == ["SUCCEEDED"] * 5
    assert dict(worker._endings) == {"succeeded": 5}


def test_other_work_is_run_while_reports_are_under_way(line):
    with grouped(line, 1, concurrency=4) as (ids, worker):
        seen = []
        others = [admit(), admit()]
        eventually(lambda: waiting(worker) == 3)
        seen += [state(i) for i in ids + others]
        line.go_on.set()
        eventually(lambda: worker._endings["succeeded"] == 4)
    assert seen == ["RUNNING"] * 4


def test_a_heartbeat_that_comes_after_a_completion_is_no_loss(line, caplog, monkeypatch):
    monkeypatch.setattr(heartbeats, "BEATS_A_LEASE", 20)
    one, beat = line._one, authority.heartbeat_many
    answers, recorded = [], threading.Event()

    def complete(fence, **report):
        record = one(fence, **report)
        recorded.set()
        # Recorded, and beaten for, before the answer is heard.
        eventually(lambda: any(isinstance(answer, WorkloadError) for answer in answers))
        return record

    def heartbeat_many(items):
        found = beat(items)
        if recorded.is_set():
            answers.extend(found)
        return found

    line._one = complete
    line.go_on.set()
    monkeypatch.setattr(authority, "heartbeat_many", heartbeat_many)
    admit()
    assert dict(drain(lambda attempt: "out", lease_ms=10_000).endings) == {"succeeded": 1}
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == []


# How much one call brings.


class Scripted:
    """A port whose authority takes completions, and answers as it is told."""

    def __init__(self, most=500):
        self.completions_a_call = most
        self.groups = []
        self.busy = threading.Event()
        self.go_on = threading.Event()
        self.authority = self

    def ask_once(self, call, *, bound_s):
        return call()

    def complete(self, fence, **report):
        self.groups.append(1)
        self.busy.set()
        assert self.go_on.wait(PATIENCE_S)

    def complete_many(self, reports):
        self.groups.append(len(reports))
        return [None] * len(reports)


class Held:
    """What a completion needs of a lease."""

    def __init__(self):
        self.claim = self
        self.fence = None
        self.attempt_id = "a"


def say_behind_one(port, outputs):
    """Say these while the first completion of all is under way; return what was answered and what was to go alone."""
    answered, alone = [], []
    line = Completions(port=port, answered=answered.extend, alone=alone.append)
    first = threading.Thread(target=line.say, args=(Completion(Held(), None),))
    first.start()
    assert port.busy.wait(PATIENCE_S)
    for output in outputs:
        line.say(Completion(Held(), output))
    assert line.are_under_way
    port.go_on.set()
    first.join(PATIENCE_S)
    assert not line.are_under_way
    return answered, alone


def test_a_call_brings_a_bounded_number_and_a_bounded_length():
    port = Scripted(most=10)
    answered, alone = say_behind_one(port, [None] * 25)
    assert (port.groups, len(answered), alone) == ([1, 10, 10, 5], 26, [])
    port = Scripted()
    long = {"a": ["x" * 400_000]}
    answered, _ = say_behind_one(port, [long] * 7)
    assert (port.groups, len(answered)) == ([1, 3, 3, 1], 8)


def test_answers_that_are_not_as_many_as_the_questions_are_none():
    port = Scripted()
    port.complete_many = lambda reports: [None]
    answered, alone = say_behind_one(port, [1, 2, 3])
    assert [completion.output for completion in alone] == [1, 2, 3]
    assert len(answered) == 1


@pytest.mark.parametrize("error", [Unanswered("away"), WorkloadError("INTERNAL_ERROR", "a fault"), KeyboardInterrupt()])
def test_a_call_that_fails_as_a_whole_leaves_each_to_itself(error):
    port = Scripted()

    def fail(reports):
        raise error

    port.complete_many = fail
    answered, alone = say_behind_one(port, [1, 2])
    assert ([c.output for c in alone], len(answered)) == ([1, 2], 1)


def test_what_strikes_from_outside_leaves_each_to_itself_and_the_line_free(caplog):
    port = Scripted()
    port.go_on.set()
    heard, alone = [], []

    def strike(answers):
        if heard:
            heard.extend(answers)
            return
        heard.append("struck")
        raise KeyboardInterrupt

    line = Completions(port=port, answered=strike, alone=alone.append)
    line.say(Completion(Held(), 1))
    assert ([c.output for c in alone], line.are_under_way) == ([1], False)
    line.say(Completion(Held(), 2))
    assert [c.output for c, _ in heard[1:]] == [2]
    assert len([r for r in caplog.records if "interrupted" in r.message]) == 1


def test_within_a_transaction_of_the_callers_own_nothing_is_grouped():
    port = SitePort()
    assert port.completions_a_call == COMPLETIONS_A_CALL
    with transaction.atomic():
        assert port.completions_a_call == 1
