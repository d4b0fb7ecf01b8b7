"""What a workload's life costs the database. None of it moves with the machine, so it is held at bounds.

On PostgreSQL it is counted on the wire, whatever way the authority asks: single statements, pipelines, COPY. Rows and
bytes of WAL are those of a server that is started for them alone. Elsewhere statements and commits are counted where
Django passes them on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from bench.life import Step, decision, steps
from bench.wire import Wire, through

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).resolve().parents[2]
WARM = 2
MARKS = ("BEGIN", "START", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")


@dataclass(frozen=True)
class Bound:
    """The most that one call may cost, however many workloads are in it."""

    statements: int
    round_trips: int
    transactions: int = 1
    """With those of lone statements that only read."""


ONE = {
    "admit": Bound(2, 2, 2),
    "claim and start": Bound(4, 6),
    "heartbeat": Bound(2, 4),
    "complete": Bound(3, 5),
    "pass": Bound(12, 18, 10),
}
"""Of a call for one workload, on PostgreSQL."""

MANY = {
    "admit": Bound(4, 8),
    "claim and start": Bound(4, 6),
    "heartbeat": Bound(2, 4),
    "complete": Bound(3, 5),
    "pass": Bound(12, 18, 10),
}
"""Of a call for many, on PostgreSQL."""

ELSEWHERE = {
    "sqlite": {
        "admit": Bound(5, 0),
        "claim and start": Bound(7, 0),
        "heartbeat": Bound(2, 0),
        "complete": Bound(7, 0),
        "pass": Bound(13, 0, 3),
    },
    "mysql": {
        "admit": Bound(7, 0),
        "claim and start": Bound(8, 0),
        "heartbeat": Bound(3, 0),
        "complete": Bound(9, 0),
        "pass": Bound(13, 0, 3),
    },
}
"""Of a call for any number, on the other databases, where round trips are not counted."""

ON_ITS_OWN = {
    1: {
        "admit": (1, 4, 2_500),
        "claim and start": (1, 6, 2_500),
        "heartbeat": (1, 1, 350),
        "complete": (1, 4, 1_700),
        "a life": (3, 14, 6_500),
        "pass": (3, 5, 2_200),
    },
    50: {
        "admit": (1, 4, 2_600),
        "claim and start": (1, 4.1, 2_150),
        "heartbeat": (1, 1, 500),
        "complete": (1, 4, 1_900),
        "a life": (3, 12.1, 6_500),
        "pass": (3, 4.1, 2_200),
    },
}
"""Commits that write of one call; rows written and bytes of WAL, without full-page images, for each workload in it."""

DRAIN = {"statements": 0.5, "round_trips": 0.7, "commits": 0.12, "rows": 8.2, "wal_bytes": 4_300}
"""For each workload that a worker claims, starts and completes, 50 at once."""

Counted = Callable[[Step], dict[str, int]]


@pytest.fixture(autouse=True)
def unannounced(limits: Callable[..., None]) -> None:
    """Say no NOTIFY: another thread says it, at most once in a while, so a call has it or has it not."""
    limits(NOTIFICATIONS=False)


@contextmanager
def on_the_wire() -> Iterator[Counted]:
    """Count on PostgreSQL's protocol."""
    settings = connection.settings_dict
    wire = Wire(settings["HOST"] or "127.0.0.1", int(settings["PORT"] or 5432))

    def call(step: Step) -> dict[str, int]:
        with wire.counting() as count:
            outcome = step.call()
        assert step.check(outcome), f"{step.name}: {outcome}"
        return {"statements": count.statements, "round_trips": count.round_trips, "transactions": count.transactions}

    try:
        with through(wire, connections):
            yield call
    finally:
        wire.close()


@contextmanager
def where_django_passes_them_on() -> Iterator[Counted]:
    """Count what Django logs; `executemany` is one statement."""

    def call(step: Step) -> dict[str, int]:
        with CaptureQueriesContext(connection) as captured:
            outcome = step.call()
        assert step.check(outcome), f"{step.name}: {outcome}"
        asked = [query["sql"] for query in captured]
        statements = sum(not sql.startswith(MARKS) for sql in asked)
        commits = sum(sql.startswith("COMMIT") for sql in asked)
        return {"statements": statements, "round_trips": 0, "transactions": commits}

    yield call


@contextmanager
def counting() -> Iterator[Counted]:
    with on_the_wire() if connection.vendor == "postgresql" else where_django_passes_them_on() as counted:
        yield counted


def costs(counted: Counted, size: int) -> dict[str, dict[str, int]]:
    """Return what each call costs, once what is new the first time (a lane, a prepared statement) is there."""
    found: dict[str, dict[str, int]] = {}
    for _ in range(WARM + 1):
        found = {step.name: counted(step) for step in steps(size)}
        step = decision(size)
        found[step.name] = counted(step)
    return found


def over(found: dict[str, dict[str, int]], bounds: dict[str, Bound]) -> dict[str, Any]:
    """Return what is over its bound: what it costs, and what it may."""
    return {
        name: (kept, bounds[name])
        for name, kept in found.items()
        if any(value > getattr(bounds[name], figure) for figure, value in kept.items())
    }


def test_a_call_for_one_workload_stays_within_its_bounds() -> None:
    with counting() as counted:
        found = costs(counted, 1)
    assert set(found) == set(ONE)
    assert over(found, ELSEWHERE.get(connection.vendor, ONE)) == {}


def test_a_call_for_many_costs_the_same_for_any_number_of_them() -> None:
    """Round trips have their bound alone: an answer that comes together with the one before it saves a flush."""
    with counting() as counted:
        some, more = costs(counted, 20), costs(counted, 60)
    bounds = ELSEWHERE.get(connection.vendor, MANY)
    assert over(some, bounds) == over(more, bounds) == {}
    for found in (some, more):
        for kept in found.values():
            del kept["round_trips"]
    assert some == more


@pytest.fixture(scope="module")
def on_a_server_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the costs as `bench/costs.py` measures them, where a PostgreSQL can be started."""
    if connection.vendor != "postgresql":
        pytest.skip("once is enough, and it needs PostgreSQL")
    place = tmp_path_factory.mktemp("costs") / "costs.json"
    command = [sys.executable, ROOT / "bench" / "costs.py", "--sizes", "1", "50", "--json", place]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode and "Install a PostgreSQL server" in done.stderr:
        pytest.skip("no programs of a PostgreSQL server are installed here")
    assert done.returncode == 0, done.stderr
    return json.loads(place.read_text())["costs"]


@pytest.mark.parametrize("size", ON_ITS_OWN)
def test_a_workload_writes_little(on_a_server_of_its_own: dict[str, Any], size: int) -> None:
    each = {
        name: (kept["commits"], kept["rows"] / kept["workloads"], kept["wal_bytes"] / kept["workloads"])
        for name, kept in on_a_server_of_its_own[str(size)].items()
    }
    bounds = ON_ITS_OWN[size]
    over = {
        name: (is_, bounds[name])
        for name, is_ in each.items()
        if any(a > b for a, b in zip(is_, bounds[name], strict=True))
    }
    assert over == {}


def test_a_worker_pays_for_many_at_once(on_a_server_of_its_own: dict[str, Any]) -> None:
    kept = on_a_server_of_its_own["worker"]["drain"]
    each = {figure: kept[figure] / kept["workloads"] for figure in DRAIN}
    assert {figure: value for figure, value in each.items() if value > DRAIN[figure]} == {}
