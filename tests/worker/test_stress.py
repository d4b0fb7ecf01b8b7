"""Bodies that do what no body should: each attempt ends as the contract says, and the worker goes on to other work."""

from __future__ import annotations

import gc
import logging
import re
import signal
import threading
import time
import weakref
from typing import Any

import pytest

from tests.worker.test_attempts import lose_answers
from tests.worker.tools import admit, attempts, drain, eventually, get, run_beside_others, state, working
from workloads import authority, conf
from workloads.contract import RetryPolicy
from workloads.lifecycle import secrets
from workloads.worker import LeaseLost, Stopped, WorkloadFailure, heartbeats

pytestmark = pytest.mark.django_db(transaction=True)

LONGEST_S = 30.0
ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def often(monkeypatch):
    """Let heartbeats come a hundred times in a lease."""
    monkeypatch.setattr(heartbeats, "BEATS_A_LEASE", 100)


# What is raised.


class Odd(BaseException):
    pass


class Textless(Exception):
    def __str__(self):
        raise SystemExit("no text")

    __repr__ = __str__


class Unsaid(WorkloadFailure):
    """Does not call what it extends."""

    def __init__(self, number):
        self.number = number


class Named(WorkloadFailure):
    kind = "named"
    effect = "none"

    def __init__(self):
        pass


class Broken(WorkloadFailure):
    @property
    def kind(self):
        raise KeyboardInterrupt

    @kind.setter
    def kind(self, value):
        pass


def recurse(depth=0):
    return recurse(depth + 1)


def raise_from_itself():
    error = ValueError("a chain without an end")
    error.__cause__ = error.__context__ = error
    raise error


def throw(error):
    raise error


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (recurse, "exception", "RecursionError: maximum recursion depth exceeded"),
        (lambda: [0] * (1 << 60), "exception", "MemoryError"),
        (lambda: throw(Odd("odd")), "exception", "Odd: odd"),
        (lambda: throw(StopIteration(3)), "exception", "StopIteration: 3"),
        (lambda: throw(Textless()), "exception", "Textless: (its text could not be made)"),
        (
            lambda: throw(ExceptionGroup("many", [OSError(n) for n in range(1_000)])),
            "exception",
            "ExceptionGroup: many",
        ),
        (raise_from_itself, "exception", "ValueError: a chain without an end"),
        (lambda: throw(ValueError("a\0b\ud800c")), "exception", "ValueError: a\ufffdb\ufffdc"),
        (lambda: throw(ValueError("long " * 250_000)), "exception", "ValueError: long long"),
        (lambda: throw(Unsaid(3)), "exception", "3"),
        (lambda: throw(Named()), "named", "named"),
        (lambda: throw(Broken("x", "y")), "exception", "Broken: (what it says could not be read)"),
        (lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN), "exception", "ValueError: signal only works in main"),
        (lambda: throw(LeaseLost("says who")), None, None),
    ],
)
def test_whatever_is_raised_is_reported(body, kind, said):
    row = run_beside_others(lambda attempt: body())
    if kind is None:
        assert row.status == "RUNNING"
        return
    assert (row.status, row.failure_kind) == ("FAILED", kind)
    assert row.error.startswith(said)
    assert len(row.error) <= conf.limits().max_error_chars


@pytest.mark.parametrize("before", [0, 7_950, 99_970])
def test_a_secret_in_an_error_is_never_stored(before):
    key = "AKIA" + "ABCDEFGHIJKLMNOP"
    row = run_beside_others(lambda attempt: throw(ValueError("." * before + f" {key} postgres://u:hunter2@h/d ")))
    assert row.status == "FAILED"
    assert "ABCDEFGHIJ" not in row.error.partition("Traceback")[0]
    assert secrets.find_in_text(row.error) is None


def test_what_is_raised_too_late_leaves_the_attempt_and_not_the_worker(monkeypatch):
    real = authority.complete
    raised = []

    def cut(fence, **report):
        if not raised:
            raised.append(fence.workload_id)
            # As by what limits a handler's time, from another thread.
            raise KeyboardInterrupt
        return real(fence, **report)

    monkeypatch.setattr(authority, "complete", cut)
    first, second = admit(), admit()
    summary = drain(lambda attempt: "out")
    assert dict(summary.endings) == {"lost": 1, "succeeded": 1}
    assert raised == [first]
    assert [state(first), state(second)] == ["RUNNING", "SUCCEEDED"]


# What is returned and saved.


class Trap(dict):
    def items(self):
        raise SystemExit("a trap")


def cycle():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        (Trap(a=1), "output_invalid"),
        (cycle(), "output_invalid"),
        ([10**4_400], "output_invalid"),
        (threading.Lock(), "output_invalid"),
        ((n for n in range(3)), "output_invalid"),
        ({"a": ["x" * 1_000_000]}, "output_too_large"),
        ({"a": "-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----"}, "output_secret"),
    ],
)
def test_whatever_is_returned_is_judged(output, kind):
    row = run_beside_others(lambda attempt: output)
    assert (row.status, row.failure_kind) == ("FAILED", kind)
    assert "MIIB" not in row.error


