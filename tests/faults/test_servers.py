"""The server itself is restarted, killed, away or frozen under passes, workers and requesters. Sections 1 and 8.

On a server of the tests' own. After each case everything that is stored there is verified.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from tests.faults.programs import Program, Site
from tests.faults.servers import KINDS, Missing
from tests.races.calls import request
from workloads import authority
from workloads.contract import RetryPolicy, Timeouts
from workloads.models import Event, Result, Workload
from workloads.worker.calls import CONNECT_S
from workloads.worker.watch import CANCEL_S

TOTAL = 1_000
AWAY = r"does not answer"
BACK = r"answers again"
AT_ONCE = RetryPolicy(max_attempts=5, initial_delay_ms=0, max_delay_ms=0)
HANDLERS = ("--handlers", "tests.faults.clients")

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def unblocked(django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        yield


@pytest.fixture(scope="module")
def _site(unblocked: None) -> Iterator[Site]:
    kind = KINDS.get(connection.vendor)
    if kind is None:
        pytest.skip("SQLite has no server.")
    try:
        server = kind()
    except Missing as missing:
        pytest.skip(f"A server of the tests' own can't be started: {missing}.")
    with ExitStack() as stack:
        stack.callback(server.end)
        site = Site(server)
        stack.callback(site.end)
        yield site


@pytest.fixture
def site(_site: Site) -> Iterator[Site]:
    _site.clear()
    yield _site
    _site.forget()
    _site.verify()


def admit_due(total: int) -> None:
    """Admit work whose lease is over, and as much whose deadline has passed."""
    half = total // 2
    authority.admit_many([request(f"lost {n}") for n in range(half)])
    authority.claim_next(worker_id="w", capabilities=(), lease_ms=1, limit=half)
    authority.admit_many([request(f"late {n}", timeouts=Timeouts(queue_ms=1)) for n in range(total - half)])


def each_decided_once() -> None:
    rows = Event.objects.filter(to_state__in=("RECOVERING", "TIMED_OUT"))
    counts = Counter(rows.values_list("record__workload_id", flat=True))
    assert counts == dict.fromkeys(Workload.objects.values_list("workload_id", flat=True), 1)


def in_the_middle(site: Site, program: Program) -> None:
    """Wait until the pass has decided some, as another connection sees it."""
    program.until(lambda: site.decided() >= 100, "a hundred are decided")


# A pass.


@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
def test_a_pass_in_the_middle_of_which_the_server_restarts(site: Site, how: str) -> None:
    admit_due(TOTAL)
    program = site.command("workloads_pass", "--once")
    in_the_middle(site, program)
    site.server.restart(how)
    assert program.end() == 1, program.output
    site.forget()
    done = site.decided()
    assert 100 <= done < TOTAL
    again = site.command("workloads_pass", "--once")
    assert again.end() == 0, again.output
    each_decided_once()
    assert _counted(again) == TOTAL - done


@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
def test_a_pass_with_an_interval_goes_on_over_a_restart(site: Site, how: str) -> None:
    admit_due(TOTAL)
    program = site.command("workloads_pass", "--interval", "0.1")
    in_the_middle(site, program)
    site.server.restart(how)
    site.forget()
    assert site.decided() < TOTAL
    program.until(lambda: site.decided() == TOTAL, "all are decided")
    program.until(lambda: program.lines(BACK), "it says that the database is back")
    program.terminate()
    assert program.end() == 1, program.output
    each_decided_once()
    _says_each_change_once(program)


def test_a_restart_between_two_runs_of_a_pass_is_no_fault(site: Site) -> None:
    program = site.command("workloads_pass", "--interval", "3")
    program.until(lambda: program.lines("^timed out"), "it has run")
    site.server.restart()
    site.forget()
    seen = len(program.lines("^timed out"))
    program.until(lambda: len(program.lines("^timed out")) > seen, "it runs again")
    program.terminate()
    assert program.end() == 0, program.output
    assert program.lines(AWAY) == []


def _counted(program: Program) -> int:
    (line,) = program.lines("^timed out")
    numbers = [int(word.strip(",")) for word in line.split() if word.strip(",").isdigit()]
    return sum(numbers[:3])


def _says_each_change_once(program: Program, *, noticed: bool = True) -> None:
    """Assert that the program has said once that the database is away, and once that it is back."""
    assert len(program.lines(AWAY)) == len(program.lines(BACK)), program.output
    assert len(program.lines(AWAY)) == 1 if noticed else len(program.lines(AWAY)) <= 1, program.output
    assert program.lines("Traceback") == [], program.output


# A worker, and a pass beside it.


class Outage:
    """The database is away for so many seconds: refuses connections, or hangs."""

    def __init__(self, site: Site, how: str, seconds: float) -> None:
        self.site = site
        self.how = how
        self.seconds = seconds

    def __enter__(self) -> Outage:
        self.site.forget()
        self.began_at = time.monotonic()
        if self.how == "hangs":
            self.site.server.freeze()
        else:
            self.site.server.stop("immediate")
        return self

    def __exit__(self, *failed: object) -> None:
        # The length of the outage is what the case is about: there is no signal to wait for.
        left = self.began_at + self.seconds - time.monotonic()
        if failed[0] is None and left > 0:
            threading.Event().wait(left)
        if self.how == "hangs":
            self.site.server.thaw()
        else:
            self.site.server.start()


def _admit(definition: str, given: object) -> str:
    key = f"{definition} {given}"
    return authority.admit(
        request(key, definition_id=definition, input=given, retry_policy=AT_ONCE)
    ).workload.workload_id


def _statuses(workload_id: str) -> list[str]:
    rows = authority.get(workload_id).attempts.order_by("number")
    return list(rows.values_list("status", flat=True))


KIND = ("ends", "saves", "idles")


@pytest.mark.parametrize("how", ["refuses", "hangs"])
@pytest.mark.parametrize(("seconds", "longer"), [(12, 60), (60, 180)])
@pytest.mark.parametrize("lease", ["longer", "shorter"])
def test_a_worker_and_a_pass_whose_database_is_away(
    site: Site, tmp_path: Path, how: str, seconds: int, longer: int, lease: str
) -> None:
    """With a lease longer than the outage nothing is lost; with a shorter one handlers stop on their own, in time."""
    lease_s = longer if lease == "longer" else seconds / 3
    ids = {name: _admit(f"outage.{name}", str(tmp_path)) for name in KIND}
    worker = site.command(
        "workloads_worker", *HANDLERS, "--concurrency", "4", "--poll-ms", "50", "--lease-ms", str(int(lease_s * 1000))
    )
    a_pass = site.command("workloads_pass", "--interval", "0.2")
    worker.until(lambda: all((tmp_path / f"{name}.began").exists() for name in KIND), "all are running")
    a_pass.until(lambda: a_pass.lines("^timed out"), "a pass has run")
    with Outage(site, how, seconds) as outage:
        (tmp_path / "away").touch()
        worker.until(lambda: (tmp_path / "ends.ended").exists(), "it ends while the database is away")
        if lease == "shorter":
            for name in ("saves", "idles"):
                worker.until(lambda name=name: (tmp_path / f"{name}.stopped").exists(), f"{name} stops", seconds)
            # At most a cut and an attempt to connect later: both are bounded, and nothing is done meanwhile.
            assert time.monotonic() - outage.began_at < lease_s + CANCEL_S + CONNECT_S + 1
    if lease == "longer":
        assert not list(tmp_path.glob("*.stopped"))
    new = _admit("outage.echo", "new")
    (tmp_path / "finish").touch()
    worker.until(lambda: site.states() == {"SUCCEEDED"}, "all has succeeded")
    attempts = ["SUCCEEDED"] if lease == "longer" else ["WORKER_LOST", "SUCCEEDED"]
    assert {name: _statuses(i) for name, i in ids.items()} == dict.fromkeys(KIND, attempts)
    assert authority.get(new).result.output == "new"
    checkpoints = [row.state["n"] for row in authority.get(ids["saves"]).checkpoints.order_by("sequence")]
    assert checkpoints == list(range(1, len(checkpoints) + 1))
    noticed = how == "refuses" or seconds > 30
    for program in (worker, a_pass):
        program.until(lambda p=program: len(p.lines(AWAY)) == len(p.lines(BACK)), "it says that the database is back")
        _says_each_change_once(program, noticed=noticed)
    # Besides: where it begins and ends, what is lost of each attempt, and its ending without a report.
    assert len(worker.output.splitlines()) <= 4 + 2 * len(KIND), worker.output
    for program, code in ((worker, 0), (a_pass, 1 if a_pass.lines(AWAY) else 0)):
        program.terminate()
        assert program.end() == code, program.output


@pytest.mark.parametrize("how", ["refuses", "hangs"])
def test_a_worker_and_a_pass_end_when_told_although_the_database_is_away(site: Site, tmp_path: Path, how: str) -> None:
    idle = _admit("outage.idles", str(tmp_path))
    worker = site.command("workloads_worker", *HANDLERS, "--concurrency", "4", "--poll-ms", "50", "--grace", "1")
    a_pass = site.command("workloads_pass", "--interval", "0.05")
    worker.until(lambda: (tmp_path / "idles.began").exists(), "it is running")
    a_pass.until(lambda: a_pass.lines("^timed out"), "a pass has run")
    with Outage(site, how, 0):
        if how == "hangs":
            worker.until(lambda: site.server.unread() >= 2, "both are waiting for an answer")
        else:
            for program in (worker, a_pass):
                program.until(lambda p=program: p.lines(AWAY), "it has noticed")
        for program in (worker, a_pass):
            program.terminate()
        assert worker.end(90) == 0, worker.output
        assert a_pass.end(90) in {0, 1}, a_pass.output
    assert (tmp_path / "idles.stopped").read_text() == "Released"
    assert authority.get(idle).state in {"RUNNING", "READY"}


# A requester, and a worker that completes.


def test_every_acknowledged_admission_is_there_however_the_server_ended(site: Site) -> None:
    total = 600
    requester = site.client("admit", "k", str(total))
    for turn, how in enumerate(["fast", "kill", "immediate", "behead", "fast"], start=1):
        requester.until(lambda turn=turn: len(requester.lines("^admitted")) >= turn * 80, "more is acknowledged")
        site.server.restart(how)
        acknowledged = requester.lines("^admitted")
        assert len(acknowledged) < total
        site.forget()
        _are_there(acknowledged)
    assert requester.end(120) == 0, requester.output
    acknowledged = requester.lines("^admitted")
    assert len(requester.lines("^unanswered")) >= 5
    assert len(acknowledged) == total == Workload.objects.count()
    _are_there(acknowledged)
    assert Event.objects.count() == 2 * total


def _are_there(acknowledged: list[str]) -> None:
    stored = set(Workload.objects.values_list("workload_id", flat=True))
    assert {line.split()[2] for line in acknowledged} <= stored


def test_every_completion_acknowledged_before_the_server_is_killed_is_there(site: Site) -> None:
    total = 1_200
    authority.admit_many([request(f"k{n}") for n in range(total)])
    workers = []
    for turn in (1, 2, 3):
        two = [site.client("complete", f"w{turn}{n}") for n in (1, 2)]
        workers.extend(two)
        before = len(_acknowledged(workers))
        two[0].until(lambda n=before: len(_acknowledged(workers)) >= n + 60, "some are acknowledged")
        site.server.kill()
        for worker in two:
            assert worker.end() == 0, worker.output
            assert worker.lines("^unanswered"), "the server was killed too late"
        site.server.start()
        site.forget()
        acknowledged = dict(_acknowledged(workers))
        assert len(acknowledged) == len(_acknowledged(workers))
        stored = dict(Result.objects.values_list("record__workload_id", "result_id"))
        assert acknowledged.items() <= stored.items()
        # At most one of each worker was obeyed and not acknowledged.
        assert len(stored) <= len(acknowledged) + len(workers)
        assert Event.objects.filter(to_state="SUCCEEDED").count() == len(stored)


def _acknowledged(workers: list[Program]) -> list[tuple[str, str]]:
    """Return what workers were told that they have completed: the work's id and the result's."""
    lines = [line.split() for worker in workers for line in worker.lines("^completed")]
    return [(workload_id, result_id) for _, workload_id, result_id in lines]
