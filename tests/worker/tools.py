"""What tests of the worker and of the commands share: admitted work, workers in threads and in processes, waiting."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import connection

from tests.races.processes import ROOT, database_url
from workloads import authority
from workloads.contract import AdmissionRequest, RetryPolicy
from workloads.models import Attempt as AttemptRow, Workload
from workloads.worker import Worker
from workloads.worker.registry import Registry

PATIENCE_S = 40.0
AT_ONCE = RetryPolicy(initial_delay_ms=0, max_delay_ms=0)

_keys = itertools.count(1)


def eventually(condition: Callable[[], Any], seconds: float = PATIENCE_S) -> Any:
    """Return what `condition` returns as soon as that is true; fail when it has not been for so long."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, f"not within {seconds} s: {condition}"
        time.sleep(0.02)
    return found


def admit(definition: str = "test", **values: Any) -> str:
    """Admit work and return its id."""
    values = {
        "tenant_id": "t",
        "application_id": "worker",
        "requested_by": "u",
        "idempotency_key": f"k{next(_keys)}",
        "definition_id": definition,
        "retry_policy": AT_ONCE,
    } | values
    return authority.admit(AdmissionRequest(**values)).workload.workload_id


def get(workload_id: str) -> Workload:
    """Return the workload as it stands."""
    return authority.get(workload_id)


def state(workload_id: str) -> str:
    """Return the state that the workload is in."""
    return str(get(workload_id).state)


def attempts(workload_id: str) -> list[AttemptRow]:
    """Return the workload's attempts in order."""
    return list(get(workload_id).attempts.order_by("number"))


def registry(function: Callable[[Any], Any], definition: str = "test", **options: Any) -> Registry:
    """Return a registry of one handler."""
    handlers = Registry()
    handlers.add(function, definition, **options)
    return handlers


def drain(function: Callable[[Any], Any] | Registry, **options: Any) -> Any:
    """Run a worker in this thread until nothing is claimable; return its summary."""
    handlers = function if isinstance(function, Registry) else registry(function)
    return Worker(handlers=handlers, drain=True, **{"poll_ms": 30} | options).run()


def run_beside_others(body: Callable[[Any], Any], **options: Any) -> Any:
    """Run `body` once, between other work, on one thread; return its attempt as recorded. The others must succeed."""
    before, bad, after = admit(), admit(retry_policy=RetryPolicy(max_attempts=1)), admit()
    summary = drain(lambda attempt: body(attempt) if attempt.workload_id == bad else "fine", **options)
    assert [state(before), state(after)] == ["SUCCEEDED", "SUCCEEDED"]
    assert sum(summary.endings.values()) == 3
    assert list(authority.verify()) == []
    (row,) = attempts(bad)
    return row


@contextmanager
def working(function: Callable[[Any], Any] | Registry, **options: Any) -> Iterator[Worker]:
    """Let a worker run in a thread of its own; stop it at the end."""
    handlers = function if isinstance(function, Registry) else registry(function)
    worker = Worker(handlers=handlers, **{"poll_ms": 50, "grace_ms": 5_000} | options)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(timeout=PATIENCE_S)
        assert not thread.is_alive()


class Command:
    """A management command in a process of its own, on the tests' database, or in another environment."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env={**os.environ, "DATABASE_URL": database_url(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.child.send_signal(signal.SIGTERM)

    def end(self) -> int:
        """Wait until it ends; return its exit code (below 0: the signal that ended it)."""
        try:
            self.output += self.child.communicate(timeout=PATIENCE_S)[0]
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.output += self.child.communicate()[0]
            raise AssertionError(f"it did not end: {self.output}") from None
        return self.child.returncode

    def so_far(self) -> str:
        """Return what it has written so far."""
        assert self.child.stdout is not None
        file = self.child.stdout.fileno()
        os.set_blocking(file, False)
        with suppress(BlockingIOError):
            while data := os.read(file, 65_536):
                self.output += data.decode()
        return self.output

    def end_alone(self) -> int:
        """Wait until it ends, whoever else may still hold its output open; return its exit code."""
        until = time.monotonic() + PATIENCE_S
        while (code := self.child.poll()) is None:
            assert time.monotonic() < until, f"it did not end: {self.so_far()}"
            time.sleep(0.02)
        self.so_far()
        return code

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        if self.child.poll() is None:
            self.child.kill()
            self.child.communicate()


def worker_command(*arguments: str) -> Command:
    """Start a worker process with the tests' handlers."""
    return Command("workloads_worker", "--handlers", "tests.worker.handlers", "--poll-ms", "50", *arguments)


def is_in_memory() -> bool:
    """Tell whether other processes can't see the tests' database."""
    return connection.vendor == "sqlite" and "mode=memory" in str(connection.settings_dict["NAME"])
