"""A site on a server of its own: what is stored there, and the programs that run on it. Tests ask it by an alias."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dj_database_url
from django.core.management import call_command
from django.db import connections
from django.test import override_settings

from tests.faults.servers import PATIENCE_S, Server, wait_for
from tests.races.processes import ROOT
from workloads.models import Event, Workload

ALIAS = "private"


class Router:
    """Sends everything to the server under test."""

    def db_for_read(self, *_: Any, **__: Any) -> str:
        return ALIAS

    db_for_write = db_for_read


class Site:
    """The server under test and what a test asks of it. Whatever befalls the server ends the tests' own connection."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.programs: list[Program] = []
        known = dj_database_url.parse(server.url) | {"OPTIONS": self._options()}
        connections.settings[ALIAS] = connections.configure_settings({"default": {}, ALIAS: known})[ALIAS]
        self.routed = override_settings(DATABASE_ROUTERS=[f"{__name__}.Router"])
        self.routed.enable()
        try:
            call_command("migrate", database=ALIAS, verbosity=0)
        except BaseException:
            self.end()
            raise
        self.forget()

    def _options(self) -> dict[str, Any]:
        return {"isolation_level": "read committed", "charset": "utf8mb4"} if self.server.url[:5] == "mysql" else {}

    def forget(self) -> None:
        """Close the tests' own connection: it ends with the server."""
        connections[ALIAS].close()

    def clear(self) -> None:
        """End what the test before has left: its programs and its rows."""
        for program in self.programs:
            program.kill()
        self.programs.clear()
        self.forget()
        if self.server.child is None or self.server.child.poll() is not None:
            self.server.start()
        call_command("flush", database=ALIAS, interactive=False, inhibit_post_migrate=True, verbosity=0)

    def end(self) -> None:
        """Take the site and its server away."""
        for program in self.programs:
            program.kill()
        self.forget()
        del connections[ALIAS]
        del connections.settings[ALIAS]
        self.routed.disable()
        self.server.end()

    def decided(self) -> int:
        """Count what the clock has decided."""
        return Event.objects.filter(to_state__in=("RECOVERING", "TIMED_OUT")).count()

    def states(self) -> set[str]:
        """Return the states that any work is in."""
        return set(Workload.objects.values_list("state", flat=True))

    def command(self, *arguments: str) -> Program:
        """Start a management command there."""
        return self._started("manage.py", *arguments)

    def client(self, *arguments: str) -> Program:
        """Start one of `clients` there."""
        return self._started("-m", "tests.faults.clients", *arguments)

    def _started(self, *arguments: str) -> Program:
        self.programs.append(Program(self.server.url, *arguments))
        return self.programs[-1]

    def verify(self) -> None:
        """Assert that `workloads_verify` finds no fault in all that is stored there."""
        program = self.command("workloads_verify")
        assert program.end() == 0, program.output


class Program:
    """A process on that site's database. What it writes can be read while it runs."""

    def __init__(self, url: str, *arguments: str) -> None:
        # A file, not a pipe: a program whose lines nobody reads at once must not wait for that.
        self._written = tempfile.NamedTemporaryFile(prefix="workloads-program-")  # noqa: SIM115
        self.child = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, "DATABASE_URL": url, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=self._written,
            stderr=subprocess.STDOUT,
        )

    @property
    def output(self) -> str:
        return Path(self._written.name).read_text(errors="replace")

    def lines(self, pattern: str) -> list[str]:
        """Return the whole lines in which a pattern is found."""
        whole = self.output.rpartition("\n")[0]
        return [line for line in whole.splitlines() if re.search(pattern, line)]

    def until(self, holds: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> None:
        """Wait until something holds, while this program runs."""

        def does_hold() -> bool:
            if holds():
                return True
            assert self.child.poll() is None, f"it ended with {self.child.returncode}: {self.output}"
            return False

        try:
            wait_for(does_hold, what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output}") from None

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.child.send_signal(signal.SIGTERM)

    def end(self, seconds: float = PATIENCE_S) -> int:
        """Wait until it ends; return its exit code."""
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not end in {seconds} s: {self.output}") from None

    def kill(self) -> None:
        """Kill it if it runs."""
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
