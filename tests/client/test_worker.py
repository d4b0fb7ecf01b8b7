"""A worker on another machine: the same handlers, over a good line and a bad one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from contextlib import contextmanager

import pytest
from django.db import connection

from tests.api.tools import APPLICATION, TENANT, Caller, place
from tests.client.lossy import lossy
from tests.races.processes import ROOT
from tests.worker.tools import eventually
from workloads import authority
from workloads.client import RemoteWorker
from workloads.contract import AdmissionRequest, RetryPolicy, Timeouts
from workloads.models import Attempt, Event, Workload
from workloads.worker import WorkloadFailure
from workloads.worker.registry import Registry

# All of them where it is quick, and where sites run it: the line is the same in front of every database.
MANY = 2_000 if connection.vendor == "postgresql" else 300


@pytest.fixture
def token(live):
    caller = Caller("wanda", place("worker", worker_prefix="wanda-", capabilities=frozenset({"gpu"})))
    return caller.headers["authorization"].removeprefix("Bearer ")


def admit(definition="far.echo", count=1, **fields):
    """Admit work and return the ids."""
    base = {
        "tenant_id": TENANT,
        "application_id": APPLICATION,
        "requested_by": "rita",
        "definition_id": definition,
        "retry_policy": RetryPolicy(initial_delay_ms=0, max_delay_ms=0),
    }
    asked = [AdmissionRequest(idempotency_key=f"{definition}-{n}", **(base | fields)) for n in range(count)]
    return [admission.workload.workload_id for admission in authority.admit_many(asked)]


def state(workload_id):
    return authority.get(workload_id).state


@contextmanager
def running(*workers):
    """Run workers in threads; stop them at the end, and wait for that."""
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


def worker(url, token, handlers, name="wanda-1", **options):
    options = {"lease_ms": 20_000, "wait_ms": 300, "poll_ms": 100, "grace_ms": 10_000} | options
    return RemoteWorker(f"{url}/api", token, worker_id=name, handlers=handlers, **options)


def registry(**functions):
    handlers = Registry()
    for name, function in functions.items():
        handlers.add(function, f"far.{name}", capabilities=getattr(function, "capabilities", ()))
    return handlers


def test_handlers_run_from_afar(live, token):
    def echo(attempt):
        attempt.check()
        return {"said": attempt.input, "by": attempt.fence.worker_id}

    def flaky(attempt):
        if attempt.attempt_number == 1:
            raise WorkloadFailure("transient_connection", "not now", effect="none")
        return attempt.last_checkpoint and attempt.last_checkpoint.state

    def saving(attempt):
        if attempt.last_checkpoint is None:
            attempt.checkpoint({"at": 1})
            raise TimeoutError("so far")
        return attempt.last_checkpoint.state

    def unfit(attempt):
        return {1, 2}

    ids = [admit(f"far.{name}", input=name)[0] for name in ("echo", "flaky", "saving", "unfit")]
    (unknown,) = admit("far.unknown")
    summary = worker(live.url, token, registry(echo=echo, flaky=flaky, saving=saving, unfit=unfit), drain=True).run()
    assert [state(i) for i in ids] == ["SUCCEEDED", "SUCCEEDED", "SUCCEEDED", "DEAD_LETTER"]
    assert authority.get(ids[0]).result.output == {"said": "echo", "by": "wanda-1"}
    assert authority.get(ids[2]).result.output == {"at": 1}
    assert authority.get(ids[3]).last_failure.startswith("output_invalid")
    assert state(unknown) == "READY"
    assert sum(summary.endings.values()) == 6


def test_heartbeats_keep_a_short_lease_and_a_heartbeat_deadline(live, token):
    beats = threading.Event()

    def long(attempt):
        first = authority.get(attempt.workload_id).last_heartbeat
        eventually(lambda: authority.get(attempt.workload_id).last_heartbeat > first)
        # Longer than the lease and the deadline.
        assert not beats.wait(2.5)
        attempt.check()

    (i,) = admit("far.long", timeouts=Timeouts(heartbeat_ms=1_500))
    assert worker(live.url, token, registry(long=long), drain=True, lease_ms=1_800).run().endings == {"succeeded": 1}
    assert Attempt.objects.filter(record__workload_id=i).count() == 1


def test_a_cancellation_reaches_the_body(live, token):
    def until_cancelled(attempt):
        eventually(lambda: attempt.cancelled)
        attempt.check()

    (i,) = admit("far.until")
    with running(worker(live.url, token, registry(until=until_cancelled), lease_ms=1_500)):
        eventually(lambda: state(i) == "RUNNING")
        authority.cancel(i, actor="otto")
        eventually(lambda: state(i) == "CANCELLED")


def test_a_stopped_worker_gives_its_work_back(live, token):
    def deaf(attempt):
        while True:
            attempt.check()
            time.sleep(0.02)  # a body that looks now and then whether it is to stop

    (i,) = admit("far.deaf")
    with running(worker(live.url, token, registry(deaf=deaf), grace_ms=100)):
        eventually(lambda: state(i) == "RUNNING")
    workload = authority.get(i)
    assert (workload.state, workload.release_count, workload.uncounted_releases) == ("READY", 1, 1)


def test_a_body_stops_when_the_line_is_cut_for_longer_than_its_lease(live, token):
    ended = threading.Event()

    def going_on(attempt):
        started.set()
        try:
            while True:
                attempt.check()
                time.sleep(0.02)  # a body that looks before each effect
        finally:
            ended.set()

    started = threading.Event()
    (i,) = admit("far.on")
    with lossy(live.url, share=0.0) as line, running(worker(line.url, token, registry(on=going_on), lease_ms=1_500)):
        assert started.wait(30)
        line.fates, line.share = ("lose_question",), 1.0
        # By this machine's clock alone: nobody can tell it.
        assert ended.wait(10)
        line.share = 0.0
        eventually(lambda: authority.get(i).expires_at <= authority.read_clock())
        assert authority.recover_expired() == [i]
    assert Attempt.objects.filter(record__workload_id=i).first().status == "WORKER_LOST"


def test_an_output_over_the_sites_limit_is_a_failure_and_not_sent(live, token):
    (i,) = admit("far.long")
    one = worker(live.url, token, registry(long=lambda attempt: "x" * 50), drain=True, max_output_bytes=51)
    assert one.run().endings == {"failed": 1}
    assert authority.get(i).last_failure.startswith("output_too_large")


def test_one_that_waits_for_work_can_be_stopped(live, token):
    """The server holds its answer back: it is waited for, and nothing else is asked."""
    one = worker(live.url, token, registry(echo=lambda attempt: None), wait_ms=1_500, lease_ms=60_000)
    before = threading.active_count()
    thread = threading.Thread(target=one.run)
    thread.start()
    eventually(lambda: threading.active_count() >= before + 3)
    began = time.monotonic()
    one.stop()
    thread.join(15)
    assert not thread.is_alive() and time.monotonic() - began < 10
    assert [
        t.name for t in threading.enumerate() if t.name.startswith(("workloads-slot", "workloads-heartbeats"))
    ] == []


def test_it_runs_without_django(live, token, tmp_path):
    (i,) = admit("plain.double", input=21)
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import sys

            class Blocked:
                def find_spec(self, name, path=None, target=None):
                    if name.split(".")[0] in {"django", "rest_framework", "psycopg", "MySQLdb"}:
                        raise ImportError(name)

            sys.meta_path.insert(0, Blocked())
            from workloads.client import RemoteWorker
            from workloads.worker import handler

            @handler("plain.double")
            def double(attempt):
                return attempt.input * 2

            RemoteWorker(sys.argv[1], sys.argv[2], worker_id="wanda-2", drain=True).run()
            """
        )
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO")}
    ran = subprocess.run(
        [sys.executable, str(program), f"{live.url}/api", token],
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert authority.get(i).result.output == 42


def test_completions_that_come_together_are_sent_together(live, token, monkeypatch):
    ids = admit("far.echo", 40)
    everybody = threading.Barrier(20)
    one = worker(
        live.url, token, registry(echo=lambda attempt: everybody.wait(60) and None), drain=True, concurrency=20
    )
    sent = []
    real = one.authority.complete_many
    monkeypatch.setattr(one.authority, "complete_many", lambda reports: (sent.append(len(reports)), real(reports))[1])
    assert one.run().endings == {"succeeded": 40}
    assert [state(i) for i in ids] == ["SUCCEEDED"] * 40
    assert sum(sent) > 20, sent


def test_two_thousand_go_through_a_lossy_line(live, token, caplog):
    ids = admit("far.echo", MANY, input={"n": 1})
    done = Counter()
    lock = threading.Lock()

    def echo(attempt):
        with lock:
            done[attempt.workload_id] += 1
        return attempt.input

    # With few places, so that there are many calls.
    with lossy(live.url, seed=11, share=0.2) as line:
        workers = [
            worker(line.url, token, registry(echo=echo), f"wanda-{n}", concurrency=6, lease_ms=60_000) for n in (1, 2)
        ]
        with running(*workers):
            eventually(lambda: not Workload.objects.exclude(state="SUCCEEDED").exists(), 240)
    assert set(done) == set(ids)
    # Each was run once, each has one result, and no attempt was lost on the way.
    assert set(done.values()) == {1}
    assert Attempt.objects.count() == Event.objects.filter(to_state="SUCCEEDED").count() == MANY
    assert set(Attempt.objects.values_list("status", flat=True)) == {"SUCCEEDED"}
    assert len(line.met) >= 9, line.met
    assert [record.getMessage() for record in caplog.records if "without a report" in record.getMessage()] == []
