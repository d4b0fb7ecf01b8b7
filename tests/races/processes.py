"""Real processes for races: each has its own interpreter and connection, and starts when all are ready."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connection

ROOT = Path(__file__).resolve().parents[2]


def database_url() -> str:
    """Return the address of the database that the tests run on, as DATABASE_URL has it."""
    settings = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{settings['NAME']}"
    scheme = {"postgresql": "postgres", "mysql": "mysql"}[connection.vendor]
    password = f":{settings['PASSWORD']}" if settings["PASSWORD"] else ""
    port = f":{settings['PORT']}" if settings["PORT"] else ""
    return f"{scheme}://{settings['USER']}{password}@{settings['HOST']}{port}/{settings['NAME']}"


class Racer:
    """One process that calls `function` (dotted path) with arguments, once it is told to."""

    def __init__(self, function: str, *args: Any) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "tests.races.processes", function, json.dumps(args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "DATABASE_URL": database_url()},
        )

    def say(self, line: str = "go") -> None:
        """Let the process go on."""
        assert self.child.stdin is not None
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()

    def hear(self) -> Any:
        """Wait for the process's next answer."""
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        assert line, f"the process ended with {self.child.wait()}"
        return json.loads(line)

    def end(self) -> None:
        """End the process, and wait for it."""
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def racers(calls: Sequence[tuple[Any, ...]]) -> Iterator[list[Racer]]:
    """Start a process for each call (function, *args), all ready, none begun; end them all at last."""
    started = [Racer(*call) for call in calls]
    try:
        for racer in started:
            assert racer.hear() == "ready"
        yield started
    finally:
        for racer in started:
            racer.end()


def race(calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Run the calls in processes that start together; return their answers in order."""
    with racers(calls) as started:
        for racer in started:
            racer.say()
        return [racer.hear() for racer in started]


def say(value: Any) -> None:
    """Within a racer: send an answer."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def wait() -> None:
    """Within a racer: wait to be told to go on."""
    sys.stdin.readline()


def main() -> None:
    """Run one racer: ready, wait, call, answer."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    import django

    django.setup()
    from django.db import connections

    module, _, name = sys.argv[1].rpartition(".")
    function = getattr(importlib.import_module(module), name)
    connections["default"].ensure_connection()
    say("ready")
    wait()
    say(function(*json.loads(sys.argv[2])))


if __name__ == "__main__":
    main()
