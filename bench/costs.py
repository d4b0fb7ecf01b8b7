"""What a workload costs the database: statements, round trips, commits, rows and bytes of WAL, by verb.

Run `python bench/costs.py --help`. None of this moves with the machine, so `tests/authority/test_costs_of_a_life.py`
holds it at bounds. Statements and round trips are counted on the wire. WAL is that of a PostgreSQL of its own, without
full-page images and without autovacuum, since how many of those there are depends on how often there is a checkpoint;
nor is the NOTIFY counted that another thread says for many calls together.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from report import number, put, table
from server import NoServer, Server, started
from wire import Wire, through

ROOT = Path(__file__).resolve().parents[1]
QUIET = {"full_page_writes": "off", "autovacuum": "off"}
SIZES = (1, 50, 500)
WARM = 3
ENDED_S = 10
# Only a transaction that writes has a number.
NEXT = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
FIGURES = ("statements", "round_trips", "commits", "rows", "wal_bytes")


class Costs:
    """One database of the project, whose every connection passes through a wire that counts."""

    def __init__(self, server: Server) -> None:
        self.server = server
        address = server.create("bench_costs")
        parts = urlsplit(address)
        self.wire = Wire(parts.hostname or "127.0.0.1", parts.port or 5432)
        os.environ["DATABASE_URL"] = address
        os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
        os.environ["LOG_LEVEL"] = "WARNING"
        os.environ.setdefault("SECRET_KEY", "of no use to anybody, since nothing is signed here")
        sys.path.insert(0, str(ROOT))
        import django

        django.setup()
        from django.conf import settings
        from django.core.management import call_command

        # NOTIFY is said by another thread, once in a while: a call has it or has it not.
        settings.WORKLOADS = {**settings.WORKLOADS, "NOTIFICATIONS": False}

        call_command("migrate", verbosity=0)
        # Beside the wire, so that what is asked about the costs is none.
        self.aside = psycopg.connect(address, autocommit=True)

    def measure(self, sizes: tuple[int, ...]) -> dict[str, dict[str, dict[str, float]]]:
        """Return what each step costs in all, by how many workloads are in one call."""
        from django.db import connections

        found: dict[str, dict[str, dict[str, float]]] = {}
        with through(self.wire, connections):
            for size in sizes:
                for _ in range(WARM):
                    self.live(size, {})
                self.live(size, found.setdefault(str(size), {}))
            found["worker"] = {}
            self.drain(50)
            self.drain(500, found["worker"])
        return found

    def live(self, size: int, found: dict[str, dict[str, float]]) -> None:
        """Live so many lives at once, step by step."""
        from life import decision, steps

        for step in steps(size):
            with self.counted(size) as kept:
                outcome = step.call()
            assert step.check(outcome), f"{step.name}: {outcome}"
            found[step.name] = kept
        whole = [found[name] for name in ("admit", "claim and start", "complete")]
        found["a life"] = {figure: sum(kept[figure] for kept in whole) for figure in FIGURES} | {"workloads": size}
        step = decision(size)
        with self.counted(size) as kept:
            outcome = step.call()
        assert step.check(outcome), f"{step.name}: {outcome}"
        found[step.name] = kept

    def drain(self, size: int, found: dict[str, dict[str, float]] | None = None) -> None:
        """Have a worker do so many that wait."""
        from life import DEFINITION, request

        from workloads import authority
        from workloads.worker import Worker
        from workloads.worker.registry import Registry

        handlers = Registry()
        handlers.add(lambda attempt: None, DEFINITION)
        authority.admit_many([request() for _ in range(size)])
        worker = Worker(concurrency=50, drain=True, handlers=handlers)
        with self.counted(size) as kept:
            summary = worker.run()
        assert summary.endings.total() == size, summary
        if found is not None:
            found["drain"] = kept

    @contextmanager
    def counted(self, size: int) -> Iterator[dict[str, float]]:
        """Count what passes in the block, which is about so many workloads."""
        kept: dict[str, float] = {}
        rows, wal, last = self.rows(), self.server.wal(), self.ask(NEXT)
        with self.wire.counting() as count:
            yield kept
        kept |= asdict(count)
        kept |= {"wal_bytes": self.server.wal() - wal, "commits": self.ask(NEXT) - last}
        kept |= {"rows": self.rows() - rows, "workloads": size}

    def rows(self) -> int:
        """Return how many rows have ever been written by ended transactions."""
        from django.db import connections

        known = [self.aside.info.backend_pid]
        for connection in connections.all(initialized_only=True):
            if connection.connection is not None:
                known.append(connection.connection.info.backend_pid)
                with connection.cursor() as cursor:
                    # Else a backend tells its figures at most once a second; another tells them when it ends.
                    cursor.execute("SELECT pg_stat_force_next_flush()")
                    cursor.execute("SELECT 1")
        others = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND pid <> ALL(%s)"
        )
        until = time.monotonic() + ENDED_S
        while self.ask(others, known):
            assert time.monotonic() < until, "a connection is left open"
            time.sleep(0.01)  # nothing tells when a session has ended
        return int(self.ask("SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0) FROM pg_stat_user_tables"))

    def ask(self, query: str, *values: Any) -> Any:
        row = self.aside.execute(query, values).fetchone()
        return row and row[0]


def markdown(answer: dict[str, Any]) -> str:
    """Return the costs as Markdown tables."""
    parts = []
    for size, found in answer["costs"].items():
        is_worker = size == "worker"
        title = {"1": "One workload in one call", "worker": "A worker that drains 500, 50 at once"}.get(size)
        head = [
            "",
            *(f"{what}{' a workload' if is_worker else ''}" for what in ("statements", "round trips", "commits")),
        ]
        rows = [
            [step, *(number(kept[figure] / (kept["workloads"] if is_worker else 1)) for figure in FIGURES[:3])]
            + [number(kept[figure] / kept["workloads"]) for figure in FIGURES[3:]]
            for step, kept in found.items()
        ]
        told = table([*head, "rows a workload", "WAL bytes a workload"], rows)
        parts.append(f"{title or f'{size} workloads in one call'}:\n\n{told}")
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--dsn", help="a PostgreSQL on which nothing else writes (one of its own, which is better)")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="workloads in one call (1 50 500)")
    parser.add_argument("--json", metavar="FILE", help="where the figures go")
    parser.add_argument("--document", metavar="FILE", help="a Markdown file whose tables are made anew")
    options = parser.parse_args()
    try:
        with started(options.dsn, QUIET) as server:
            costs = Costs(server)
            answer = {"settings": server.settings(), "costs": costs.measure(tuple(options.sizes))}
            costs.aside.close()
            costs.wire.close()
            server.drop("bench_costs")
    except NoServer as error:
        sys.exit(str(error))
    if options.json:
        Path(options.json).parent.mkdir(parents=True, exist_ok=True)
        Path(options.json).write_text(json.dumps(answer, indent=1) + "\n")
    print(markdown(answer))
    if options.document:
        put(Path(options.document), "costs", markdown(answer))


if __name__ == "__main__":
    main()
