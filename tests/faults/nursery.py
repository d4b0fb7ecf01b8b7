"""A process that forks worker processes: the worker command, without a new interpreter and system checks for each.

Each line that it is sent says where a worker is to die; it answers how the worker ended, and what it wrote.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from tests.races.processes import ROOT, database_url

PATIENCE_S = 60


class Nursery:
    """The process, as tests see it."""

    def __init__(self) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "DATABASE_URL": database_url()},
        )

    def run(self, *arguments: str, **point: Any) -> tuple[int, str]:
        """Run a worker that dies at a point; return how it ended (below 0: by which signal) and what it wrote."""
        assert self.child.stdin is not None and self.child.stdout is not None
        self.child.stdin.write(json.dumps([arguments, point]) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        assert line, f"the nursery ended with {self.child.wait()}"
        code, output = json.loads(line)
        return code, output

    def end(self) -> None:
        """End it."""
        self.child.communicate()


def _bear(arguments: list[str], point: dict[str, Any]) -> None:
    """In the new process: be a worker, until the point."""
    import signal

    from django.core.management import get_commands, load_command_class

    from tests.faults import lethal

    # What outlives its point, or waits at it for ever, is no worker that a test could wait for.
    signal.alarm(PATIENCE_S)
    try:
        lethal.arm(point)
        command = load_command_class(get_commands()["workloads_worker"], "workloads_worker")
        # The system checks come before the worker, and take five times as long as its life.
        options = ["--skip-checks", "--handlers", "tests.faults.lethal", *arguments]
        command.run_from_argv(["manage.py", "workloads_worker", *options])
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def main() -> None:
    """Fork workers, one after the other, as long as there are lines."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    import django

    django.setup()
    from django.db import connections

    from tests.faults import lethal
    from workloads.management.commands import workloads_worker  # noqa: F401 - imported before the fork
    from workloads.worker import site  # noqa: F401 - imported before the fork

    lethal.statements()
    for line in sys.stdin:
        arguments, point = json.loads(line)
        connections.close_all()
        with tempfile.TemporaryFile("w+") as written:
            pid = os.fork()
            if pid == 0:
                os.dup2(written.fileno(), 1)
                os.dup2(written.fileno(), 2)
                _bear(arguments, point)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            written.seek(0)
            print(json.dumps([code, written.read()]), flush=True)  # noqa: T201 - its parent reads it


if __name__ == "__main__":
    main()