@pytest.mark.parametrize(
    ("saved", "kind"),
    [
        (cycle(), "checkpoint_invalid"),
        ({1: 2}, "checkpoint_invalid"),
        (float("inf"), "checkpoint_invalid"),
        ("a\0", "checkpoint_invalid"),
        (b"x", "checkpoint_invalid"),
        (["x" * 100_000], "checkpoint_too_large"),
        ("Authorization: Bearer abcdefghijklmnopqrstuvwxyz0123456789", "checkpoint_secret"),
        (Trap(a=1), "exception"),
    ],
)
def test_whatever_is_saved_is_judged(saved, kind):
    row = run_beside_others(lambda attempt: attempt.checkpoint(saved))
    assert (row.status, row.failure_kind) == ("FAILED", kind)
    assert "abcdefghij" not in row.error


def test_too_many_checkpoints_fail_the_attempt(settings):
    settings.WORKLOADS = {**settings.WORKLOADS, "MAX_CHECKPOINTS": 5}
    row = run_beside_others(lambda attempt: [attempt.checkpoint(n) for n in range(6)])
    assert (row.failure_kind, row.record.checkpoints.count()) == ("checkpoint_too_large", 5)


def test_a_report_says_the_same_however_often_it_is_repeated_and_whatever_becomes_of_the_output(monkeypatch):
    kept = {"n": 0}
    real = authority.complete

    def grow(fence, **report):
        kept["n"] += 1
        return real(fence, **report)

    monkeypatch.setattr(authority, "complete", grow)
    calls = lose_answers(monkeypatch, "complete", 3)
    workload_id = admit()
    assert dict(drain(lambda attempt: kept).endings) == {"succeeded": 1}
    assert len(calls) == 4
    assert get(workload_id).result.output == {"n": 0}


def test_so_does_a_checkpoint(monkeypatch):
    kept = {"n": 0}
    real = authority.checkpoint

    def grow(fence, state, **report):
        kept["n"] += 1
        return real(fence, state, **report)

    monkeypatch.setattr(authority, "checkpoint", grow)
    calls = lose_answers(monkeypatch, "checkpoint", 3)
    workload_id = admit()
    drain(lambda attempt: attempt.checkpoint(kept).state)
    assert len(calls) == 4
    assert get(workload_id).result.output == {"n": 0}


# What is kept in memory.


class Big(dict):
    """A value that can be watched."""


@pytest.mark.parametrize("ends", ["returns", "fails", "is unfit", "saves"])
def test_nothing_of_an_attempt_is_kept_once_it_has_ended(ends):
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = 0

    def run(attempt):
        nonlocal most
        out = Big(a="x" * 1_000)
        alive.add(attempt)
        alive.add(out)
        most = max(most, len(alive))
        if ends == "fails":
            raise WorkloadFailure("custom", "no") from ValueError(out)
        if ends == "is unfit":
            out["a"] = object()
        if ends == "saves":
            attempt.checkpoint(out, key="k")
        return out

    ids = [admit(input={"x": ["y" * 1_000]}, retry_policy=ONCE) for _ in range(40)]
    # By no collector: what a worker lets go of is gone at once.
    gc.collect()
    gc.disable()
    try:
        drain(run, concurrency=2)
        left = len(alive)
    finally:
        gc.enable()
    assert all(state(i) in {"SUCCEEDED", "DEAD_LETTER"} for i in ids)
    assert left == 0
    assert most <= 2 * 3


@pytest.mark.long
def test_hundreds_of_attempts_leave_no_more_objects_than_tens():
    def count(total):
        for _ in range(total):
            admit(input={"x": ["y" * 100]})
        drain(lambda attempt: [attempt.checkpoint({"n": 1}).sequence], concurrency=2)
        gc.collect()
        return len(gc.get_objects())

    count(20)
    few = count(20)
    assert count(400) - few < 400


# What holds the interpreter.


def seconds_of(work, argument):
    begun = time.perf_counter()
    work(argument)
    return time.perf_counter() - begun


def sum_up(number):
    return sum(range(number))


def backtrack(length):
    return re.match(r"(?:a|a)+$", "a" * length + "b")


def raise_to_a_power(exponent):
    return 7**exponent


def hold(work, argument, factor, seconds):
    """Hold the interpreter for about so many seconds, in one call into C."""
    while (took := seconds_of(work, argument)) < 0.02:
        argument = factor(argument)
    begun = time.perf_counter()
    while took < seconds:
        argument = factor(argument)
        took = seconds_of(work, argument)
    return time.perf_counter() - begun


