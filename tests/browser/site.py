"""A site to walk through: a scratch database with something of everything in it, and a web server."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.browser import axe

ROOT: Final = Path(__file__).resolve().parents[2]
PASSWORD: Final = "of the walk"
ROLES: Final = ("viewer", "operator", "superuser")
PATIENCE_S: Final = 60.0
SPARE: Final = ("dead", "waiting", "held")


@dataclass(frozen=True)
class Site:
    """A site that answers. `ids` are its workloads' ids by the names of their stories."""

    url: str
    database: Path
    ids: dict[str, str]

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return what the database says, past everything that the site is made of."""
        with closing(sqlite3.connect(self.database, timeout=60)) as connection:
            rows = connection.execute(statement, values).fetchall()
            connection.commit()
            return rows

    def key(self, story: str) -> int:
        """Return the key of a story's workload."""
        return int(self.ask("SELECT id FROM workloads_admitted WHERE workload_id = ?", self.ids[story])[0][0])

    def state(self, story: str) -> str:
        """Return the state of a story's workload."""
        return str(self.ask("SELECT state FROM workloads_workload WHERE admitted_id = ?", self.key(story))[0][0])

    def last_event(self, story: str) -> tuple[str, dict[str, Any]]:
        """Return who brought a story's workload to where it is, and on what evidence."""
        sql = "SELECT actor, evidence FROM workloads_event WHERE record = ? ORDER BY sequence DESC LIMIT 1"
        actor, evidence = self.ask(sql, self.key(story))[0]
        return str(actor), json.loads(evidence)

    def page(self, story: str) -> str:
        """Return the address of a story's workload, within the site."""
        return f"/admin/workloads/workload/{self.key(story)}/change/"


def chromium() -> str | None:
    """Return where Debian's Chromium is; None where it is not."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


def why_not() -> str | None:
    """Return why no browser can walk here; None if one can."""
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed: it is in requirements.txt."
    if chromium() is None:
        return "There is no Chromium (on Debian: apt-get install chromium); CHROMIUM names another."
    try:
        axe.package()
    except axe.NotThere as reason:
        return str(reason)
    return None


def environment(database: Path) -> dict[str, str]:
    """Return what the site's programs are to read."""
    return {
        "DATABASE_URL": f"sqlite:///{database}",
        "DJANGO_SETTINGS_MODULE": "tests.browser.settings",
        "SECRET_KEY": "of a site that is walked through",
        "TEST_DB_SUFFIX": "",
        "LOG_LEVEL": "WARNING",
    }


def populate(database: Path, *parts: str) -> dict[str, str]:
    """Make the database, and have these parts of tests/browser/population.py; return the ids by story."""
    made = subprocess.run(
        [sys.executable, "-m", "tests.browser.population", *parts],
        cwd=ROOT,
        env={**os.environ, **environment(database)},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    answer: dict[str, str] = json.loads(made.stdout)
    return answer


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def mortal_server(database: Path, port: int) -> Iterator[Callable[[], None]]:
    """Serve a database at a port; give what kills the server at once, so that nothing listens there any more."""
    child = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "--config", str(ROOT / "project" / "gunicorn.conf.py")],
        cwd=ROOT,
        env={**os.environ, **environment(database), "WEB_BIND": f"127.0.0.1:{port}", "WEB_GRACE_S": "3"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def kill() -> None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    try:
        _await_answer(port, child)
        yield kill
    finally:
        kill()


def _await_answer(port: int, child: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert child.poll() is None, "the server has ended"
        assert time.monotonic() < end, "the server does not begin"
        time.sleep(0.05)  # nothing tells when a server begins to listen


@contextmanager
def served(folder: Path, *parts: str, **env: str) -> Iterator[Site]:
    """Have a site with these parts of the population, served until the end."""
    # Asks Django for its settings.
    from tests.api.server import server

    database = folder / "site.sqlite3"
    ids = populate(database, *parts)
    with server(**environment(database), **env) as running:
        yield Site(url=running.url, database=database, ids=ids)
        assert "Internal Server Error" not in running.last_words(), running.last_words()
