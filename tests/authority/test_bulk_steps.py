"""Deciding on many at once, step by step: what each call keeps, and what it leaves as it was."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import DataError

from tests.authority.builders import ENDED_AT, S, admit, bring, refused, running, state_of
from tests.support import at
from workloads import authority
from workloads.authority import bulk
from workloads.contract import Timeouts
from workloads.models import BulkAction, BulkItem, Workload

pytestmark = pytest.mark.django_db

NOW = at(10_000)
LATER = at(20_000)


def begin(verb: str = "cancel", **more: Any) -> BulkAction:
    return authority.begin_bulk(verb, actor="olga", **({"now": NOW} | more))


def select(action: BulkAction, **more: Any) -> BulkAction:
    return authority.select_bulk(action.pk, Workload.objects.all(), **({"now": NOW} | more))


def confirm(action: BulkAction, **more: Any) -> BulkAction:
    return authority.confirm_bulk(action.pk, actor="olga", reason="again", **({"now": NOW} | more))


def go_on(action: BulkAction, **more: Any) -> BulkAction:
    return authority.continue_bulk(action.pk, actor="olga", **({"now": NOW} | more))


def test_the_criteria_are_empty_or_up_to_8000_characters() -> None:
    assert begin().criteria == ""
    assert begin(criteria="x" * 8_000).criteria == "x" * 8_000


def test_begun_on_an_empty_site_it_reaches_nothing() -> None:
    assert begin().upto == 0


def test_what_comes_behind_the_last_is_not_drawn_in_with_it() -> None:
    for key in "abc":
        admit(key)
    action = begin()
    assert select(action, width=2).stage == "selecting"
    admit("late")
    action = select(action, width=2)
    assert (action.stage, action.selected_count) == ("asking", 3)


def test_overall_deadlines_run_on_unless_they_are_to_be_restarted() -> None:
    assert confirm(select(begin())).restart_overall is False
    assert confirm(select(begin()), restart_overall=True).restart_overall is True


@pytest.mark.parametrize(("restart", "expected"), [(False, {"WORKLOAD_TIMED_OUT": 1}), (True, {})])
def test_whether_the_overall_deadline_is_restarted_is_kept_and_obeyed(restart: bool, expected: Any) -> None:
    fence = running(timeouts=Timeouts(overall_ms=9_000))
    authority.fail(fence, kind="no_retry", error="broken", now=ENDED_AT)
    action = go_on(confirm(select(begin("rearm")), restart_overall=restart))
    assert action.refusals == expected
    assert (state_of(fence.workload_id) == S.READY) is restart


def test_each_step_is_made_at_the_instant_that_is_given() -> None:
    admit()
    action = begin()
    assert action.updated_at == NOW
    assert select(action, now=at(11_000)).updated_at == at(11_000)
    assert confirm(action, now=at(12_000)).updated_at == at(12_000)
    assert go_on(action, now=at(13_000)).updated_at == at(13_000)
    assert authority.stop_bulk(begin().pk, actor="olga", now=at(14_000)).updated_at == at(14_000)
    assert BulkAction.objects.get(pk=action.pk).created_at == NOW


@pytest.mark.parametrize("call", [begin, select, confirm, go_on])
def test_an_instant_without_a_zone_is_refused(call: Any) -> None:
    given = () if call is begin else (begin(),)
    with refused("WORKLOAD_INVALID", {"field": "now"}):
        call(*given, now=dt.datetime(2041, 5, 6))


def test_what_still_selects_is_not_gone_on_with() -> None:
    action = begin()
    with refused("WORKLOAD_TRANSITION_DENIED", {"stage": "selecting"}):
        go_on(action)


def test_refusals_are_counted_by_their_codes_from_batch_to_batch() -> None:
    for n in range(3):
        bring(S.SUCCEEDED, f"done {n}")
    moved = admit("moved")
    admit("fine")
    action = confirm(select(begin()))
    authority.time_out(moved, actor="somebody", now=NOW)
    for _ in range(3):
        action = go_on(action, limit=2)
    expected = {"WORKLOAD_TRANSITION_DENIED": 3, "WORKLOAD_CONFLICT": 1}
    assert (action.stage, action.done_count, action.refused_count) == ("done", 1, 4)
    assert action.refusals == BulkAction.objects.get(pk=action.pk).refusals == expected


@pytest.mark.django_db(transaction=True)
def test_one_that_the_database_does_not_take_is_tried_once_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    admit()
    action = confirm(select(begin()))
    tried: list[int] = []

    def broken(tx: Any, decisions: Any) -> None:
        tried.append(len(decisions))
        raise DataError("out of range")

    monkeypatch.setattr(bulk, "write", broken)
    action = go_on(action, limit=1, now=LATER)
    assert tried == [1]
    assert (action.refusals, action.updated_at) == ({"NOT_WRITTEN": 1}, LATER)
    assert BulkItem.objects.get().message


def test_an_action_is_named_by_its_number_alone() -> None:
    BulkAction.objects.filter(pk=begin().pk).update(id=1)
    for wrong in ("1", 1.0, [1]):
        with refused("WORKLOAD_NOT_FOUND"):
            authority.stop_bulk(wrong, actor="olga", now=NOW)  # type: ignore[arg-type]
    assert authority.stop_bulk(1, actor="olga", now=NOW).stage == "stopped"
