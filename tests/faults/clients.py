"""What the processes of `test_servers` do: requesters and workers that say on a line what was acknowledged to them.

Run as `python -m tests.faults.clients FUNCTION ARGUMENT…`, on the database that DATABASE_URL names.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    import django

    django.setup()

from django.db import Error, connections

from tests.races.calls import request
from workloads import authority
from workloads.worker import Attempt, Stopped, handler

T = TypeVar("T")

LONGEST_S = 300.0
REFUSED_PAUSE_S = 0.05


def say(*words: object) -> None:
    """Write a line that is seen at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def insist(call: Callable[[], T]) -> T:
    """Make the same call until it is answered, each time on a new connection; say how often it was not."""
    while True:
        try:
            return call()
        except Error as error:
            say("unanswered", type(error).__name__)
            connections["default"].close()
            time.sleep(REFUSED_PAUSE_S)


def admit(prefix: str, total: str) -> None:
    """Admit so many works, each until it is acknowledged, and say so."""
    for n in range(int(total)):
        admission = insist(lambda n=n: authority.admit(request(f"{prefix}{n}", input={"n": n})))
        say("admitted", f"{prefix}{n}", admission.workload.workload_id, admission.created)


def complete(worker_id: str) -> None:
    """Claim work and complete it until the database is gone; say what was acknowledged."""
    ends_at = time.monotonic() + LONGEST_S
    given: dict[str, Any] = {"worker_id": worker_id, "capabilities": (), "lease_ms": 60_000, "start": True}
    try:
        while time.monotonic() < ends_at:
            for claim in authority.claim_next(limit=20, **given):
                result = authority.complete(claim.fence, result_id=claim.attempt_id, output={"by": worker_id})
                say("completed", claim.workload_id, result.result_id)
    except Error as error:
        say("unanswered", type(error).__name__)


# Handlers for a worker whose database goes away. The input is a folder in which files tell who has come how far.


def _until(attempt: Attempt, name: str, turn: Callable[[], Any]) -> str:
    """Take turns until the folder has the file `finish`; leave a file that says how it was stopped, if it was."""
    folder = Path(attempt.input)
    (folder / f"{name}.began").touch()
    ends_at = time.monotonic() + LONGEST_S
    try:
        while not (folder / "finish").exists() and time.monotonic() < ends_at:
            turn()
            time.sleep(0.05)
    except Stopped as stopped:
        (folder / f"{name}.stopped").write_text(type(stopped).__name__)
        raise
    return name


@handler("outage.ends")
def ends(attempt: Attempt) -> str:
    """Run until the file `away` is there, and end: the database is away then, and nobody is asked before."""
    folder = Path(attempt.input)
    (folder / "ends.began").touch()
    ends_at = time.monotonic() + LONGEST_S
    while not (folder / "away").exists() and time.monotonic() < ends_at:
        time.sleep(0.02)
    (folder / "ends.ended").touch()
    return "ends"


@handler("outage.saves")
def saves(attempt: Attempt) -> str:
    """Save a checkpoint again and again."""
    last = attempt.last_checkpoint
    state = {"n": last.state["n"] if last is not None else 0}

    def save() -> None:
        state["n"] += 1
        attempt.checkpoint(dict(state))

    return _until(attempt, "saves", save)


@handler("outage.idles")
def idles(attempt: Attempt) -> str:
    """Ask nothing but whether it must stop."""
    return _until(attempt, "idles", attempt.check)


@handler("outage.echo")
def echo(attempt: Attempt) -> Any:
    return attempt.input


if __name__ == "__main__":
    {"admit": admit, "complete": complete}[sys.argv[1]](*sys.argv[2:])
