"""Work of several lanes: how many are taken from each, and that what others have locked does not upset the order."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from django.db import connection

from tests.authority.builders import admit, id_of, spoil, take
from tests.support import T0, at
from workloads import authority
from workloads.authority import claims, records
from workloads.models import Lane

pytestmark = pytest.mark.django_db


def put(name: str, lane: str, priority: int) -> int:
    """Admit work into a lane, and return its key."""
    return authority.get(admit(name, definition_id=lane, priority=priority)).pk


def lane_of(name: str) -> int:
    return Lane.objects.get(definition_id=name).pk


def shares(need: int, *lanes: str, without: Collection[int] = ()) -> dict[int, tuple[int, set[int], int | None]]:
    """Return how many are to be taken from each lane, which these are, and the lowest priority to take."""
    tx = records.Transaction(connection, T0)
    found = claims._shares(tx, [lane_of(lane) for lane in lanes], need, without, T0)
    assert len({share.lane for share in found}) == len(found)
    return {share.lane: (share.size, set(share.seen), share.floor) for share in found}


def test_the_next_are_shared_out_and_the_best_of_what_is_left_elsewhere_is_the_floor() -> None:
    a = [put(f"a{priority}", "a", priority) for priority in (9, 5, 1)]
    b = [put(f"b{priority}", "b", priority) for priority in (7, 3)]
    c = [put("c-2", "c", -2)]
    assert shares(2, "a", "b", "c") == {lane_of("a"): (1, {a[0]}, 3), lane_of("b"): (1, {b[0]}, 5)}
    assert shares(5, "a", "b", "c") == {lane_of("a"): (3, set(a), -2), lane_of("b"): (2, set(b), -2)}
    assert shares(6, "a", "b", "c") == {
        lane_of("a"): (3, set(a), None),
        lane_of("b"): (2, set(b), None),
        lane_of("c"): (1, set(c), None),
    }
    assert shares(1, "a", "b", without=[a[0]]) == {lane_of("b"): (1, {b[0]}, 5)}
    assert shares(2, "a", "b", without=[*a]) == {lane_of("b"): (2, set(b), None)}


def test_one_lane_gives_all() -> None:
    put("a", "a", 1)
    assert shares(7, "a") == {lane_of("a"): (7, set(), None)}


def test_lanes_without_work_give_none() -> None:
    for name in "ab":
        put(name, name, 1)
    take(now=T0)
    assert shares(3, "a", "b") == {}


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The keys of work that another caller has locked: a statement that locks passes over it."""
    keys: set[int] = set()
    lock_queued = claims.lock_queued

    def lock(tx: Any, lane: int, limit: int, without: Collection[int], *more: Any) -> Any:
        return lock_queued(tx, lane, limit, [*without, *keys], *more)

    monkeypatch.setattr(claims, "lock_queued", lock)
    return keys


def names(limit: int) -> list[str]:
    claimed = take(now=at(1), limit=limit)
    return [authority.get(workload_id).idempotency_key for workload_id in claimed]


def test_what_another_has_locked_makes_no_lower_work_go_before_higher(locked: set[int]) -> None:
    put("a5", "a", 5)
    put("a1", "a", 1)
    locked.add(put("b3", "b", 3))
    put("b0", "b", 0)
    assert names(2) == ["a5", "a1"]
    assert names(2) == ["b0"]


def test_a_lane_whose_rest_is_locked_is_left_and_the_others_are_gone_on_with(locked: set[int]) -> None:
    for name, lane, priority in (("a5", "a", 5), ("a1", "a", 1), ("b3", "b", 3)):
        key = put(name, lane, priority)
        if lane == "a":
            locked.add(key)
    assert names(3) == ["b3"]
    assert names(3) == []


def test_all_in_one_lane_may_be_locked(locked: set[int]) -> None:
    locked.add(put("a", "a", 5))
    assert names(2) == []


@pytest.mark.parametrize("lanes", ["a", "ab"])
def test_a_row_that_cannot_be_read_is_passed_over_and_told_once(
    lanes: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(records, "_told", set())
    for name in lanes:
        put(f"good {name}", name, 1)
    keys = {put(f"bad {name}", name, 5) for name in lanes}
    for name in lanes:
        spoil(id_of(f"bad {name}"))
    with caplog.at_level("ERROR", logger="workloads.authority"):
        assert sorted(names(9)) == [f"good {name}" for name in lanes]
        assert names(9) == []
    told = [told.args for told in caplog.records]
    assert {key for key, _ in told} == keys
    assert len(told) == len(keys)
    assert all(isinstance(error, Exception) for _, error in told)
    assert all("can't be read" in told.getMessage() for told in caplog.records)


def test_what_cannot_be_read_is_made_up_for() -> None:
    put("bad", "a", 5)
    spoil(id_of("bad"))
    for number in range(3):
        put(f"good {number}", "a", -number)
    assert names(2) == ["good 0", "good 1"]
