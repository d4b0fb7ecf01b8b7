"""The interface, a worker and the commands behind a pooler in transaction mode, without notifications."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
import pytest
from django.db import connection

from tests.api.server import server
from tests.api.tools import Caller, admission, claiming, fence, place
from tests.races.processes import database_url
from tests.worker.tools import Command
from workloads import wakeups
from workloads.models import Workload

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

pytestmark = [
    pytest.mark.long,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="the pooler is PostgreSQL's"),
    pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed"),
]

SESSIONS = 3
WORKERS = 8
ITEMS = 60
PATIENCE_S = 60


@contextmanager
def pooler() -> Iterator[str]:
    """Have a pooler in transaction mode, with fewer sessions than it has callers; yield its DATABASE_URL."""
    parts = urlsplit(database_url())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lines = {
        "listen_addr": "127.0.0.1",
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": "transaction",
        "default_pool_size": SESSIONS,
        "max_client_conn": 200,
        # Each transaction on another session, so that what one leaves behind is met by another.
        "server_round_robin": 1,
    }
    target = f"host={parts.hostname} port={parts.port or 5432} user={parts.username}"
    if parts.password:
        target += f" password={parts.password}"
    said = "\n".join(f"{name} = {value}" for name, value in lines.items())
    # It will not run as root, and whoever it runs as has to read its file.
    as_user: dict[str, Any] = {}
    if os.getuid() == 0:
        user = pwd.getpwnam("nobody")
        as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        configuration = Path(folder, "pgbouncer.ini")
        configuration.write_text(f"[databases]\n* = {target}\n[pgbouncer]\n{said}\n")
        child = subprocess.Popen(
            [str(PGBOUNCER), "--quiet", str(configuration)], stdin=subprocess.DEVNULL, cwd="/", **as_user
        )
        try:
            _await(port, child)
            yield urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}"))
        finally:
            child.terminate()
            child.wait(PATIENCE_S)


def _await(port: int, child: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert child.poll() is None and time.monotonic() < until, "the pooler does not answer"
            time.sleep(0.05)  # nothing tells when a server begins to listen


def sessions() -> list[tuple[int, str]]:
    """Return the server's sessions of this database but the tests' own: their process, and what they last said."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid, query FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return cursor.fetchall()


def work(api: str, headers: dict[str, str], number: int) -> int:
    """Claim and complete until there has been nothing for a while; return how many were completed."""
    done = 0
    with httpx.Client(headers=headers, timeout=PATIENCE_S, trust_env=False) as client:
        while True:
            body = claiming(
                worker_id=f"w-{number}", wait_ms=1_500, start=True, definitions=["api"], request_id=f"{number}-{done}"
            )
            answer = client.post(f"{api}claims/", json=body)
            assert answer.status_code == 200, answer.text
            claims = answer.json()["claims"]
            if not claims and "Retry-After" not in answer.headers:
                return done
            for claim in claims:
                path = f"{api}workloads/{claim['workload_id']}/"
                said = client.post(f"{path}checkpoints/", json={**fence(claim), "state": {"n": done}})
                assert said.status_code < 300, said.text
                said = client.post(f"{path}complete/", json={**fence(claim), "result_id": path[-40:], "output": done})
                assert said.status_code == 200, said.text
                done += 1
            if not claims:
                time.sleep(float(answer.headers["Retry-After"]))


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_everything_runs_behind_a_pooler_in_transaction_mode(kind):
    requester, worker = Caller("rita", place("requester")), Caller("wanda", place("worker"))
    wakeups.stop()
    with pooler() as url:
        env = {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.api.pooled"}
        with server(kind, **env) as running:
            admit = {"headers": requester.headers, "timeout": PATIENCE_S, "trust_env": False}
            with ThreadPoolExecutor(WORKERS) as threads:
                working = [threads.submit(work, running.api, worker.headers, number) for number in range(WORKERS)]
                for number in range(ITEMS):
                    body = admission(f"k-{number}", definition_id="api", input={"n": number})
                    assert httpx.post(f"{running.api}workloads/", json=body, **admit).status_code == 201
                done = sum(worker.result(PATIENCE_S) for worker in working)
            for number in range(5):
                body = admission(f"own-{number}", definition_id="test.echo", input=number)
                assert httpx.post(f"{running.api}workloads/", json=body, **admit).status_code == 201
            found = sessions()
        assert done == ITEMS
        assert len(found) <= SESSIONS
        assert [query for _, query in found if query.startswith(("LISTEN", "NOTIFY"))] == []
        own = ("workloads_worker", "--handlers", "tests.worker.handlers", "--drain", "--concurrency", "2")
        for command in (own, ("workloads_pass", "--once"), ("workloads_verify",)):
            with Command(*command, **env) as ran:
                assert ran.end() == 0, ran.output
    states = Workload.objects.values_list("state", "attempt_count")
    assert set(states) == {("SUCCEEDED", 1)} and len(states) == ITEMS + 5
