"""The interface of everything that is measured, and the counter that its no-op job moves."""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

COUNTS = "BENCH_COUNTS"
RECORD = struct.Struct("=q")


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """How many jobs one measurement takes, at scale 1: about five seconds' worth on two cores."""

    one: int
    bulk: int | None
    drain: int


@dataclass(frozen=True, kw_only=True)
class Clone:
    """A table whose newest finished row is copied, each copy with other values in some columns.

    The values are SQL over `n`, the number of the copy from 1, and `s`, the row copied; "" is the column's default.
    `rows` are the rows to copy for each job (SQL after `FROM table AS s`).
    """

    table: str
    values: dict[str, str] = field(default_factory=dict)
    rows: str = "LIMIT 1"


class Peer:
    """One system: how it is set up, given jobs that do nothing, and made to do them."""

    title = ""
    requirements: Sequence[str] = ()
    version = ""
    """The version measured; None where the code of this checkout is."""
    concurrency = 1
    choice = ""
    """Why this concurrency, and what else was chosen."""
    jobs = Jobs(one=1000, bulk=10_000, drain=2000)
    pending = "SELECT TRUE"
    """SQL that answers one boolean: whether jobs are left that are not done."""
    finished: Sequence[Clone] = ()
    """Which rows a finished job leaves behind."""
    finished_by_work = 0
    """Where copies of rows would not do: so many jobs are run instead."""
    needs_postgres = True

    def __init__(self, dsn: str, concurrency: int) -> None:
        self.dsn = dsn
        self.concurrency = concurrency
        self.watch = Stopwatch()

    def setup(self) -> None:
        """Make the tables in an empty database."""
        raise NotImplementedError

    def enqueue(self, count: int) -> float:
        """Enqueue jobs one by one, each in its own transaction; return the seconds it took."""
        raise NotImplementedError

    def enqueue_many(self, count: int) -> float:
        """Enqueue jobs as many at once as is best; return the seconds it took."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Import and connect whatever a worker needs before its first job."""

    def work(self) -> None:
        """Run a worker until it is killed or, where it can, until there is nothing to do."""
        raise NotImplementedError

    def stopwatch(self) -> Stopwatch:
        """Return a context that measures its block."""
        self.watch = Stopwatch()
        return self.watch


class Stopwatch:
    """Measures the seconds of its block, and this process's seconds of processor time in it."""

    seconds = 0.0
    cpu_s = 0.0

    def __enter__(self) -> Stopwatch:
        self._begun, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._begun
        self.cpu_s = time.process_time() - self._cpu


class Counter:
    """Counts the jobs that this process has run, in a file of its own that others may read at any time."""

    def __init__(self) -> None:
        self._pid: int | None = None

    def _open(self) -> None:
        path = Path(os.environ[COUNTS]) / str(os.getpid())
        path.write_bytes(bytes(RECORD.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), RECORD.size)
        self._lock = threading.Lock()
        self._count = 0
        self._pid = os.getpid()

    def add(self) -> None:
        """Count one more job."""
        if self._pid != os.getpid():
            with _opening:
                if self._pid != os.getpid():
                    self._open()
        with self._lock:
            self._count += 1
            RECORD.pack_into(self._map, 0, self._count)


_opening = threading.Lock()
_counter = Counter()


def beat() -> None:
    """Count a job that was run: all that the no-op job of each peer does."""
    _counter.add()


def read_counts(folder: Path) -> int:
    """Return how many jobs were run by all processes together."""
    found = [path.read_bytes() for path in folder.iterdir()]
    return sum(RECORD.unpack(data)[0] for data in found if len(data) == RECORD.size)


def parts_of(dsn: str) -> dict[str, Any]:
    """Return what a URL of a PostgreSQL database says, by the names that Django gives it."""
    url = urlsplit(dsn)
    return {
        "USER": url.username or "postgres",
        "PASSWORD": url.password or "",
        "HOST": url.hostname or "127.0.0.1",
        "PORT": url.port or 5432,
        "NAME": url.path.lstrip("/"),
    }


def chunks(count: int, size: int) -> list[int]:
    """Return how large each part is when so many are cut into parts of at most `size`."""
    return [min(size, count - begun) for begun in range(0, count, size)]
