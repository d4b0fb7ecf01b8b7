"""One measurement of one peer: enqueueing, or draining with so many workers; its rate, its WAL, its processor time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psycopg
from peers.base import COUNTS, Clone, Peer, read_counts
from psycopg import sql
from server import Server, processes, spent

HERE = Path(__file__).resolve().parent
LOOK_S = 0.01
WARM = 0.1
"""The share of the jobs that is done before a drain is measured: connections are open by then, statements prepared."""
STALLED_S = 0.1
LEAVE_S = 5.0


class Failed(Exception):
    """A peer did not do what was asked of it; the message is why, in its own words where it had any."""


@dataclass(kw_only=True)
class Mark:
    """Where everything stands at one instant of a drain; times in seconds."""

    done: int
    at: float
    client_s: float
    server_s: float | None
    wal: int


@dataclass(kw_only=True)
class Subject:
    """One peer, ready to be measured: its class, its Python, its database's address, how it is run."""

    name: str
    kind: type[Peer]
    python: str
    server: Server
    concurrency: int
    patience_s: float
    dsn: str = ""
    pending: str = ""
    """Its own question whether jobs are left, where jobs stand that nobody is to do; else that of its kind."""

    def command(self, verb: str, *more: object) -> list[str]:
        """Return the command that runs one of its verbs."""
        given = ["--dsn", self.dsn, "--concurrency", self.concurrency, *more]
        return [self.python, str(HERE / "peer.py"), self.name, verb, *map(str, given)]

    def do(self, verb: str, *more: object) -> str:
        """Run one of its verbs to the end; return what it printed."""
        with _begun(self.command(verb, *more)) as (process, errors):
            try:
                output, _ = process.communicate(timeout=self.patience_s)
            except subprocess.TimeoutExpired:
                raise Failed(f"{verb} took longer than {self.patience_s:.0f} s. {_last_words(errors)}") from None
            if process.returncode:
                raise Failed(f"{verb} failed. {_last_words(errors)}")
            return str(output)

    def enqueue(self, verb: str, count: int) -> dict[str, float]:
        """Measure `enqueue` or `bulk`."""
        if self.kind.needs_postgres:
            self.server.rest()
        server_s, wal = self.server.cpu_s(), self.server.wal()
        answer = json.loads(self.do(verb, "--count", count).strip().splitlines()[-1])
        wal = self.server.wal() - wal
        return self._figures(count, answer["seconds"], answer["client_s"], since(self.server, server_s), wal)

    def fill(self, count: int) -> None:
        """Have so many jobs wait, by the fastest way that it has."""
        self.do("bulk" if self.kind.jobs.bulk else "enqueue", "--count", count)

    def drain(self, count: int, workers: int) -> dict[str, float]:
        """Measure how fast the jobs that wait are done: from when a tenth is, to the last one's commit."""
        if self.kind.needs_postgres:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                # As an autovacuum would have by then.
                connection.execute("ANALYZE")
            self.server.rest()
        folder = Path(tempfile.mkdtemp(prefix="workloads-bench-"))
        try:
            return self._drain(count, workers, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _drain(self, count: int, workers: int, folder: Path) -> dict[str, float]:
        command = self.command("work", "--count", count)
        running = [_begun(command, counts=folder) for _ in range(workers)]
        with _all(running) as begun, _pending(self) as pending:
            for process, errors in begun:
                if not process.stdout or process.stdout.readline().strip() != "ready":
                    raise Failed(f"The worker did not start. {_last_words(errors)}")
            for process, _ in begun:
                assert process.stdin
                process.stdin.write("go\n")
                process.stdin.flush()
            until = time.monotonic() + self.patience_s
            warm = self._mark(begun, 0)
            done, moved_at = 0, time.monotonic()
            while True:
                time.sleep(LOOK_S)  # how often the processor time is looked at
                now = time.monotonic()
                found = read_counts(folder)
                # So few that all were done between two looks are measured from the begin.
                if not warm.done and WARM * count <= found <= count / 2:
                    warm = self._mark(begun, found)
                if found != done:
                    done, moved_at = found, now
                if done >= count or now - moved_at > STALLED_S:
                    # Asked seldom, since it costs the server; and only when it may be true.
                    if done >= count and not pending():
                        break
                    if all(process.poll() is not None for process, _ in begun) and (done < count or pending()):
                        said = _last_words(begun[0][1])
                        raise Failed(f"The worker ended after {done} of {count} jobs, and not all are done. {said}")
                if now > until:
                    said = _last_words(begun[0][1])
                    raise Failed(f"{done} of {count} jobs were done in {self.patience_s:.0f} s. {said}")
            end = self._mark(begun, done)
        server_s = None if end.server_s is None or warm.server_s is None else end.server_s - warm.server_s
        return self._figures(
            end.done - warm.done, end.at - warm.at, end.client_s - warm.client_s, server_s, end.wal - warm.wal
        )

    def _figures(
        self, count: int, seconds: float, client_s: float, server_s: float | None, wal: int
    ) -> dict[str, float]:
        found = {
            "count": count,
            "seconds": round(seconds, 4),
            "rate": round(count / seconds, 2),
            "client_ms": round(1000 * client_s / count, 4),
        }
        if not self.kind.needs_postgres:
            return found
        found["wal_bytes"] = round(wal / count, 1)
        return found if server_s is None else found | {"server_ms": round(1000 * server_s / count, 4)}

    def _mark(self, begun: list[tuple[subprocess.Popen[str], IO[bytes]]], done: int) -> Mark:
        return Mark(
            done=done,
            at=time.monotonic(),
            client_s=_client_s(begun),
            server_s=self.server.cpu_s(),
            wal=self.server.wal(),
        )


def since(server: Server, before: float | None) -> float | None:
    """Return the server's processor time since then, in seconds."""
    now = server.cpu_s()
    return None if now is None or before is None else now - before


def _client_s(begun: list[tuple[subprocess.Popen[str], IO[bytes]]]) -> float:
    """Return the processor time of the workers and all their children, dead ones too."""
    sessions = {str(process.pid) for process, _ in begun}
    return sum(spent(fields, with_ended=True) for fields in processes() if fields[5] in sessions)


@contextmanager
def open_worker(subject: Subject, counts: Path) -> Iterator[subprocess.Popen[str]]:
    """Have a worker ready to go; a line on its standard input lets it."""
    with _begun(subject.command("work"), counts=counts) as (process, errors):
        if not process.stdout or process.stdout.readline().strip() != "ready":
            raise Failed(f"The worker did not start. {_last_words(errors)}")
        yield process


@contextmanager
def _pending(subject: Subject) -> Iterator[Any]:
    if not subject.kind.needs_postgres:
        yield lambda: False
        return
    with psycopg.connect(subject.dsn, autocommit=True) as connection:

        def ask() -> bool:
            row = connection.execute(subject.pending or subject.kind.pending, prepare=True).fetchone()
            return bool(row and row[0])

        yield ask


@contextmanager
def _begun(command: list[str], counts: Path | None = None) -> Iterator[tuple[subprocess.Popen[str], IO[bytes]]]:
    """Run a program in a session of its own, which is gone afterwards with all that it has begun."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    if counts:
        environment[COUNTS] = str(counts)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            yield process, errors
        finally:
            _end(process)
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    with suppress(OSError):
                        pipe.close()


def _end(process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + LEAVE_S
    # The first signal is for the program itself, which tells its children.
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    while time.monotonic() < until and (process.poll() is None or _is_group_alive(process.pid)):
        time.sleep(LOOK_S)  # nothing tells when a whole group is gone
    if process.poll() is None or _is_group_alive(process.pid):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _is_group_alive(group: int) -> bool:
    return any(fields[4] == str(group) and fields[2] != "Z" for fields in processes())


@contextmanager
def _all(contexts: list[Any]) -> Iterator[list[Any]]:
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield [stack.enter_context(context) for context in contexts]


def _last_words(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or "error" in line] or lines
    return told[-1][:300] if told else "It said nothing."


def copy_finished(dsn: str, clones: tuple[Clone, ...], count: int, step: int = 100_000) -> None:
    """Copy the rows that one finished job has left behind, as often as asked; indexes stand, as they would have."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        for clone in clones:
            names = [
                row[0]
                for row in connection.execute(
                    "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
                    "AND NOT attisdropped AND attgenerated = '' AND attidentity <> 'a' ORDER BY attnum",
                    [clone.table],
                )
            ]
            names = [name for name in names if clone.values.get(name) != ""]
            values = [sql.SQL(clone.values.get(name, f's."{name}"')) for name in names]
            statement = sql.SQL(
                "INSERT INTO {table} ({names}) SELECT {values} FROM (SELECT s.* FROM {table} AS s {rows}) AS s, "
                "generate_series({low}::bigint, {high}::bigint) AS n"
            )
            for low in range(1, count + 1, step):
                connection.execute(
                    statement.format(
                        table=sql.SQL(clone.table),
                        names=sql.SQL(", ").join(map(sql.Identifier, names)),
                        values=sql.SQL(", ").join(values),
                        rows=sql.SQL(clone.rows),
                        low=sql.Literal(low),
                        high=sql.Literal(min(low + step - 1, count)),
                    )
                )
            serials = connection.execute(
                "SELECT attname, pg_get_serial_sequence(%s, attname) FROM pg_attribute "
                "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
                [clone.table, clone.table],
            ).fetchall()
            for column, sequence in serials:
                if sequence:
                    connection.execute(
                        sql.SQL("SELECT setval({sequence}::regclass, (SELECT max({column}) FROM {table}))").format(
                            sequence=sql.Literal(sequence), column=sql.Identifier(column), table=sql.SQL(clone.table)
                        )
                    )
        connection.execute("VACUUM (ANALYZE)")
