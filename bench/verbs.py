"""How fast each verb is on one database (PostgreSQL for `heartbeats`), alone and 50 at once, and how fast a pass
decides. Prints JSON.

For `growth.py`, which runs it on databases that differ in what stands in them; by hand:
`python bench/verbs.py --dsn URL`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WHAT = ("lives", "pass", "moves", "heartbeats", "drain")


def site(dsn: str) -> None:
    """Set the project up on this database."""
    os.environ["DATABASE_URL"] = dsn
    os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
    os.environ["LOG_LEVEL"] = "WARNING"
    os.environ.setdefault("SECRET_KEY", "of no use to anybody, since nothing is signed here")
    sys.path.insert(0, str(ROOT))
    import django

    django.setup()


def lives(size: int, turns: int) -> dict[str, float]:
    """Return how many workloads a second pass each verb, by so many at once."""
    from life import steps

    spent: dict[str, float] = {}
    for turn in range(turns + 1):
        for step in steps(size):
            begun = time.perf_counter()
            outcome = step.call()
            seconds = time.perf_counter() - begun
            assert step.check(outcome), f"{step.name}: {outcome}"
            # The first turn prepares statements, and is not counted.
            spent[step.name] = spent.get(step.name, 0.0) + seconds if turn else 0.0
    return {name: round(size * turns / seconds, 1) for name, seconds in spent.items()}


def median_s(make: Callable[[int], Any], size: int, turns: int) -> float:
    """Return how many seconds a step takes, the median of so many turns."""
    taken = []
    for _ in range(turns):
        step = make(size)
        begun = time.perf_counter()
        outcome = step.call()
        taken.append(time.perf_counter() - begun)
        assert step.check(outcome), outcome
    return statistics.median(taken)


def passes(due: int, turns: int) -> dict[str, float]:
    """Return how long a pass takes that gives so many workloads back, in seconds, and its decisions a second."""
    from life import decision

    seconds = median_s(decision, due, turns)
    return {"seconds": round(seconds, 4), "decisions": round(due / seconds, 1)}


def moves(size: int, turns: int) -> dict[str, float]:
    """Return how long a pass takes that finds nothing due, but so many whose `due_at` heartbeats have outrun."""
    from life import postponement

    return {"seconds": round(median_s(postponement, size, turns), 4)}


def drained(count: int) -> float:
    """Return how many workloads a second a worker of 300 threads claims, runs and completes."""
    from life import DEFINITION, request

    from workloads import authority
    from workloads.worker import Worker, program
    from workloads.worker.registry import Registry

    for start in range(0, count, 1_000):
        authority.admit_many([request() for _ in range(min(1_000, count - start))])
    handlers = Registry()
    handlers.add(lambda attempt: None, DEFINITION)
    begun = time.perf_counter()
    summary, _ = program.run(Worker(concurrency=300, drain=True, handlers=handlers))
    seconds = time.perf_counter() - begun
    assert dict(summary.endings) == {"succeeded": count}, summary
    return round(count / seconds, 1)


def heartbeats(size: int, turns: int) -> dict[str, float]:
    """Return how many heartbeats there were of the workloads that are held, and how many were HOT updates."""
    from django.db import connection
    from life import LEASE_MS, request, take

    from workloads import authority

    def counted() -> tuple[int, int]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_force_next_flush()")
            cursor.execute("SELECT pg_stat_clear_snapshot()")
            cursor.execute(
                "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'workloads_workload'"
            )
            updates, hot = cursor.fetchone()
        return int(updates), int(hot)

    authority.admit_many([request() for _ in range(size)])
    held = [(claim.fence, LEASE_MS) for claim in take(size)]
    updates, hot = counted()
    begun = time.perf_counter()
    for _ in range(turns):
        authority.heartbeat_many(held)
    seconds = time.perf_counter() - begun
    after, hot_after = counted()
    authority.complete_many(_reports(held))
    return {
        "updates": after - updates,
        "hot": hot_after - hot,
        "share": round((hot_after - hot) / max(1, after - updates), 4),
        "rate": round(len(held) * turns / seconds, 1),
    }


def _reports(held: list) -> list:
    from workloads.contract import CompletionReport

    return [CompletionReport(fence=fence, result_id=fence.claim_id, output=None) for fence, _ in held]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--what", choices=WHAT, nargs="+", default=["lives", "pass", "heartbeats"])
    parser.add_argument("--turns", type=int, default=200, help="lives alone; a fifth of that in batches (200)")
    parser.add_argument("--drain", type=int, default=2_000, help="workloads that a worker does (2000)")
    parser.add_argument("--due", type=int, default=1000, help="workloads that a pass decides on (1000)")
    options = parser.parse_args()
    site(options.dsn)
    answer: dict[str, dict[str, float]] = {}
    if "lives" in options.what:
        answer["alone"] = lives(1, options.turns)
        answer["50 at once"] = lives(50, max(2, options.turns // 5))
    if "heartbeats" in options.what:
        answer["heartbeats"] = heartbeats(500, 20)
    if "drain" in options.what:
        answer["drain"] = {"a worker": drained(options.drain)}
    if "moves" in options.what:
        answer["moves"] = moves(options.due, 3)
    if "pass" in options.what:
        answer["pass"] = passes(options.due, 3)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
