"""What befalls worker processes: killed at any point, halted for longer than a lease, a clock that is wrong."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from tests.faults import lethal
from tests.faults.aftermath import CANCELLED, FAILS, LEASE_MS, STEP, STOPS, Aftermath, noted
from tests.faults.gate import Gate
from tests.faults.nursery import Nursery
from tests.worker.tools import Command, admit, attempts, eventually, get, is_in_memory, state
from workloads import authority
from workloads.authority import clock
from workloads.contract import RetryPolicy

pytestmark = pytest.mark.django_db(transaction=True)

MOST_LIVES = 10


@pytest.fixture(autouse=True)
def _on_a_database_that_processes_share() -> None:
    if is_in_memory():
        pytest.skip("A database in memory has one process.")


@pytest.fixture(scope="module")
def nursery(django_db_setup: None, django_db_blocker: Any) -> Iterator[Nursery]:
    with django_db_blocker.unblock():
        if is_in_memory():
            pytest.skip("A database in memory has one process.")
        nursery = Nursery()
    yield nursery
    nursery.end()


def worker(*arguments: str, **environment: str) -> Command:
    """Start a worker process with the handlers of these tests."""
    return Command(
        "workloads_worker", "--handlers", "tests.faults.lethal", "--poll-ms", "50", *arguments, **environment
    )


# Killed.


@dataclass(frozen=True, kw_only=True)
class Point:
    """Where a worker dies, what state it leaves, and the attempts that there are in the end."""

    where: str
    when: str
    leaves: str
    ends: str
    definition: str = STEP
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.when} {self.where}"

    def as_told(self) -> dict[str, Any]:
        kind = "method" if ":" in self.where else "verb"
        # So that a beat comes before the body has ended.
        beats = {"beats": 300} if "heart" in self.where or ":" not in self.where else {}
        return {kind: self.where, "when": self.when, "nth": self.nth} | beats


def points() -> Iterator[Point]:
    """Every boundary of a worker's life at which it may die."""
    lost = "WORKER_LOST SUCCEEDED"
    for when in ("before", "commit"):
        yield Point(where="claim_next", when=when, leaves="READY", ends="SUCCEEDED")
        yield Point(where="complete", when=when, leaves="CHECKPOINTED", ends=lost)
        yield Point(where="checkpoint", when=when, leaves="RUNNING", ends=lost)
        yield Point(where="fail", when=when, leaves="RUNNING", ends=lost, definition=FAILS)
        yield Point(where="release", when=when, leaves="RUNNING", ends=lost, definition=STOPS)
        yield Point(
            where="confirm_cancel",
            when=when,
            leaves="CANCELLATION_REQUESTED",
            ends="WORKER_LOST",
            definition=CANCELLED,
        )
    yield Point(where="claim_next", when="after", leaves="RUNNING", ends=lost)
    yield Point(where="checkpoint", when="after", leaves="CHECKPOINTED", ends=lost)
    yield Point(where="complete", when="after", leaves="SUCCEEDED", ends="SUCCEEDED")
    yield Point(where="fail", when="after", leaves="READY", ends="FAILED SUCCEEDED", definition=FAILS)
    yield Point(where="release", when="after", leaves="READY", ends="RELEASED SUCCEEDED", definition=STOPS)
    yield Point(where="confirm_cancel", when="after", leaves="CANCELLED", ends="CANCELLED", definition=CANCELLED)
    # With work running, since a worker beats for what it runs alone.
    for when in ("before", "commit", "after"):
        for nth in (1, 2):
            yield Point(where="heartbeat_many", when=when, nth=nth, leaves="RUNNING", ends=lost, definition=STOPS)
        if when != "commit":
            yield Point(where="context", when=when, leaves="RUNNING", ends=lost)
            yield Point(where="lease:Lease.__init__", when=when, leaves="RUNNING", ends=lost)
            yield Point(where="loop:Worker._begin", when=when, leaves="RUNNING", ends=lost)
            yield Point(where="heartbeats:Heartbeats.add", when=when, leaves="RUNNING", ends=lost)
            yield Point(where="reports:Reporter._body", when=when, leaves="", ends=lost)
            yield Point(where="lease:Lease.begin_report", when=when, leaves="CHECKPOINTED", ends=lost)
            yield Point(where="heartbeats:Heartbeats.remove", when=when, leaves="SUCCEEDED", ends="SUCCEEDED")
            yield Point(where="loop:Worker._wind_up", when=when, leaves="SUCCEEDED", ends="SUCCEEDED")
    yield Point(where="reports:Reporter._run", when="before", leaves="RUNNING", ends=lost)


QUICK = {
    ("claim_next", "commit"),
    ("claim_next", "after"),
    ("loop:Worker._begin", "before"),
    ("heartbeat_many", "commit"),
    ("checkpoint", "after"),
    ("lease:Lease.begin_report", "after"),
    ("complete", "before"),
    ("complete", "commit"),
    ("complete", "after"),
    ("fail", "after"),
    ("release", "after"),
    ("confirm_cancel", "commit"),
}


