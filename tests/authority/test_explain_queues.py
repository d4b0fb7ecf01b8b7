"""How many go first, counted over several queues and beside them. Section 7."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.authority.builders import admit
from tests.support import at
from workloads import authority
from workloads.contract import Timeouts

pytestmark = pytest.mark.django_db

# The package has a verb of the same name.
explain = importlib.import_module("workloads.authority.explain")


def ahead(workload_id: str, now: Any) -> tuple[int, bool]:
    """Return how many go first, and whether there are more."""
    (blocker,) = [b for b in authority.explain(workload_id, now=now) if b.code == "behind_others"]
    return blocker.details["count"], blocker.details["more"]


def admit_some(count: int, definition_id: str, **more: Any) -> None:
    for n in range(count):
        admit(f"{definition_id} {n}", definition_id=definition_id, **more)


def test_a_short_queue_counts_though_a_longer_one_is_read_further() -> None:
    admit_some(1, "short")
    admit_some(9, "long")
    assert ahead(admit("last", priority=-1), at(1)) == (10, False)


def test_more_is_said_where_several_queues_hold_more_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "MOST_BEFORE", 2)
    admit_some(2, "a")
    admit_some(2, "b")
    assert ahead(admit("last", priority=-1), at(1)) == (2, True)


def test_more_is_said_where_one_beside_a_queue_is_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "MOST_BEFORE", 2)
    admit_some(2, "a")
    admit_some(1, "b", not_before=at(1), priority=1)
    assert ahead(admit("last", priority=-1), at(2)) == (2, True)


def test_what_is_not_due_goes_before_nobody_whatever_its_priority() -> None:
    admit("due", not_before=at(1))
    admit("later", not_before=at(60_000), priority=9)
    assert ahead(admit("last", priority=-1), at(2)) == (1, False)


def test_what_is_at_its_deadline_goes_before_nobody() -> None:
    admit("late", not_before=at(1), timeouts=Timeouts(queue_ms=10))
    admit("due", not_before=at(1))
    last = admit("last", priority=-1)
    assert [ahead(last, at(ms))[0] for ms in (10, 11)] == [2, 1]
