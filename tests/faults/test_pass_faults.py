"""What befalls a pass: its connection ends in the middle of a thousand, and everybody writes at once. Section 8."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import Error, connection, connections

from tests.authority.builders import request
from tests.faults.disturbance import At, Watcher, answer_lost
from tests.races.processes import race
from tests.support import T0, at
from workloads import authority
from workloads.contract import Timeouts
from workloads.models import Event, Workload

RACERS = "tests.faults.racers"
TOTAL = 1_000
DUE = at(10_000)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no connection to end.")
    watcher = Watcher()
    yield watcher
    watcher.close()


def admit_due(total: int) -> None:
    """Admit work whose lease will be over at DUE, and as much whose deadline will have passed."""
    half = total // 2
    authority.admit_many([request(f"lost {n}") for n in range(half)], now=T0)
    authority.claim_next(worker_id="w", capabilities=(), lease_ms=1_000, limit=half, now=T0)
    late = Timeouts(queue_ms=1_000)
    authority.admit_many([request(f"late {n}", timeouts=late) for n in range(total - half)], now=T0)


def decided() -> Counter[str]:
    """Count, by workload, how often the clock has decided it."""
    rows = Event.objects.filter(to_state__in=("RECOVERING", "TIMED_OUT"))
    return Counter(rows.values_list("record__workload_id", flat=True))


def verify() -> None:
    assert list(authority.verify(now=at(20_000))) == []


def _again(named: list[str]) -> None:
    """Run the next pass, and check that it does what was left, and that each was decided once."""
    before = decided()
    report = authority.run_pass(now=DUE)
    assert report.failed == {}
    named += [*report.timed_out, *report.recovered]
    assert len(named) == len(set(named)) == TOTAL - len(before)
    assert decided() == dict.fromkeys(Workload.objects.values_list("workload_id", flat=True), 1)
    assert authority.run_pass(now=DUE).recovered == []
    verify()


@pytest.mark.parametrize("statement", [*(pytest.param(n, marks=pytest.mark.long) for n in (2, 3, 30)), 17])
def test_a_pass_whose_connection_ends_says_so_and_the_next_goes_on(statement: int, watcher: Watcher) -> None:
    admit_due(TOTAL)
    at_place = At(statement, watcher.cut, before=True)
    with connection.execute_wrapper(at_place), pytest.raises(Error):
        authority.run_pass(now=DUE)
    assert at_place.has_acted
    connections["default"].close()
    assert 0 <= len(decided()) < TOTAL
    assert len(decided()) % 100 == 0
    _again([])


@pytest.mark.parametrize(
    ("number", "done"),
    [pytest.param(3, 300, marks=pytest.mark.long), pytest.param(7, 700, marks=pytest.mark.long), (8, 800)],
)
def test_so_does_one_that_is_not_told_of_its_commit(number: int, done: int, watcher: Watcher) -> None:
    # The first sweep passes over the half that holds leases alone; the second decides on those.
    admit_due(TOTAL)
    with answer_lost(watcher, number), pytest.raises(Error):
        authority.run_pass(now=DUE)
    connections["default"].close()
    assert len(decided()) == done
    _again([])


def test_a_last_row_alone_is_not_named_for_the_connections_end(watcher: Watcher) -> None:
    authority.admit_many([request("alone", timeouts=Timeouts(queue_ms=1_000))], now=T0)
    with connection.execute_wrapper(At(2, watcher.cut, before=True)), pytest.raises(Error):
        authority.run_pass(now=DUE)
    connections["default"].close()
    assert len(authority.run_pass(now=DUE).timed_out) == 1


def test_the_command_ends_with_the_databases_error(watcher: Watcher) -> None:
    admit_due(20)
    with connection.execute_wrapper(At(5, watcher.cut, before=True)), pytest.raises(Error):
        call_command("workloads_pass")
    connections["default"].close()
    verify()


def _storm(rounds: int, total: int, batch: int) -> list[dict[str, Any]]:
    if connection.vendor == "sqlite" and "mode=memory" in str(connection.settings_dict["NAME"]):
        pytest.skip("A database in memory has one process.")
    calls: list[tuple[Any, ...]] = [(f"{RACERS}.sweep_often", rounds)] * 3
    calls += [(f"{RACERS}.work_often", f"w{n}", 2 * rounds) for n in range(3)]
    calls += [(f"{RACERS}.admit_in_bulk", seed, total, batch) for seed in range(2)]
    answers = race(calls)
    assert [error for answer in answers for error in answer["errors"]] == []
    assert sum(answer["done"] for answer in answers[6:]) == total == Workload.objects.count()
    assert sum(answer["done"] for answer in answers[3:6]) > 0
    assert list(authority.verify()) == []
    return answers


def test_passes_claimers_and_bulk_admissions_do_not_deadlock() -> None:
    _storm(6, 60, 10)


@pytest.mark.long
def test_many_passes_claimers_and_bulk_admissions_do_not_deadlock() -> None:
    _storm(150, 1_000, 40)
