"""Deciding on many at once: what is selected, that each is decided as the verb for one would, and once."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import pytest
from django.db import DataError, OperationalError, connection, transaction
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.authority.builders import EVERY, S, admit, bring, events, id_of, record, refused, spoil, state_of, unchanged
from tests.authority.lives import ALL_LIVED, FAR, live_all
from tests.support import T0, at
from workloads import authority
from workloads.authority import bulk
from workloads.contract import Dependency, Timeouts
from workloads.errors import WorkloadError
from workloads.lifecycle.interventions import Verb, leads_to
from workloads.models import BulkAction, BulkItem, Workload
from workloads.models.bulk import STAGES, VERBS

pytestmark = pytest.mark.django_db

NOW = at(10_000)
REASON = "the disk is empty again"

ONE: dict[str, Any] = {
    "rearm": lambda workload_id, restart=False, **more: authority.rearm(workload_id, restart_overall=restart, **more),
    "cancel": lambda workload_id, restart=False, **more: authority.cancel(workload_id, **more),
    "force_cancel": lambda workload_id, restart=False, **more: authority.cancel(workload_id, force=True, **more),
    "time_out": lambda workload_id, restart=False, **more: authority.time_out(workload_id, **more),
}


def select(verb: str, rows: Any = None, **more: Any) -> BulkAction:
    """Return an action that has selected these rows, all if none are given, and waits for its reason."""
    action = authority.begin_bulk(verb, actor="olga", criteria="state=any", now=NOW)
    while action.stage == "selecting":
        action = authority.select_bulk(action.pk, Workload.objects.all() if rows is None else rows, now=NOW, **more)
    return action


def carry_out(action: BulkAction, *, restart: bool = False, now: Any = NOW, limit: int = 250) -> BulkAction:
    """Confirm the action and carry it out."""
    action = authority.confirm_bulk(action.pk, actor="olga", reason=REASON, restart_overall=restart, now=now)
    while action.stage == "running":
        action = authority.continue_bulk(action.pk, actor="olga", limit=limit, now=now)
    return action


def refusals(action: BulkAction) -> dict[int, str]:
    rows = BulkItem.objects.filter(action_id=action.pk, record__lte=action.done_upto)
    return dict(rows.values_list("record", "code"))


def counts(action: BulkAction) -> tuple[int, int, int, int]:
    return action.selected_count, action.done_count, action.refused_count, action.left_count


# What is selected.


def test_what_matches_is_selected_at_its_version_and_counted_by_state() -> None:
    ids = live_all()
    action = select("rearm", width=7)
    assert action.stage == "asking"
    rows = list(Workload.objects.order_by("pk"))
    assert len(rows) > len(ids)
    items = BulkItem.objects.filter(action_id=action.pk).order_by("record")
    assert [(i.record, i.version, i.state, i.code) for i in items] == [(r.pk, r.version, r.state, None) for r in rows]
    assert action.states == dict(Counter(row.state for row in rows))
    assert counts(action) == (len(rows), 0, 0, len(rows))
    assert (action.actor, action.criteria, action.confirmed_by) == ("olga", "state=any", "")
    assert (str(action), str(items[0])) == (f"re-arm {action.pk}", f"{action.pk}: {rows[0].pk}")


def test_a_filter_narrows_it_and_what_is_found_twice_is_selected_once() -> None:
    parked, _ = bring(S.DEAD_LETTER, "parked")
    admit("ready")
    rows = Workload.objects.filter(events__actor="user")
    assert rows.count() > 2
    assert select("cancel", rows).selected_count == 2
    action = select("cancel", Workload.objects.filter(state="DEAD_LETTER").only("workload_id"))
    assert [i.record for i in BulkItem.objects.filter(action_id=action.pk)] == [authority.get(parked).pk]
    nothing = select("cancel", Workload.objects.filter(pk__in=[]))
    assert (nothing.stage, nothing.selected_count, nothing.states) == ("asking", 0, {})
    assert carry_out(nothing).stage == "done"


def test_what_is_admitted_later_is_not_drawn_in() -> None:
    for n in range(4):
        admit(f"k{n}")
    action = authority.begin_bulk("cancel", actor="olga")
    action = authority.select_bulk(action.pk, Workload.objects.all(), width=2)
    assert (action.stage, action.selected_count) == ("selecting", 2)
    late = admit("late")
    while action.stage == "selecting":
        action = authority.select_bulk(action.pk, Workload.objects.all(), width=1)
    assert action.selected_count == 4
    assert authority.select_bulk(action.pk, Workload.objects.all()).selected_count == 4
    with unchanged(late):
        assert carry_out(action).done_count == 4


def test_gaps_between_keys_cost_no_calls() -> None:
    first = authority.get(admit("first"))
    authority.get(admit("second"))
    # As after an import, or a sequence that was moved.
    with connection.cursor() as cursor:
        for table, column in (("admitted", "id"), ("workload", "admitted_id")):
            cursor.execute(f"UPDATE workloads_{table} SET {column} = {column} + 1000000 WHERE {column} > {first.pk}")
    action = authority.begin_bulk("cancel", actor="olga")
    assert authority.select_bulk(action.pk, Workload.objects.all(), width=2).stage == "asking"


def test_on_an_empty_site_nothing_is_selected() -> None:
    action = select("cancel")
    assert (action.stage, action.selected_count) == ("asking", 0)


# Each is decided as the verb for one would decide it.


def stored(workload_id: str) -> dict[str, Any]:
    """Return what is stored of a workload, without what differs between two of the same."""
    told = record(workload_id)
    for row in [told["workload"], *(row for name in ("events", "attempts", "dependencies") for row in told[name])]:
        for name in ("id", "admitted_id", "record_id", "dependent_id", "lane_id", "workload_id", "depends_on"):
            row.pop(name, None)
        for name in ("attempt_id", "claim_id", "idempotency_key", "queued_lane_id", "waiting_lane_id"):
            row[name] = row.get(name) is not None
    for row in told["events"]:
        row["evidence"] = {k: v for k, v in row["evidence"].items() if k != "dependency" and k[-3:] != "_id"}
    for name in ("checkpoints", "result"):
        told[name] = len(told[name])
    told["dependencies"].sort(key=str)
    return told


def outcome(call: Any) -> str:
    try:
        call()
    except WorkloadError as refusal:
        return refusal.code
    return ""


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("verb", list(Verb))
def test_every_life_ends_as_it_would_by_the_verb_for_one(verb: str, restart: bool) -> None:
    one, many = live_all("one "), live_all("many ")
    # The one is parked by a pass of the other's.
    del one["unmeetable"], many["unmeetable"]
    twins = dict(zip(one.values(), many.values(), strict=True))
    keys = {w.workload_id: w.pk for w in Workload.objects.all()}
    action = select(verb, Workload.objects.filter(workload_id__in=twins.values()), width=11)
    moved = many["dead_lettered"], one["dead_lettered"]
    for each in moved:
        authority.rearm(each, actor="somebody", reason="was quicker", now=NOW)
    versions = {w.workload_id: w.version for w in Workload.objects.all()}
    codes = {}
    for workload_id in sorted(one.values(), key=keys.__getitem__):
        seen = versions[workload_id] - (workload_id in moved)
        codes[workload_id] = outcome(
            lambda w=workload_id, v=seen: ONE[verb](
                w, restart=restart, actor="olga", reason=REASON, expected_version=v, now=ALL_LIVED
            )
        )
    action = carry_out(action, restart=restart, now=ALL_LIVED, limit=9)
    found = refusals(action)
    assert {w: found.get(keys[twins[w]], "") for w in codes} == codes
    assert counts(action) == (len(one), len(one) - len(found), len(found), 0)
    assert "WORKLOAD_CONFLICT" in codes.values()
    for name in one:
        assert stored(many[name]) == stored(one[name]), name
    assert list(authority.verify(now=FAR)) == []


ACTS = st.lists(
    st.tuples(st.sampled_from([s for s in EVERY if s != S.SUCCEEDED]), st.booleans(), st.booleans()),
    min_size=1,
    max_size=6,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=ACTS, verb=st.sampled_from(list(Verb)), restart=st.booleans(), limit=st.integers(1, 4))
def test_chains_of_work_are_left_as_by_the_verb_for_one(
    db: None, acts: list[tuple[str, bool, bool]], verb: str, restart: bool, limit: int
) -> None:
    with transaction.atomic():
        ids: dict[str, list[str]] = {"one": [], "many": []}
        for side, made in ids.items():
            for n, (state, is_chained, has_deadline) in enumerate(acts):
                more: dict[str, Any] = {"timeouts": Timeouts(overall_ms=9_000)} if has_deadline else {}
                if is_chained and n:
                    # READY work that waits for the one before it.
                    required = S.CANCELLED if has_deadline else S.DEAD_LETTER
                    before = Dependency(workload_id=id_of(f"{side} {n - 1}"), required_state=required)
                    made.append(admit(f"{side} {n}", dependencies=[before], **more))
                else:
                    made.append(bring(state, f"{side} {n}", **more)[0])
        versions = {w.workload_id: w.version for w in Workload.objects.all()}
        action = select(verb, Workload.objects.filter(workload_id__in=ids["many"]))
        for each in ids["one"]:
            outcome(
                lambda w=each: ONE[verb](
                    w, restart=restart, actor="olga", reason=REASON, expected_version=versions[w], now=NOW
                )
            )
        carry_out(action, restart=restart, limit=limit)
        assert [stored(w) for w in ids["many"]] == [stored(w) for w in ids["one"]]
        transaction.set_rollback(True)


@pytest.mark.parametrize("state", EVERY)
@pytest.mark.parametrize("verb", list(Verb))
def test_what_is_said_of_a_state_is_what_happens(verb: Verb, state: str) -> None:
    workload_id, _ = bring(state)
    version = authority.get(workload_id).version
    code = outcome(lambda: ONE[verb](workload_id, actor="olga", reason=REASON, now=NOW))
    after = authority.get(workload_id)
    assert leads_to(verb, state) == (None if code else after.state)
    assert (leads_to(verb, state) in {None, state}) == (after.version == version)


def test_the_columns_choices_are_the_verbs() -> None:
    assert [name for name, _ in VERBS] == list(Verb)


@pytest.mark.parametrize("verb", list(Verb))
def test_nothing_is_said_of_states_that_are_none(verb: Verb) -> None:
    assert leads_to(verb, "spoilt") is None


# What becomes of the action and its items.


def test_each_has_one_event_by_whoever_carried_on_and_what_is_done_needs_no_item() -> None:
    ids = [bring(S.DEAD_LETTER, f"k{n}")[0] for n in range(5)]
    action = select("rearm")
    action = authority.confirm_bulk(action.pk, actor="otto", reason=REASON)
    action = authority.continue_bulk(action.pk, actor="olga", limit=2)
    assert (action.stage, *counts(action)) == ("running", 5, 2, 0, 3)
    assert BulkItem.objects.filter(action_id=action.pk).count() == 3
    action = authority.continue_bulk(action.pk, actor="otto")
    assert (action.stage, *counts(action)) == ("done", 5, 5, 0, 0)
    assert not BulkItem.objects.exists()
    told = [[e for e in events(w) if e.evidence.get("decision") == "operator_rearm"] for w in ids]
    assert [(len(each), each[0].actor, each[0].evidence["reason"]) for each in told] == [
        (1, actor, REASON) for actor in ("olga", "olga", "otto", "otto", "otto")
    ]
    assert (action.actor, action.confirmed_by) == ("olga", "otto")


def test_what_moved_is_gone_or_can_not_be_read_is_reported_and_left() -> None:
    ids = {name: bring(S.DEAD_LETTER, name)[0] for name in ("good", "moved", "spoilt", "gone", "last")}
    keys = {name: authority.get(workload_id).pk for name, workload_id in ids.items()}
    done = bring(S.SUCCEEDED, "done")[0]
    action = select("rearm")
    authority.cancel(ids["moved"], actor="somebody", now=NOW)
    spoil(ids["spoilt"])
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM workloads_workload WHERE admitted_id = {keys['gone']}")
    with unchanged(ids["moved"], done):
        action = carry_out(action)
    assert refusals(action) == {
        keys["moved"]: "WORKLOAD_CONFLICT",
        keys["spoilt"]: "UNREADABLE",
        keys["gone"]: "WORKLOAD_NOT_FOUND",
        authority.get(done).pk: "WORKLOAD_TRANSITION_DENIED",
    }
    assert all(BulkItem.objects.filter(action_id=action.pk).values_list("message", flat=True))
    assert counts(action) == (6, 2, 4, 0)
    assert state_of(ids["good"]) == state_of(ids["last"]) == "READY"


def test_what_changes_nothing_is_done() -> None:
    workload_id, _ = bring(S.CANCELLED)
    action = select("cancel")
    with unchanged(workload_id):
        assert counts(carry_out(action)) == (1, 1, 0, 0)


def test_a_stopped_action_leaves_the_rest_alone() -> None:
    ids = [admit(f"k{n}") for n in range(3)]
    action = select("cancel")
    authority.confirm_bulk(action.pk, actor="olga", reason=REASON)
    authority.continue_bulk(action.pk, actor="olga", limit=1)
    action = authority.stop_bulk(action.pk, actor="otto")
    assert (action.stage, action.stopped_by, *counts(action)) == ("stopped", "otto", 3, 1, 0, 2)
    with unchanged(*ids):
        assert authority.continue_bulk(action.pk, actor="olga").stage == "stopped"
        assert authority.confirm_bulk(action.pk, actor="olga", reason=REASON).stage == "stopped"
        assert authority.stop_bulk(action.pk, actor="olga").stopped_by == "otto"


def test_saying_it_again_changes_nothing() -> None:
    workload_id = admit()
    action = carry_out(select("cancel"))
    before = BulkAction.objects.values().get()
    with unchanged(workload_id):
        authority.select_bulk(action.pk, Workload.objects.all(), now=FAR)
        authority.confirm_bulk(action.pk, actor="otto", reason="another", now=FAR)
        authority.continue_bulk(action.pk, actor="otto", now=FAR)
        authority.stop_bulk(action.pk, actor="otto", now=FAR)
    assert BulkAction.objects.values().get() == before


def test_an_action_is_confirmed_once_it_has_selected_and_begun_once_it_is_confirmed() -> None:
    workload_id = admit()
    action = authority.begin_bulk("cancel", actor="olga")
    with unchanged(workload_id):
        with refused("WORKLOAD_TRANSITION_DENIED", {"stage": "selecting"}):
            authority.confirm_bulk(action.pk, actor="olga", reason=REASON)
        authority.select_bulk(action.pk, Workload.objects.all())
        with refused("WORKLOAD_TRANSITION_DENIED", {"stage": "asking"}):
            authority.continue_bulk(action.pk, actor="olga")
    assert {action.stage, BulkAction.objects.get().stage} <= {name for name, _ in STAGES}


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: authority.begin_bulk("prune", actor="olga"), "verb"),
        (lambda: authority.begin_bulk([], actor="olga"), "verb"),  # type: ignore[arg-type]
        (lambda: authority.begin_bulk("cancel", actor=" olga"), "actor"),
        (lambda: authority.begin_bulk("cancel", actor="olga", criteria="x" * 8_001), "criteria"),
        (lambda: authority.begin_bulk("cancel", actor="olga", criteria="\0"), "criteria"),
        (lambda: authority.begin_bulk("cancel", actor="olga", criteria=None), "criteria"),  # type: ignore[arg-type]
        (lambda: authority.select_bulk(1, Workload.objects.all(), width=0), "width"),
        (lambda: authority.confirm_bulk(1, actor="olga", reason=" \n"), "reason"),
        (lambda: authority.confirm_bulk(1, actor="olga", reason="a\0"), "reason"),
        (lambda: authority.confirm_bulk(1, actor="", reason="a"), "actor"),
        (lambda: authority.confirm_bulk(1, actor="o", reason="a", restart_overall=1), "restart_overall"),  # type: ignore[arg-type]
        (lambda: authority.continue_bulk(1, actor=""), "actor"),
        (lambda: authority.continue_bulk(1, actor="o", limit=0), "limit"),
        (lambda: authority.stop_bulk(1, actor=""), "actor"),
        (lambda: authority.stop_bulk(1, actor="o", now=dt.datetime(2040, 1, 1)), "now"),
    ],
)
def test_arguments_come_first(call: Any, field: str, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0), refused("WORKLOAD_INVALID") as caught:
        call()
    assert caught.value.details == {"field": field}


@pytest.mark.parametrize("action_id", [0, -1, 7, 2**70, None, "1", True])
def test_then_existence(action_id: Any) -> None:
    for call in (
        lambda: authority.select_bulk(action_id, Workload.objects.all()),
        lambda: authority.confirm_bulk(action_id, actor="olga", reason=REASON),
        lambda: authority.continue_bulk(action_id, actor="olga"),
        lambda: authority.stop_bulk(action_id, actor="olga"),
    ):
        with refused("WORKLOAD_NOT_FOUND"):
            call()


def test_a_reason_holds_no_secret() -> None:
    with refused("WORKLOAD_SECRET_MATERIAL"):
        authority.confirm_bulk(1, actor="olga", reason="it was AKIA" + "Q" * 16)


# What the database refuses.


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception, *keys: int) -> list[int]:
    """Let writing fail for these workloads; return the sizes of the batches that were written or tried."""
    write, sizes = bulk.write, []

    def broken(tx: Any, decisions: Any) -> None:
        sizes.append(len(decisions))
        write(tx, decisions)
        if {d.before.pk for d in decisions} & set(keys):
            raise error

    monkeypatch.setattr(bulk, "write", broken)
    return sizes


@pytest.mark.django_db(transaction=True)
def test_the_one_row_that_the_database_does_not_take_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [admit(f"k{n}") for n in range(20)]
    bad = authority.get(ids[9]).pk
    sizes = failing(monkeypatch, DataError("out of range"), bad)
    action = carry_out(select("cancel"), limit=20)
    assert refusals(action) == {bad: "NOT_WRITTEN"}
    assert counts(action) == (20, 19, 1, 0)
    assert [w for w in ids if state_of(w) != "CANCELLED"] == [ids[9]]
    assert sizes[:3] == [20, 5, 15]
    assert all(len(events(w)) == (2 if w == ids[9] else 3) for w in ids)


@pytest.mark.django_db(transaction=True)
def test_a_database_that_is_away_refuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    workload_id = admit()
    action = select("cancel")
    authority.confirm_bulk(action.pk, actor="olga", reason=REASON)
    failing(monkeypatch, OperationalError("gone"), authority.get(workload_id).pk)
    with unchanged(workload_id), pytest.raises(OperationalError):
        authority.continue_bulk(action.pk, actor="olga")
    monkeypatch.undo()
    assert authority.continue_bulk(action.pk, actor="olga").done_count == 1


def test_within_a_callers_transaction_the_error_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    workload_id = admit()
    action = select("cancel")
    authority.confirm_bulk(action.pk, actor="olga", reason=REASON)
    failing(monkeypatch, DataError("out of range"), authority.get(workload_id).pk)
    with pytest.raises(DataError), transaction.atomic():
        authority.continue_bulk(action.pk, actor="olga")


# What is kept.


def test_the_items_of_what_was_left_alone_are_dropped_when_another_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "DROPPED_AT_ONCE", 2)
    for n in range(3):
        bring(S.SUCCEEDED, f"k{n}")
    asking, ended = select("cancel"), carry_out(select("cancel"))
    assert ended.refused_count == 3
    authority.begin_bulk("cancel", actor="olga", now=NOW + dt.timedelta(days=30))
    assert BulkItem.objects.count() == 6
    month_later = NOW + dt.timedelta(days=30, milliseconds=1)
    for left in (4, 3, 1, 0, 0):
        authority.begin_bulk("cancel", actor="olga", now=month_later)
        assert BulkItem.objects.count() == left
    kept = {a.pk: (a.stage, a.items_are_kept, a.updated_at) for a in BulkAction.objects.order_by("pk")[:2]}
    assert kept == {asking.pk: ("stopped", False, NOW), ended.pk: ("done", False, NOW)}


def test_now_is_the_databases() -> None:
    action = authority.begin_bulk("cancel", actor="olga")
    assert abs(action.created_at - authority.read_clock()) < dt.timedelta(minutes=1)
    assert action.created_at < T0
