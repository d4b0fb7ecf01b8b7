"""`manage.py workloads_pass`: one line a run, and an exit code that tells."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from tests.worker.tools import Command, admit, eventually, is_in_memory, state
from workloads import authority
from workloads.contract import PassReport, Timeouts
from workloads.management.commands import workloads_pass

pytestmark = pytest.mark.django_db(transaction=True)

LINE = re.compile(r"timed out (\d+), recovered (\d+), unsatisfiable (\d+), failed (\d+), in \d+ ms")


def run(*arguments):
    out, err = StringIO(), StringIO()
    code = 0
    try:
        call_command("workloads_pass", *arguments, stdout=out, stderr=err)
    except SystemExit as end:
        code = end.code
    return (
        code,
        [tuple(map(int, LINE.fullmatch(line).groups())) for line in out.getvalue().splitlines()],
        err.getvalue(),
    )


def due():
    workload_id = admit(timeouts=Timeouts(queue_ms=1))
    eventually(lambda: authority.explain(workload_id)[0].code == "deadline_passed")
    return workload_id


@pytest.mark.parametrize("arguments", [(), ("--once",)])
def test_it_runs_once_and_counts(arguments):
    ids = [due(), due()]
    assert run(*arguments) == (0, [(2, 0, 0, 0)], "")
    assert {state(i) for i in ids} == {"DEAD_LETTER"}
    assert run(*arguments) == (0, [(0, 0, 0, 0)], "")


def test_it_decides_at_most_so_many():
    due(), due(), due()
    assert run("--limit", "2")[1] == [(2, 0, 0, 0)]
    assert run("--limit", "2")[1] == [(1, 0, 0, 0)]


def test_a_row_that_fails_is_named_and_the_exit_tells(monkeypatch):
    report = PassReport(
        timed_out=["a"], recovered=["b"], unsatisfiable=[], failed={"workload_x": "ValueError: odd\nrow"}
    )
    monkeypatch.setattr(authority, "run_pass", lambda limit: report)
    assert run() == (1, [(1, 1, 0, 1)], "workload_x: ValueError: odd row\n")


@pytest.mark.parametrize(
    "arguments", [("--limit", "0"), ("--interval", "0"), ("--interval", "-1"), ("--interval", "nan")]
)
def test_it_refuses_what_makes_no_sense(arguments):
    with pytest.raises(CommandError):
        run(*arguments)


def test_it_survives_the_database_and_says_so_once(monkeypatch, caplog):
    turns = []

    def flaky(limit):
        turns.append(limit)
        if 2 <= len(turns) <= 4:
            raise OperationalError("terminating connection")
        if len(turns) == 6:
            signals[0].put(15)
        return PassReport(timed_out=[], recovered=[], unsatisfiable=[], failed={})

    signals = []
    real = workloads_pass.queue.SimpleQueue

    def remembered():
        signals.append(real())
        return signals[-1]

    monkeypatch.setattr(workloads_pass.queue, "SimpleQueue", remembered)
    monkeypatch.setattr(authority, "run_pass", flaky)
    code, lines, _ = run("--interval", "0.01")
    assert code == 1
    assert len(lines) == 3
    assert [r.message.split(" (")[0] for r in caplog.records if r.name == "workloads.pass"] == [
        "The database does not answer",
        "The database answers again.",
    ]


def test_it_runs_every_so_often_until_it_is_stopped():
    if is_in_memory():
        pytest.skip("A database in memory has one process.")
    with Command("workloads_pass", "--interval", "0.05") as command:
        ids = [admit(timeouts=Timeouts(queue_ms=1)) for _ in range(2)]
        eventually(lambda: {state(i) for i in ids} == {"DEAD_LETTER"} or command.child.poll() is not None)
        command.terminate()
        assert command.end() == 0, command.output
    assert sum(int(LINE.search(line)[1]) for line in command.output.splitlines() if LINE.search(line)) == 2
