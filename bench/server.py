"""The PostgreSQL to measure on: one of our own in a temporary folder, or one that is given; and what it spends."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "autovacuum": "on",
    "max_connections": "200",
}
"""What our own server is started with; everything else is PostgreSQL's default."""
TICK = os.sysconf("SC_CLK_TCK")
STOP_S = 30
VACUUM_S = 600


class NoServer(Exception):
    """There is no PostgreSQL to be had; the message says what was looked for."""


class Server:
    """A running PostgreSQL on which nothing else writes."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.pid = self._find_pid()

    def url(self, name: str) -> str:
        """Return the address of one of its databases."""
        return urlunsplit(urlsplit(self.dsn)._replace(path=f"/{name}"))

    def ask(self, query: str, *values: Any) -> Any:
        """Return the first value of the first row."""
        row = self.connection.execute(query, values).fetchone()
        return row and row[0]

    def create(self, name: str, *, template: str | None = None) -> str:
        """Make a database anew, empty or as a copy; return its address."""
        self.drop(name)
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template:
            statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
        self.connection.execute(statement)
        return self.url(name)

    def drop(self, name: str) -> None:
        """Remove a database, whoever is connected to it."""
        self.connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def wal(self) -> int:
        """Return how many bytes of WAL have ever been written."""
        return int(self.ask("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"))

    def cpu_s(self) -> float | None:
        """Return how many seconds of processor time the server has spent, its ended processes too; None if far away."""
        if self.pid is None:
            return None
        return sum(
            spent(fields, with_ended=int(fields[0]) == self.pid)
            for fields in processes()
            if self.pid in (int(fields[0]), int(fields[3]))
        )

    def rest(self) -> None:
        """Write out what is dirty, and let autovacuum end what it is at, so that who is measured next does not pay for
        who was before.
        """
        until = time.monotonic() + VACUUM_S
        while time.monotonic() < until and self.ask(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'"
        ):
            time.sleep(0.2)  # how often it is looked for; it tells nobody that it ends
        self.connection.execute("CHECKPOINT")

    def settings(self) -> dict[str, str]:
        """Return what may matter of how it is set."""
        names = ["server_version", *SETTINGS, "wal_compression", "wal_level", "wal_sync_method"]
        return {name: self.ask("SELECT current_setting(%s)", name) for name in names}

    def _find_pid(self) -> int | None:
        """Return the main process's id where it runs on this machine, under our eyes."""
        with suppress(OSError, StopIteration):
            mine = self.ask("SELECT pg_backend_pid()")
            fields = next(fields for fields in processes() if int(fields[0]) == mine)
            # In a container of its own, a process of that number would be anything.
            if "postgres" in fields[1]:
                return int(fields[3])
        return None


def processes() -> Iterator[list[str]]:
    """Yield what Linux says about each process: id, name, state, parent, group, session and so on."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            text = path.read_text()
            pid, _, rest = text.partition(" (")
            name, _, rest = rest.rpartition(") ")
            yield [pid, name, *rest.split()]


def spent(fields: list[str], *, with_ended: bool) -> float:
    """Return the seconds of processor time of a process; with those of its children that have ended, if asked."""
    return sum(int(value) for value in fields[13 : 17 if with_ended else 15]) / TICK


def find_binaries() -> Path:
    """Return the folder of the newest installed server's programs."""
    found = [Path(path).parent for path in [shutil.which("initdb")] if path]
    if config := shutil.which("pg_config"):
        answer = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False).stdout.strip()
        found.append(Path(answer))
    versions = Path("/usr/lib/postgresql")
    if versions.is_dir():
        numbered = [path for path in versions.iterdir() if path.name.isdigit()]
        found += [path / "bin" for path in sorted(numbered, key=lambda path: -int(path.name))]
    for folder in found:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise NoServer(
        "PostgreSQL's programs (initdb, postgres) were found neither on PATH nor by pg_config nor below "
        "/usr/lib/postgresql. Install a PostgreSQL server (Debian: postgresql), or give one with --dsn."
    )


@contextmanager
def started(dsn: str | None, settings: dict[str, str] | None = None) -> Iterator[Server]:
    """Yield the server that is given, or one of our own, which is gone afterwards."""
    if dsn:
        try:
            server = Server(dsn)
        except psycopg.Error as error:
            raise NoServer(f"{dsn} does not answer: {error}") from error
        yield server
        server.connection.close()
        return
    # A SIGTERM is to end our server too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    binaries = find_binaries()
    who: dict[str, Any] = {}
    user = pwd.getpwuid(os.getuid())
    if os.getuid() == 0:
        try:
            user = pwd.getpwnam("postgres")
        except KeyError:
            raise NoServer("PostgreSQL does not run as root, and there is no user `postgres`.") from None
        who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    folder = Path(tempfile.mkdtemp(prefix="workloads-bench-"))
    try:
        os.chown(folder, user.pw_uid, user.pw_gid)
        yield from _run(binaries, folder, {**SETTINGS, **(settings or {})}, who)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(binaries: Path, folder: Path, settings: dict[str, str], who: dict[str, Any]) -> Iterator[Server]:
    data, log = folder / "data", folder / "log"
    run = {"cwd": folder, "env": {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"}, **who}
    made = subprocess.run(
        [binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"],
        capture_output=True, text=True, check=False, **run,
    )  # fmt: skip
    if made.returncode:
        raise NoServer(f"initdb failed: {made.stderr.strip()}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = {**settings, "listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": str(folder)}
    arguments = [f"--{name}={value}" for name, value in given.items()]
    with log.open("wb") as output:
        # In a session of its own: Ctrl-C ends the measuring first, and that ends the server.
        process = subprocess.Popen(
            [binaries / "postgres", "-D", data, *arguments],
            stdout=output, stderr=output, start_new_session=True, **run,
        )  # fmt: skip
    try:
        server = _connect(process, f"postgres://postgres@127.0.0.1:{port}/postgres", log)
        try:
            yield server
        finally:
            server.connection.close()
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)
            process.wait()


def _connect(process: subprocess.Popen[bytes], dsn: str, log: Path) -> Server:
    until = time.monotonic() + STOP_S
    while True:
        try:
            return Server(dsn)
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > until:
                said = log.read_text(errors="replace").strip().splitlines()[-5:]
                raise NoServer(f"PostgreSQL did not start: {error}\n" + "\n".join(said)) from error
            time.sleep(0.05)
