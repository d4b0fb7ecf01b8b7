"""A database server of the tests' own, in a temporary folder: started, stopped, killed and frozen as a test likes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PATIENCE_S = 60.0
LOOPBACK = "127.0.0.1"


class Missing(Exception):
    """This machine has no such server."""


def find(*names: str) -> dict[str, str]:
    """Return the path of each program, the newest server's first; Missing if one is not there."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda f: float(f.parent.name), reverse=True)
    searched = os.pathsep.join([*map(str, folders), os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    found = {name: shutil.which(name, path=searched) for name in names}
    for name, path in found.items():
        if path is None:
            raise Missing(f"no program {name} here")
    return {name: str(path) for name, path in found.items()}


def free_port() -> int:
    """Return a free port that the system gives to no client meanwhile: the server comes back to it."""
    for port in random.sample(range(20_000, 30_000), 200):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                tried.bind((LOOPBACK, port))
                return port
    raise Missing("no free port here")


def wait_for(holds: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
    """Wait until something holds, at most so many seconds."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(0.01)


class Server:
    """A server with a folder, a port and an account of its own. It keeps what it has committed through every stop."""

    names: tuple[str, ...]
    accounts: tuple[str, ...]
    stops: dict[str, signal.Signals]

    def __init__(self) -> None:
        self.programs = find(*self.names)
        if not Path("/proc/self/stat").exists():
            raise Missing("no /proc here that would tell which processes are the server's")
        self.folder = Path(tempfile.mkdtemp(prefix="workloads-server-"))
        self.account = self._account()
        self.port = free_port()
        self.child: subprocess.Popen[bytes] | None = None
        if self.account is not None:
            shutil.chown(self.folder, self.account)
        try:
            self.prepare()
        except BaseException:
            self.end()
            raise

    def _account(self) -> str | None:
        """Return the account that it runs under, None for ours: no server wants to be root's."""
        if os.geteuid() != 0:
            return None
        import pwd

        known = {entry.pw_name for entry in pwd.getpwall()}
        return next(name for name in (*self.accounts, "nobody") if name in known)

    # What each kind of server says.

    url: str

    def prepare(self) -> None:
        """Make its data folder."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """Return the command that serves."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Tell whether it lets a client in."""
        raise NotImplementedError

    # What may befall it.

    def start(self) -> None:
        """Let it serve; return once it answers."""
        with (self.folder / "log").open("ab") as log:
            self.child = subprocess.Popen(
                self.command(), cwd=self.folder, user=self.account, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

        def is_up() -> bool:
            assert self.child is not None
            assert self.child.poll() is None, f"the server ended: {self._last_words()}"
            return self.answers()

        wait_for(is_up, "the server answers")

    def stop(self, how: str = "fast") -> None:
        """End it in its own way, `fast` or `immediate`; return once it is gone."""
        assert self.child is not None
        whole = self._whole()
        self.child.send_signal(self.stops[how])
        self._until_gone(whole)

    def restart(self, how: str = "fast") -> None:
        """Stop it and start it again; `kill` is `kill -9` of the whole of it, `behead` of the first process alone."""
        if how == "kill":
            self.kill()
        elif how == "behead":
            self.behead()
        else:
            self.stop(how)
        self.start()

    def kill(self) -> None:
        """`kill -9` of the server and all its children; return once they are gone."""
        whole = self.freeze()
        self._send(signal.SIGKILL, whole)
        self._until_gone(whole)

    def behead(self) -> None:
        """`kill -9` of the process that made the others; return once those have noticed and ended."""
        assert self.child is not None
        whole = self._whole()
        self.child.kill()
        self._until_gone(whole)

    def freeze(self) -> list[int]:
        """Let nothing of it run: the system goes on accepting connections, and nobody answers. Return its processes."""
        assert self.child is not None
        # First the one that makes the others.
        self.child.send_signal(signal.SIGSTOP)
        whole = self._whole()
        self._send(signal.SIGSTOP, whole)
        return whole

    def thaw(self) -> None:
        """Let it go on."""
        self._send(signal.SIGCONT, self._whole())

    def unread(self) -> int:
        """Count the connections on which something was said to it that it has not read."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        ours = f":{self.port:04X}"
        return sum(row[1].endswith(ours) and int(row[4].partition(":")[2], 16) > 0 for row in rows)

    def end(self) -> None:
        """Kill it if it runs, and remove its folder."""
        if self.child is not None and self.child.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command: str) -> None:
        """Run a program under the server's account to its end."""
        done = subprocess.run(command, cwd=self.folder, user=self.account, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def _whole(self) -> list[int]:
        assert self.child is not None
        children = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                # The name stands in brackets, and may hold anything.
                if int(stat.read_text().rpartition(")")[2].split()[1]) == self.child.pid:
                    children.append(int(stat.parent.name))
        return [self.child.pid, *children]

    def _send(self, number: signal.Signals, whole: list[int]) -> None:
        for pid in whole:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _until_gone(self, whole: list[int]) -> None:
        assert self.child is not None
        self.child.wait(PATIENCE_S)
        wait_for(lambda: not any(map(_is_alive, whole)), "the server is gone")

    def _last_words(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2_000:]


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


class PostgreSQL(Server):
    """PostgreSQL as it is set up by default: every commit is on disk before it is acknowledged."""

    names = ("initdb", "postgres")
    accounts = ("postgres",)
    stops = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

    def prepare(self) -> None:
        self.data = self.folder / "data"
        self.url = f"postgres://postgres@{LOOPBACK}:{self.port}/site"
        self.run(self.programs["initdb"], "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8")
        self.start()
        self._ask("CREATE DATABASE site")

    def command(self) -> list[str]:
        options = {
            "listen_addresses": LOOPBACK,
            "port": self.port,
            "unix_socket_directories": self.folder,
            "shared_buffers": "32MB",
            "fsync": "on",
        }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return [self.programs["postgres"], "-D", str(self.data), *settings]

    def answers(self) -> bool:
        import psycopg

        try:
            self._ask("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _ask(self, sql: str) -> None:
        import psycopg

        address = f"host={LOOPBACK} port={self.port} user=postgres dbname=postgres connect_timeout=5"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(sql.encode())


class MariaDB(Server):
    """MariaDB as it is set up by default. It has one orderly way to stop, so `immediate` is `kill -9`."""

    names = ("mariadbd", "mariadb-install-db")
    accounts = ("mysql",)
    stops = {"fast": signal.SIGTERM, "immediate": signal.SIGKILL}

    def prepare(self) -> None:
        self.data = self.folder / "data"
        self.url = f"mysql://root@{LOOPBACK}:{self.port}/site"
        self.run(
            self.programs["mariadb-install-db"],
            "--no-defaults",
            f"--datadir={self.data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        )
        self.start()
        self._ask("CREATE DATABASE site CHARACTER SET utf8mb4")

    def command(self) -> list[str]:
        return [
            self.programs["mariadbd"],
            "--no-defaults",
            f"--datadir={self.data}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--bind-address={LOOPBACK}",
            f"--port={self.port}",
            "--innodb-flush-log-at-trx-commit=1",
        ]

    def answers(self) -> bool:
        import MySQLdb

        try:
            self._ask("SELECT 1")
        except MySQLdb.OperationalError:
            return False
        return True

    def _ask(self, sql: str) -> None:
        import MySQLdb

        connection = MySQLdb.connect(host=LOOPBACK, port=self.port, user="root", connect_timeout=5)
        try:
            connection.query(sql)
        finally:
            connection.close()


KINDS: dict[str, type[Server]] = {"postgresql": PostgreSQL, "mysql": MariaDB}