HOLDERS = [
    pytest.param((sum_up, 100_000, lambda n: n * 2), id="a sum"),
    pytest.param((backtrack, 12, lambda n: n + 1), id="an expression", marks=pytest.mark.long),
    pytest.param((raise_to_a_power, 100_000, lambda n: n * 3 // 2), id="a power", marks=pytest.mark.long),
]


@pytest.mark.parametrize("holder", HOLDERS)
def test_who_holds_the_interpreter_past_its_lease_is_refused_and_its_work_run_again(holder, caplog):
    workload_id = admit()
    others = []
    seen = []

    def run(attempt):
        if attempt.workload_id == workload_id and attempt.attempt_number == 1:
            hold(*holder, 3.2)
            seen.append(attempt.lease_left_ms)
        return "out"

    with caplog.at_level(logging.INFO, "workloads"), working(run, lease_ms=1_500) as worker:
        eventually(lambda: worker._endings["lost"] == 1)
        others.append(admit())
        eventually(lambda: state(others[0]) == "SUCCEEDED")
        eventually(lambda: authority.recover_expired() == [workload_id])
        eventually(lambda: state(workload_id) == "SUCCEEDED")
    assert seen == [0]
    assert [row.status for row in attempts(workload_id)] == ["WORKER_LOST", "SUCCEEDED"]
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) <= 4


def test_who_holds_it_for_a_part_of_its_lease_keeps_it():
    """The next heartbeat, with 6,000 ms left, falls into the 1.2 s for which the interpreter is held."""

    left = []

    def run(attempt):
        size = 1_000_000
        # The shortest of some: what another process held the core for is not the work's.
        size = int(size * 1.2 / min(seconds_of(sum_up, size) for _ in range(5)))
        eventually(lambda: attempt.lease_left_ms < 6_600)
        sum_up(size)
        left.append(attempt.lease_left_ms)
        eventually(lambda: attempt.lease_left_ms > 7_000)
        attempt.check()

    row = run_beside_others(run, lease_ms=9_000)
    assert row.status == "SUCCEEDED"
    assert left[0] < 6_000 or left[0] > 7_000


def test_answers_to_heartbeats_that_come_too_late_keep_nothing(monkeypatch):
    real = authority.heartbeat_many

    seen = []

    def slow(items):
        answers = real(items)
        eventually(lambda: seen, LONGEST_S)
        return answers

    monkeypatch.setattr(authority, "heartbeat_many", slow)

    def run(attempt):
        until = time.monotonic() + LONGEST_S
        try:
            while time.monotonic() < until:
                attempt.check()
                time.sleep(0.01)
        except Stopped as stopped:
            seen.append((type(stopped), attempt.lease_left_ms))
            raise

    row = run_beside_others(run, lease_ms=2_500)
    assert row.status == "RUNNING"
    assert seen == [(LeaseLost, 0)]


def test_heartbeats_that_fail_for_another_reason_are_told_once_and_go_on(monkeypatch, caplog, often):
    real = authority.heartbeat_many
    fails = []

    def broken(items):
        if len(fails) < 5:
            fails.append(1)
            raise ValueError("not to be decoded")
        return real(items)

    monkeypatch.setattr(authority, "heartbeat_many", broken)
    with caplog.at_level(logging.INFO, "workloads"):
        row = run_beside_others(
            lambda attempt: eventually(lambda: "answered again" in caplog.text, LONGEST_S), lease_ms=20_000
        )
    assert row.status == "SUCCEEDED"
    told = [r.message for r in caplog.records if "heartbeats" in r.message]
    assert told == ["The heartbeats fail. Trying again.", "The heartbeats are answered again."]


def test_one_call_that_fails_while_others_are_answered_is_one_loss(monkeypatch, caplog, often):
    calls = lose_answers(monkeypatch, "complete", 6)
    monkeypatch.setattr("workloads.worker.news.LONGEST_PAUSE_S", 0.3)
    first = admit()
    with caplog.at_level(logging.INFO, "workloads"), working(lambda attempt: "out", concurrency=2, lease_ms=3_000):
        eventually(lambda: len(calls) >= 3)
        eventually(lambda: len(calls) >= 7)
    assert state(first) == "SUCCEEDED"
    told = [r.message for r in caplog.records if "database" in r.message]
    assert ["does not answer" in told[0], "answers again" in told[1], len(told)] == [True, True, 2]


def test_claims_that_fail_are_told_once_and_asked_for_again(monkeypatch, caplog):
    real = authority.claim_next
    fails = []

    def broken(**asked):
        if len(fails) < 4:
            fails.append(1)
            raise ValueError("not to be decoded")
        return real(**asked)

    monkeypatch.setattr(authority, "claim_next", broken)
    workload_id = admit()
    with caplog.at_level(logging.INFO, "workloads"), working(lambda attempt: "out"):
        eventually(lambda: state(workload_id) == "SUCCEEDED")
    told = [r.message for r in caplog.records if "can" in r.message and "claimed" in r.message]
    assert told == ["Work can't be claimed: not to be decoded. Trying again.", "Work can be claimed again."]
    fails.clear()
    with pytest.raises(ValueError, match="not to be decoded"):
        drain(lambda attempt: "out")
