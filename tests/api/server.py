"""A real web server of the site, in processes of its own, on the database of the tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx

from tests.races.processes import ROOT, database_url

PATIENCE_S = 60.0
LOOPBACK = "127.0.0.1"
PROCESSES, THREADS = 2, 4


@dataclass(frozen=True)
class Server:
    """A server that answers. `url` is the site's, `api` the interface's."""

    url: str
    child: subprocess.Popen[bytes]
    log: Path

    @property
    def api(self) -> str:
        return f"{self.url}/api/v1/"

    def last_words(self) -> str:
        """Return the end of what the server wrote."""
        return self.log.read_text(errors="replace")[-4_000:]


@contextmanager
def server(kind: Literal["wsgi", "asgi"] = "wsgi", **env: str) -> Iterator[Server]:
    """Serve the site by gunicorn (two processes of four threads) or by uvicorn (two processes); stop it at the end.

    `env` is what the site's settings and project/gunicorn.conf.py are to read besides. The server is handed a socket
    that listens already, so that there is no port to lose and nothing to poll: the first call waits for its answer.
    """
    with socket.create_server((LOOPBACK, 0), backlog=512) as listening, tempfile.TemporaryDirectory() as folder:
        url = f"http://{LOOPBACK}:{listening.getsockname()[1]}"
        log = Path(folder, "log")
        variables = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "project.settings",
            "DATABASE_URL": database_url(),
            "WEB_PROCESSES": str(PROCESSES),
            "WEB_THREADS": str(THREADS),
            "WEB_GRACE_S": "3",
            "WEB_BIND": f"fd://{listening.fileno()}",
            **env,
        }
        with log.open("wb") as written:
            child = subprocess.Popen(
                _command(kind, listening.fileno(), variables),
                cwd=ROOT,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                pass_fds=[listening.fileno()],
                # A group of its own, so that whatever it forked ends with it.
                start_new_session=True,
            )
        running = Server(url=url, child=child, log=log)
        try:
            _await_answer(running)
            yield running
        finally:
            _end(running)


def _command(kind: str, fd: int, variables: dict[str, str]) -> list[str]:
    if kind == "wsgi":
        return [sys.executable, "-m", "gunicorn", "--config", str(ROOT / "project" / "gunicorn.conf.py")]
    options = {
        "--fd": str(fd),
        "--workers": variables["WEB_PROCESSES"],
        "--timeout-graceful-shutdown": variables["WEB_GRACE_S"],
        "--log-level": "warning",
    }
    return [sys.executable, "-m", "uvicorn", "project.asgi:application", *(p for pair in options.items() for p in pair)]


def _await_answer(running: Server) -> None:
    """Return once the server has answered, whatever it says of its health."""
    try:
        httpx.get(f"{running.api}health/", timeout=PATIENCE_S, trust_env=False)
    except httpx.HTTPError as error:
        running.child.poll()
        raise AssertionError(f"The server does not answer ({error!r}): {running.last_words()}") from error


def _end(running: Server) -> None:
    if running.child.poll() is None:
        running.child.terminate()
        try:
            running.child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(running.child.pid, signal.SIGKILL)
            running.child.wait()
            raise AssertionError(f"The server did not stop: {running.last_words()}") from None
