"""The processes that the demonstration starts: each with a log of its own, and all ended on any exit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

GRACE_S: Final = 5.0
LAST_LINES: Final = 15


class Broken(Exception):
    """The demonstration can't go on, or has shown something wrong."""


class Children:
    """Child processes by name."""

    def __init__(self, folder: Path, logs: Path, extra: Mapping[str, str]) -> None:
        self._folder = folder
        self._logs = logs
        self._env = {**os.environ, **extra}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str, program: Sequence[str] = ("manage.py",), **extra: str) -> None:
        """Start `manage.py`, or another program, with these arguments; `extra` are environment variables."""
        with (self._logs / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, *program, *arguments],
                cwd=self._folder,
                env={**self._env, **extra},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C at the terminal is for the demonstration alone, which then ends them in order.
                start_new_session=True,
            )

    def pid(self, name: str) -> int:
        """Return the process number of a child."""
        return self._running[name].pid

    def kill(self, name: str) -> None:
        """Kill a child with SIGKILL, so that it can't say a last word; it is missed no longer."""
        child = self._running.pop(name)
        child.kill()
        child.wait()

    def check(self) -> None:
        """Raise Broken if a child has ended that nobody ended."""
        for name, child in self._running.items():
            if child.poll() is not None:
                raise Broken(f"{name} has ended with {child.returncode}.\n{self.log(name)}")

    def log(self, name: str) -> str:
        """Return the last lines of a child's log."""
        path = self._logs / f"{name}.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return "\n".join(f"  {name}: {line}" for line in lines[-LAST_LINES:])

    def logs(self) -> str:
        """Return the last lines of every child's log, of those that were killed too."""
        return "\n".join(self.log(path.stem) for path in sorted(self._logs.glob("*.log")))

    def end(self) -> None:
        """End every child: asked first, and killed if it has not gone after some seconds."""
        # A second Ctrl-C must not leave some of them behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        children = list(self._running.values())
        for child in children:
            child.terminate()
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=GRACE_S)
            if child.poll() is None:
                child.kill()
                child.wait()
        self._running.clear()


def exit_on(signals: Iterable[signal.Signals]) -> None:
    """Let these signals end the program by an exception, so that what must be ended is."""

    def stop(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    for number in signals:
        signal.signal(number, stop)
