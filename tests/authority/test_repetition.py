"""A transaction of the authority's own is repeated, a bounded number of times; a caller's is not. Section 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from tests.authority.builders import admit, refused
from tests.support import at
from workloads import authority
from workloads.authority import records
from workloads.authority.records import Superseded, Transaction, transact
from workloads.contract import Timeouts
from workloads.lifecycle import deadlines

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The longest that each pause may last, in the order in which they were made; none is waited for."""
    made: list[float] = []
    monkeypatch.setattr(records.random, "uniform", lambda shortest, longest: longest - shortest)
    monkeypatch.setattr(records.time, "sleep", made.append)
    return made


def failing(times: int, error: Exception) -> tuple[Callable[[Transaction], int], list[int]]:
    """Return work that fails some times before it answers, and the list of its calls."""
    calls: list[int] = []

    def work(tx: Transaction) -> int:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return len(calls)

    return work, calls


LOCKED = OperationalError("database is locked")


@pytest.mark.parametrize("error", [LOCKED, Superseded()])
def test_it_is_tried_up_to_eight_times_with_longer_and_longer_pauses(error: Exception, pauses: list[float]) -> None:
    work, calls = failing(7, error)
    assert transact(work) == 8
    assert len(calls) == 8
    assert pauses == [0.005 * 2**turn for turn in range(1, 8)]


def test_then_the_error_is_raised(pauses: list[float]) -> None:
    work, calls = failing(99, LOCKED)
    with pytest.raises(OperationalError):
        transact(work)
    assert (len(calls), len(pauses)) == (8, 7)


def test_a_version_that_moves_on_and_on_is_a_conflict() -> None:
    work, calls = failing(99, Superseded())
    with refused("WORKLOAD_CONFLICT"):
        transact(work)
    assert len(calls) == 8


def test_an_error_that_repeating_does_not_mend_is_raised_at_once(pauses: list[float]) -> None:
    work, calls = failing(99, DatabaseError("disk image is malformed"))
    with pytest.raises(DatabaseError):
        transact(work)
    assert (len(calls), pauses) == (1, [])


def test_a_sweep_whose_connection_is_lost_goes_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    admit(timeouts=Timeouts(queue_ms=1))

    def lose(*given: Any, **options: Any) -> Any:
        connection.close()
        raise OperationalError("the server has gone away")

    monkeypatch.setattr(deadlines, "enforce", lose)
    with pytest.raises(DatabaseError):
        authority.enforce_deadlines(now=at(5))


@pytest.fixture
def by_hand() -> Iterator[None]:
    """Leave the transaction to the caller without Django's blocks."""
    connection.ensure_connection()
    connection.set_autocommit(False)
    try:
        yield
    finally:
        connection.rollback()
        connection.set_autocommit(True)


def assert_tried_once() -> None:
    work, calls = failing(99, LOCKED)
    with pytest.raises(OperationalError):
        transact(work)
    assert len(calls) == 1
    work, calls = failing(99, Superseded())
    with refused("WORKLOAD_CONFLICT"):
        transact(work)
    assert len(calls) == 1


def test_a_callers_block_is_not_repeated() -> None:
    with transaction.atomic():
        assert_tried_once()
        transaction.set_rollback(True)


def test_nor_is_a_transaction_that_the_caller_keeps_by_hand(by_hand: Any) -> None:
    assert_tried_once()


def test_no_savepoint_is_made_in_a_callers_block() -> None:
    with transaction.atomic(), CaptureQueriesContext(connection) as captured:
        admit()
    assert not [query for query in captured.captured_queries if "SAVEPOINT" in query["sql"]]