def test_each_point_is_there() -> None:
    # Most are tried in long runs alone, where a name that is no more would be noticed late.
    for point in points():
        lethal.place(point.as_told())


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(p, id=f"{p} {p.nth}", marks=() if p.nth == 1 and (p.where, p.when) in QUICK else pytest.mark.long)
        for p in points()
    ],
)
def test_killed_at_a_point(point: Point, nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    workload_id = admit(point.definition, input=str(log))
    arguments = ["--drain", "--grace", "0", "--lease-ms", str(LEASE_MS), "--poll-ms", "50"]
    if point.where == "heartbeat_many":
        # Its own SIGTERM would end the body before a beat.
        arguments[1:3] = ["--grace", "30"]
    code, output = nursery.run(*arguments, **point.as_told(), log=str(log))
    assert code == -signal.SIGKILL, output
    after = Aftermath({workload_id: log}, monkeypatch)
    assert after.states[workload_id] == point.leaves or not point.leaves
    after.put_right()
    assert [row.status for row in attempts(workload_id)] == point.ends.split()
    after.check()


@pytest.mark.parametrize("thread", ["MainThread", "workloads-slot"])
@pytest.mark.parametrize(("first", "step"), [(30, 40), *(pytest.param(n, 4, marks=pytest.mark.long) for n in range(4))])
def test_killed_at_any_statement(
    thread: str, first: int, step: int, nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each statement of the worker's own that the thread begins, once for each number of commits before it."""
    life = ("--drain", "--lease-ms", str(LEASE_MS), "--poll-ms", "50")
    moments = tmp_path / "moments"
    workload_id = admit(STEP, input=str(tmp_path / "whole"))
    code, output = nursery.run(*life, thread=thread, moments=str(moments))
    assert (code, state(workload_id)) == (0, "SUCCEEDED"), output
    found = noted(moments)
    assert len(found) > 200
    dead: dict[str, Path] = {}
    left, missed = set(), []
    workload_id = ""
    for number, moment in enumerate(found[first::step]):
        # Threads that race need not pass through every moment of the first life each time, and through a few hardly
        # ever again; and a server may need a moment to see that the last one is dead.
        for again in range(MOST_LIVES):
            if not workload_id:
                log = tmp_path / f"log {number} {again}"
                workload_id = admit(STEP, input=str(log))
                version = get(workload_id).version
            code, output = nursery.run(*life, thread=thread, moment=moment)
            workload = get(workload_id)
            assert code or workload.state == "SUCCEEDED" or not noted(log), moment
            if workload.state == "READY":
                # Nothing has been done: the same work is the next one's.
                assert (workload.version, noted(log)) == (version, []), moment
            else:
                workload_id = ""
            dead[workload.workload_id] = log
            if code:
                break
        if not code:
            missed.append(moment)
            continue
        assert code == -signal.SIGKILL, (moment, output)
        left.add(workload.state)
    assert len(missed) <= 1 + number // 20, missed
    after = Aftermath(dead, monkeypatch)
    after.put_right()
    for workload_id in dead:
        statuses = [row.status for row in attempts(workload_id)]
        assert statuses == (["WORKER_LOST"] if after.is_held(workload_id) else []) + ["SUCCEEDED"]
    after.check()
    # Shown by `pytest -rP`.
    sys.stdout.write(f"{number + 1 - len(missed)} of {len(found)} moments\n")
    assert "RUNNING" in left
    assert step > 4 or "SUCCEEDED" in left
    assert "READY" in left if thread == "MainThread" else "CHECKPOINTED" in left


# Halted.


def halt(worker: Command) -> None:
    worker.child.send_signal(signal.SIGSTOP)


def wake(worker: Command) -> None:
    worker.child.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("definition", ["lethal.waits", pytest.param("lethal.deaf", marks=pytest.mark.long)])
def test_halted_for_longer_than_its_lease(definition: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    workload_id = admit(definition, input=str(path))
    with worker("--lease-ms", "1500", "--grace", "1") as first:
        # Not before the body has: the first question after a claim is the authority's to refuse.
        eventually(lambda: noted(tmp_path / "file.begun"))
        halt(first)
        eventually(lambda: authority.recover_expired() == [workload_id])
        (second,) = authority.claim_next(worker_id="other", capabilities=(), lease_ms=60_000, start=True)
        wake(first)
        if definition == "lethal.waits":
            eventually(lambda: noted(path) == ["LeaseLost"])
        # It goes on, with room for one, also where the body does not hear of it.
        later = admit("lethal.echo", input="later")
        eventually(lambda: state(later) == "SUCCEEDED")
        if definition == "lethal.deaf":
            path.touch()
        first.terminate()
        assert first.end() == 0, first.output
    assert (second.workload_id, second.attempt_number) == (workload_id, 2)
    authority.complete(second.fence, result_id="mine", output="by the other")
    assert [row.status for row in attempts(workload_id)] == ["WORKER_LOST", "SUCCEEDED"]
    assert get(workload_id).result.output == "by the other"
    # One line says so, or two: that it is lost, and that its report is refused.
    told = [line for line in first.output.splitlines() if "is lost" in line or "without a report" in line]
    assert 1 <= len(told) <= 2, first.output
    assert list(authority.verify()) == []


@pytest.mark.parametrize(
    "when", [pytest.param("before", marks=pytest.mark.long), "commit", pytest.param("after", marks=pytest.mark.long)]
)
def test_halted_within_a_heartbeat(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("Who is halted while it writes to SQLite holds up all that write.")
    path = tmp_path / "file"
    point = {"verb": "heartbeat_many", "when": when, "signal": "SIGSTOP", "log": str(tmp_path / "log")}
    monkeypatch.setenv(lethal.VARIABLE, json.dumps(point))
    workload_id = admit("lethal.waits", input=str(path))
    with worker("--lease-ms", "1800") as first:
        eventually(lambda: state(workload_id) == "RUNNING")
        # In the middle of a transaction, it holds the row.
        eventually(lambda: authority.recover_expired() == [workload_id])
        (second,) = authority.claim_next(worker_id="other", capabilities=(), lease_ms=60_000, start=True)
        wake(first)
        eventually(lambda: noted(path) == ["LeaseLost"])
        first.terminate()
        assert first.end() == 0, first.output
    authority.complete(second.fence, result_id="mine", output="by the other")
    assert [row.status for row in attempts(workload_id)] == ["WORKER_LOST", "SUCCEEDED"]


# A clock that is wrong.


@pytest.mark.parametrize("hours", [-1, pytest.param(1, marks=pytest.mark.long)])
def test_a_workers_clock_does_not_matter(hours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lethal.SKEW, str(hours))
    policy = RetryPolicy(initial_delay_ms=300, max_delay_ms=300)
    workload_id = admit("lethal.clock", input=1.5, retry_policy=policy)
    with worker("--lease-ms", "1200", "--concurrency", "2") as first:
        eventually(lambda: state(workload_id) == "SUCCEEDED")
        assert authority.run_pass().recovered == []
        first.terminate()
        assert first.end() == 0, first.output
    workload = get(workload_id)
    now = clock.read(connection)
    assert abs(workload.result.output - now.timestamp() - hours * 3_600) < 60
    assert [row.status for row in attempts(workload_id)] == ["FAILED", "SUCCEEDED"]
    failed, done = attempts(workload_id)
    assert timedelta(0) <= done.claimed_at - failed.outcome_next_attempt_at < timedelta(seconds=20)
    instants = [e.at for e in workload.events.order_by("sequence")]
    assert instants == sorted(instants)
    assert timedelta(0) <= now - instants[0] < timedelta(minutes=1)
    assert list(authority.verify()) == []


# A database that is away.


def test_a_database_that_is_away_is_told_once_however_often_it_is_asked(tmp_path: Path) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite turns nobody away.")
    settings = connection.settings_dict
    gate = Gate(settings["HOST"], int(settings["PORT"]))
    gate.shut()
    paths = [tmp_path / name for name in ("a", "b", "c")]
    ids = [admit("lethal.deaf", input=str(path)) for path in paths]
    point = json.dumps({"pause": 0.3, "beats": 300})
    try:
        with worker("--concurrency", "3", DATABASE_URL=gate.url(), **{lethal.VARIABLE: point}) as only:
            # It is away when the worker begins; and while its handlers run and end.
            eventually(lambda: gate.turned_away >= 5)
            gate.open()
            eventually(lambda: all(path.with_name(f"{path.name}.begun").exists() for path in paths))
            gate.shut()
            paths[0].touch()
            paths[1].touch()
            eventually(lambda: gate.turned_away >= 60)
            gate.open()
            eventually(lambda: [state(i) for i in ids] == ["SUCCEEDED", "SUCCEEDED", "RUNNING"])
            paths[2].touch()
            eventually(lambda: state(ids[2]) == "SUCCEEDED")
            # Once all are answered that were not.
            eventually(lambda: only.so_far().count("answers again") == 2)
            only.terminate()
            assert only.end() == 0, only.output
    finally:
        gate.end()
    lines = only.output.splitlines()
    assert len([line for line in lines if "does not answer" in line]) == 2, only.output
    assert len([line for line in lines if "answers again" in line]) == 2, only.output
    # And what it claims, and what it did.
    assert len(lines) <= 7, only.output
    assert [len(attempts(i)) for i in ids] == [1, 1, 1]
    assert list(authority.verify()) == []


# What handlers leave to the process.


def test_a_handlers_child_process_ends_by_the_signal_that_stops_the_worker() -> None:
    workload_id = admit("lethal.pool")
    with worker("--drain") as first:
        assert first.end() == 0, first.output
    assert get(workload_id).result.output == -signal.SIGTERM


@pytest.mark.parametrize("what", ["pool", *(pytest.param(w, marks=pytest.mark.long) for w in ("thread", "child"))])
def test_what_a_handler_leaves_behind_does_not_keep_the_process(what: str) -> None:
    workload_id = admit("lethal.leaves", input=what)
    with worker("--drain") as first:
        assert first.end_alone() == 0
    assert state(workload_id) == "SUCCEEDED"
    assert f"left {what}" in first.output
    if what == "child":
        os.kill(int(get(workload_id).result.output), signal.SIGKILL)
