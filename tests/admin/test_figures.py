"""The overview's figures: what they count, where they stop, and that a cache saves work and breaks nothing."""

from __future__ import annotations

import datetime as dt
import pickle
import uuid
import zoneinfo
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests.authority.builders import S, admit, bring, claim, running, take, write_raw
from tests.support import T0, at
from workloads import authority
from workloads.admin import figures, flow, spans, survey, trouble
from workloads.admin.figures import Capped, Place
from workloads.contract import Dependency, RetryPolicy, Timeouts
from workloads.models import PassRun, SeenWorker, Workload

pytestmark = pytest.mark.django_db

HOUR_MS = 3_600_000
GRACE = dt.timedelta(minutes=1)


@pytest.fixture(autouse=True)
def empty_cache() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


def dead(key: str, *, kind: str = "broken", ms: int = 4_000, **changes: Any) -> str:
    fence = claim(admit(key, now=at(ms - 2), **changes), now=at(ms - 1)).fence
    authority.start(fence, now=at(ms - 1))
    authority.fail(fence, kind=kind, error="it broke: badly", now=at(ms))
    return fence.workload_id


def done(key: str, *, ms: int = 4_000, **changes: Any) -> str:
    fence = claim(admit(key, now=at(ms - 2), **changes), now=at(ms - 1)).fence
    authority.start(fence, now=at(ms - 1))
    authority.complete(fence, result_id=key, output=1, now=at(ms))
    return fence.workload_id


def names(some: figures.Some) -> list[str]:
    return [item.workload_id for item in some.first]


def by_place(counts: dict[int, Capped]) -> dict[str, Capped]:
    return {place.definition_id: counts[lane] for lane, place in figures.places(counts).items()}


# How much stands where


def test_states_are_counted_those_that_nobody_knows_included() -> None:
    assert figures.by_state() == {}
    bring(S.RUNNING, "r")
    for key in ("a", "b"):
        admit(key)
    write_raw("workload", admit("melted"), state="MELTED")
    assert figures.by_state() == {"MELTED": Capped(1), "READY": Capped(2), "RUNNING": Capped(1)}


def test_counts_stop_at_a_bound_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MOST_COUNTED", 2)
    monkeypatch.setattr(figures, "MOST_STATES", 2)
    for key in "abc":
        admit(key)
        bring(S.RUNNING, f"r{key}")
    bring(S.SUCCEEDED, "s")
    # As many states as are counted, and no more.
    assert figures.by_state() == {"READY": Capped(2, True), "RUNNING": Capped(2, True)}
    counts, _longest, in_all = figures.held()
    assert in_all == Capped(2, True) and sum(each.count for each in counts.values()) == 3
    assert trouble.say(in_all) == "2+" and trouble.say(Capped(12_345)) == "12,345"
    for key in "abc":
        dead(key + "dead", ms=5_000)
    monkeypatch.setattr(figures, "MOST_GROUPED", 2)
    found, _instants = figures.dead_letters(at(6_000))
    assert found.total == found.lately == Capped(2, True) and len(found.groups) == 1


@pytest.mark.parametrize("most", [10_000, 1])
def test_queues_by_lane_hold_what_is_due_and_what_is_later(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(figures, "MOST_COUNTED", most)
    for key in "abc":
        admit(key, definition_id="due")
    admit("comes due", definition_id="due", not_before=at(2_000))
    admit("later", definition_id="due", not_before=at(9_000))
    admit("much later", definition_id="later", not_before=at(HOUR_MS))
    admit("blocked", definition_id="due", dependencies=[Dependency(workload_id="workload_x")])
    due, later = figures.queues(at(5_000))
    assert by_place(due) == {"due": Capped(4)}
    assert by_place(later) == {"due": Capped(1), "later": Capped(1)}
    assert figures.blocked() == Capped(1)


def test_a_long_queue_is_counted_up_to_a_bound_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MOST_COUNTED", 1)
    monkeypatch.setattr(figures, "MOST_IN_A_LANE", 2)
    for key in "abc":
        admit(key, definition_id="long")
    for key in "de":
        admit(key, definition_id="short")
    due, later = figures.queues(at(5_000))
    assert by_place(due) == {"long": Capped(2, True), "short": Capped(2)}
    assert later == {}


def test_what_is_held_and_what_was_claimed_first() -> None:
    assert figures.held() == ({}, None, Capped())
    for ms, key in ((3_000, "second"), (1_000, "first"), (5_000, "third")):
        claim(admit(key), now=at(ms), worker_id=f"w-{key}")
    counts, longest, in_all = figures.held()
    assert in_all == Capped(3) and list(counts.values()) == [Capped(3)]
    assert longest is not None and longest.since == at(1_000) and longest.worker_id == "w-first"


def test_what_succeeded_in_the_last_hour_and_no_earlier() -> None:
    done("long ago", ms=5_000)
    done("lately", ms=HOUR_MS)
    dead("dead", ms=HOUR_MS)
    assert by_place(figures.done_lately(at(HOUR_MS + 10_000))) == {"d": Capped(1)}


# What waits


def test_the_longest_due_comes_first_and_what_waits_for_other_work_is_passed_over() -> None:
    admit("blocked", dependencies=[Dependency(workload_id="workload_x")])
    old = [admit(f"k{ms}", now=at(ms)) for ms in range(1, 8)]
    admit("not due", not_before=at(HOUR_MS))
    found, is_bound = figures.oldest_claimable(at(9_000))
    assert [item.workload_id for item in found] == old[:5] and not is_bound
    assert found[0].since == at(1)
    assert figures.oldest_claimable(T0 - GRACE) == ((), False)


def test_behind_much_that_waits_for_other_work_the_far_end_of_each_lane_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(figures, "MOST_LOOKED_AT", 1)
    admit("blocked", dependencies=[Dependency(workload_id="workload_x")])
    starved = admit("starved", now=at(10), priority=-1)
    admit("urgent", now=at(20), priority=9)
    come_due = admit("come due", now=at(1), not_before=at(5))
    found, is_bound = figures.oldest_claimable(at(9_000))
    assert [item.workload_id for item in found] == [come_due, starved] and is_bound


def test_what_the_clock_has_not_seen_to() -> None:
    over = running("over", lease_ms=10_000).workload_id
    extended = running("extended", lease_ms=10_000)
    authority.heartbeat(extended, extend_ms=HOUR_MS, now=at(5_000))
    late = admit("late", timeouts=Timeouts(queue_ms=20_000))
    missing = admit("missing", dependencies=[Dependency(workload_id="workload_x")])
    cancelled, _ = bring(S.CANCELLED, "cancelled")
    unmeetable = admit("unmeetable", dependencies=[Dependency(workload_id=cancelled)])
    found = figures.overdue(at(25_000), GRACE)
    assert found == figures.Overdue(
        leases=figures.Some(), deadlines=figures.Some(), unmeetable=figures.Some(), missing=figures.Some()
    )
    found = figures.overdue(at(100_000), GRACE)
    assert names(found.leases) == [over] and found.leases.counted == Capped(1)
    assert names(found.deadlines) == [late]
    assert names(found.unmeetable) == [unmeetable]
    assert names(found.missing) == [missing]
    authority.run_pass(now=at(100_000))
    found = figures.overdue(at(100_001), GRACE)
    assert (names(found.leases), names(found.deadlines), names(found.unmeetable)) == ([], [], [])
    assert names(found.missing) == [missing]


def test_much_that_is_overdue_is_looked_through_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MOST_LOOKED_AT", 6)
    for number in range(7):
        running(f"k{number}", lease_ms=10_000)
    found = figures.overdue(at(HOUR_MS), GRACE)
    assert found.leases.counted == Capped(6, True) and len(found.leases.first) == figures.MOST_SHOWN
    assert found.deadlines.counted == Capped()


def test_what_waits_for_dead_letters() -> None:
    assert figures.waiting_for_dead_letters() == figures.Some()
    one, two = dead("one"), dead("two")
    both = admit("both", dependencies=[Dependency(workload_id=one), Dependency(workload_id=two)])
    admit("on another", dependencies=[Dependency(workload_id=admit("waits"))])
    admit("wants it dead", dependencies=[Dependency(workload_id=one, required_state=S.DEAD_LETTER)])
    found = figures.waiting_for_dead_letters()
    assert found.counted == Capped(1) and names(found) == [both]


def test_cancellations_that_nobody_confirmed_in_time() -> None:
    workload_id, _ = bring(S.CANCELLATION_REQUESTED)
    assert figures.cancelling(at(10_000), GRACE) == figures.Some()
    assert names(figures.cancelling(at(100_000), GRACE)) == [workload_id]


def test_dead_letters_by_definition_and_kind() -> None:
    for key in "abc":
        dead(key, kind="http: 500", ms=4_000 + ord(key))
    dead("d", kind="broken", ms=HOUR_MS, definition_id="e", definition_revision="1")
    dead("f", kind="broken", ms=2 * HOUR_MS, definition_id="e", definition_revision="2")
    write_raw("workload", dead("odd"), last_failure="no colon in it")
    write_raw("workload", dead("colon"), last_failure=": first")
    parent, _ = bring(S.CANCELLED, "parent")
    admit("child", dependencies=[Dependency(workload_id=parent)])
    authority.run_pass(now=at(9_000))
    found, instants = figures.dead_letters(at(2 * HOUR_MS))
    assert len(instants) == 8
    groups = {(group.definition_id, group.kind): (group.dead, group.lately) for group in found.groups}
    assert groups == {
        ("e", "broken"): (2, 1),
        ("d", "http"): (3, 0),
        ("d", "no colon in it"): (1, 0),
        ("d", ": first"): (1, 0),
        ("d", None): (1, 0),
    }
    assert (found.groups[0].definition_id, found.groups[0].latest) == ("e", at(2 * HOUR_MS))
    assert found.total == Capped(8) and found.lately == Capped(1)
    assert sorted(counted.count for counted in found.by_lane.values()) == [1, 1, 6]


def test_workers_and_passes() -> None:
    assert figures.last_pass() is None
    assert figures.workers(T0) == (Capped(), ())
    for number in range(7):
        seen = at(-60_000 * number)
        SeenWorker.objects.create(
            worker_key=uuid.uuid4(), worker_id=f"w-{number}", capabilities=[], first_seen_at=seen, seen_at=seen
        )
    here, last = figures.workers(at(1))
    assert here == Capped(5) and [name for name, _ in last] == [f"w-{number}" for number in range(5)]
    authority.run_pass(now=T0)
    assert figures.last_pass() == T0


# What has happened over time


def counts(found: flow.Tallies, *words: str) -> list[int]:
    return [tally.of(*words) for _, tally in sorted(found.items())]


def test_what_ended_and_what_failed_by_span() -> None:
    now = at(2 * HOUR_MS)
    done("a", ms=10 * 60_000)
    done("b", ms=2 * HOUR_MS - 5)
    dead("c", ms=2 * HOUR_MS - 6)
    ended = flow.tallies(flow.ENDED, now, flow.HOUR, 3)
    assert list(ended) and sorted(ended) == flow.starts(now, flow.HOUR, 3)
    assert counts(ended, "SUCCEEDED") == [1, 0, 1] and counts(ended, "DEAD_LETTER") == [0, 0, 1]
    assert counts(flow.tallies(flow.TRIED, now, flow.HOUR, 3), *flow.FAILED) == [0, 0, 1]
    assert counts(flow.tallies(flow.TRIED, now, flow.HOUR, 3), "CLAIMED") == [1, 0, 2]
    assert sum(counts(flow.tallies(flow.ENDED, now, flow.FIVE_MINUTES, 12), "SUCCEEDED")) == 1


def test_instants_by_span_those_of_a_clock_ahead_of_ours_in_the_last() -> None:
    instants = [at(-9 * HOUR_MS), at(-HOUR_MS), at(0), at(1), at(HOUR_MS)]
    assert counts(flow.by_span(instants, "x", T0, flow.HOUR, 2), "x") == [1, 3]
    assert counts(flow.by_span([], "x", T0, flow.HOUR, 2), "x") == [0, 0]


def test_spans_that_are_over_are_counted_once() -> None:
    now = at(5 * HOUR_MS)
    done("a", ms=HOUR_MS)
    done("b", ms=5 * HOUR_MS - 3)
    first = flow.tallies(flow.ENDED, now, flow.HOUR, 4 + 1)
    done("c", ms=HOUR_MS + 5_000)
    done("d", ms=5 * HOUR_MS - 1)
    again = flow.tallies(flow.ENDED, now, flow.HOUR, 5)
    assert counts(first, "SUCCEEDED") == [1, 0, 0, 0, 1]
    assert counts(again, "SUCCEEDED") == [1, 0, 0, 0, 2]
    # An hour later, the span that was open is over, and is counted once more.
    later = flow.tallies(flow.ENDED, now + dt.timedelta(hours=1), flow.HOUR, 5)
    assert counts(later, "SUCCEEDED") == [0, 0, 0, 2, 0]
    cache.clear()
    assert counts(flow.tallies(flow.ENDED, now, flow.HOUR, 5), "SUCCEEDED") == [2, 0, 0, 0, 2]


def test_a_look_counts_a_bounded_number_and_the_next_looks_count_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "MOST_COUNTED", 3)
    monkeypatch.setattr(flow, "MOST_TURNS", 1)
    now = at(4 * HOUR_MS)
    for hour in (1, 2, 3, 4):
        for number in range(2):
            done(f"{hour} {number}", ms=hour * HOUR_MS - 10 + number)
    seen = []
    for _turn in range(6):
        found = flow.tallies(flow.ENDED, now, flow.HOUR, 4)
        seen.append([found[start].of("SUCCEEDED") if start in found else None for start in flow.starts(now, 3600, 4)])
        assert not any(tally.about for tally in found.values())
    assert seen[0] == [None, None, None, 2]
    # The present span is counted at every look, and takes the one turn that there is here.
    monkeypatch.setattr(flow, "MOST_TURNS", 2)
    for _turn in range(3):
        found = flow.tallies(flow.ENDED, now, flow.HOUR, 4)
    assert counts(found, "SUCCEEDED") == [2, 2, 2, 2]


def test_a_span_that_holds_too_much_is_estimated_from_its_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "MOST_COUNTED", 10)
    start = flow.starts(at(3 * HOUR_MS), flow.HOUR, 2)[0]
    begun_ms = int((dt.datetime.fromtimestamp(start, dt.UTC) - T0).total_seconds() * 1000)
    for number in range(40):
        done(f"k{number}", ms=begun_ms + 60_000 + number * 90_000)
    found = flow.tallies(flow.ENDED, at(3 * HOUR_MS), flow.HOUR, 2)
    tally = found[start]
    assert tally.about and 34 <= tally.of("SUCCEEDED") <= 46
    assert flow.tallies(flow.ENDED, at(3 * HOUR_MS), flow.HOUR, 2)[start] == tally
    assert str(spans.Amount(tally.of("SUCCEEDED"), tally.about)).startswith("about ")


class Away:
    """A cache whose server does not answer."""

    def get(self, *args: Any) -> Any:
        raise ConnectionError("away")

    add = set = get


class Holding:
    """A cache that holds what another version put there."""

    def get(self, key: str) -> Any:
        return {"never": "read"}

    def add(self, key: str, value: Any, timeout: float) -> bool:
        return True

    def set(self, key: str, value: Any, timeout: float) -> None:
        raise TypeError("can't be kept")


@pytest.mark.parametrize("broken", [Away(), Holding()])
def test_without_a_cache_everything_is_counted_anew(monkeypatch: pytest.MonkeyPatch, broken: Any) -> None:
    monkeypatch.setattr(flow, "cache", broken)
    monkeypatch.setattr(survey, "cache", broken)
    done("a", ms=5)
    now = at(10)
    assert counts(flow.tallies(flow.ENDED, now, flow.HOUR, 2), "SUCCEEDED") == [0, 1]
    found, age = survey.current()
    assert found.states == {"SUCCEEDED": Capped(1)} and age < survey.FRESH_S


# Everything together


def test_a_survey_is_kept_while_it_is_fresh() -> None:
    found, _age = survey.current()
    assert found.is_empty
    admit()
    with CaptureQueriesContext(
        connection,
    ) as asked:
        again, age = survey.current()
    assert again == found and 0 <= age < survey.FRESH_S and len(asked) == 0
    cache.clear()
    assert not survey.current()[0].is_empty


def test_while_one_makes_a_new_survey_the_others_see_the_old_one() -> None:
    found, made_at = survey.read(T0), survey.time.time() - 20
    cache.set(survey.KEY, (found, made_at), 60)
    cache.add(f"{survey.KEY}.turn", 1, 60)
    seen, age = survey.current()
    assert seen == found and 20 <= age < 30
    cache.delete(f"{survey.KEY}.turn")
    seen, age = survey.current()
    assert seen.at != T0 and age < survey.FRESH_S


def test_a_survey_adds_up_by_place_and_can_be_kept() -> None:
    done("done", ms=HOUR_MS)
    dead("dead", ms=HOUR_MS)
    claim(admit("held", now=at(HOUR_MS)), now=at(HOUR_MS))
    admit("due", now=at(HOUR_MS), capability_snapshot={"gpu"})
    admit("also due", now=at(HOUR_MS))
    admit("later", now=at(HOUR_MS), not_before=at(9 * HOUR_MS))
    found = survey.read(at(HOUR_MS + 1_000))
    one = Capped(1)
    # Two lanes, of one definition.
    assert found.parts == (
        (
            Place(tenant_id="t", application_id="app", definition_id="d"),
            survey.Part(due=Capped(2), later=one, held=one, dead=one, done=one),
        ),
    )
    assert (found.due, found.later, found.held, found.blocked) == (Capped(2), one, one, Capped())
    assert [waiting.is_crowded for waiting in found.oldest] == [False, False]
    assert pickle.loads(pickle.dumps(found)) == found


def test_where_much_waits_it_is_not_told_of_each_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "MOST_EXPLAINED_AMONG", 1)
    admit("a")
    assert [waiting.is_crowded for waiting in survey.read(at(1)).oldest] == [False]
    admit("b")
    assert [waiting.is_crowded for waiting in survey.read(at(1)).oldest] == [True, True]


def test_many_dead_letters_are_charted_from_what_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in "abc":
        dead(key, ms=4_000)
    assert survey.read(at(5_000)).hours.dead is not None
    monkeypatch.setattr(figures, "MOST_GROUPED", 2)
    found = survey.read(at(5_000))
    assert found.hours.dead is None
    assert spans.spans(found)[0].charts[2].total == "3"


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kolkata", "America/New_York"])
def test_a_week_is_28_quarters_of_the_readers_days(zone: str) -> None:
    # Over the change to summer time in Europe.
    now = dt.datetime(2041, 4, 3, 13, 20, tzinfo=dt.UTC)
    starts = flow.starts(now, flow.HOUR, 168)
    with timezone.override(zoneinfo.ZoneInfo(zone)):
        quarters = list(spans._quarters(starts))
        begins = {timezone.localtime(dt.datetime.fromtimestamp(bar[0], dt.UTC)).hour for bar in quarters}
    assert len(quarters) == 28 and begins == {0, 6, 12, 18}
    assert quarters[-1][-1] == starts[-1]
    assert all(len(bar) in (5, 6, 7) for bar in quarters[1:-1])


def test_what_is_not_counted_yet_is_not_shown_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "MOST_TURNS", 0)
    done("a", ms=4_000)
    hour = spans.spans(survey.read(at(5_000)))[0]
    assert [str(amount) for amount in hour.rows[0][1]] == ["–", "–", "0"]
    assert "being counted" in hour.charts[0].note and "workloads-bar-unknown" in hour.charts[0].drawing


# What is wrong


def levels(**ms: int) -> dict[str, str]:
    found = trouble.reasons(survey.read(at(ms.get("ms", 5_000))), lambda **parameters: str(parameters))
    assert [reason.level for reason in found] == sorted((reason.level for reason in found), key=lambda x: x != "wrong")
    return {reason.text: reason.level for reason in found}


def only(said: dict[str, str]) -> tuple[str, str]:
    (found,) = said.items()
    return found


def ran(ms: int) -> None:
    PassRun.objects.update_or_create(id=1, defaults={"ran_at": at(ms)})


def seen(ms: int) -> None:
    SeenWorker.objects.create(
        worker_key=uuid.uuid4(), worker_id="w", capabilities=[], first_seen_at=at(ms), seen_at=at(ms)
    )


def test_a_pass_that_does_not_run_is_wrong() -> None:
    done("a", ms=1_000)
    text, level = only(levels())
    assert level == "wrong" and text.startswith("No pass has ever run")
    ran(0)
    assert levels(ms=299_999) == {}
    text, level = only(levels(ms=300_000))
    assert level == "wrong" and "5\xa0minutes ago" in text


def test_due_work_without_workers_is_wrong_and_long_waits_are_soon() -> None:
    ran(HOUR_MS)
    admit("later", not_before=at(9 * HOUR_MS))
    assert levels(ms=HOUR_MS) == {}
    admit("due", now=at(HOUR_MS - 30_000))
    text, level = only(levels(ms=HOUR_MS))
    assert level == "wrong" and text == "1 workload is due, and no worker has been seen for 5 minutes."
    seen(HOUR_MS - 1_000)
    assert levels(ms=HOUR_MS) == {}
    admit("old", now=at(HOUR_MS - 600_000))
    assert only(levels(ms=HOUR_MS))[1] == "attention"
    admit("older", now=at(0))
    text, level = only(levels(ms=HOUR_MS))
    assert level == "wrong" and text == "Work that could be claimed has been waiting for 1\xa0hour."


def test_what_the_pass_leaves_undone_is_wrong() -> None:
    ran(100_000)
    running("over", lease_ms=10_000)
    admit("late", timeouts=Timeouts(queue_ms=20_000), not_before=at(1))
    parent, _ = bring(S.CANCELLED, "parent")
    admit("unmeetable", dependencies=[Dependency(workload_id=parent)])
    seen(100_000)
    assert levels(ms=100_000) == {
        "1 lease is over, and nobody has taken the work back.": "wrong",
        "1 workload is past its deadline, and nobody has timed it out.": "wrong",
        "1 workload waits for what can't come about any more, and no pass has given it up.": "wrong",
    }


def test_states_that_nobody_knows_or_rests_in_are_wrong() -> None:
    ran(5_000)
    write_raw("workload", done("a"), state="MELTED")
    write_raw("workload", done("b"), state="RECOVERING")
    said = levels()
    assert len(said) == 2 and set(said.values()) == {"wrong"}
    assert any("“MELTED”" in text for text in said) and any("workloads_verify" in text for text in said)


def test_what_people_have_to_look_at_asks_for_attention() -> None:
    ran(100_000)
    one = dead("one")
    admit("child", dependencies=[Dependency(workload_id=one)])
    admit("missing", dependencies=[Dependency(workload_id="workload_x")])
    bring(S.CANCELLATION_REQUESTED, "cancelling")
    lately = "1 workload became a dead letter in the last hour."
    said = levels(ms=100_000)
    assert len(said) == 4 and set(said.values()) == {"attention"} and lately in said
    later = levels(ms=100_000 + HOUR_MS)
    assert said.keys() - later.keys() == {lately}


def test_more_failures_than_successes_ask_for_attention() -> None:
    ran(60_000)
    again = RetryPolicy(max_attempts=99, initial_delay_ms=0, retry_on={"flaky"})
    workload_id = admit("a", retry_policy=again)
    for turn in range(9):
        fence = claim(workload_id, now=at(1_000 * (turn + 1))).fence
        authority.fail(fence, kind="flaky", error="x", effect="none", now=at(1_000 * (turn + 1)))
    seen(60_000)
    assert levels(ms=60_000) == {}
    fence = claim(workload_id, now=at(59_000)).fence
    authority.fail(fence, kind="flaky", error="x", effect="none", now=at(59_500))
    text, level = only(levels(ms=60_000))
    assert level == "attention" and "(10)" in text and "(0)" in text
    for key in range(10):
        done(f"k{key}", ms=59_000)
    assert levels(ms=60_000) == {}


def test_nothing_here_writes() -> None:
    bring(S.RUNNING, "r")
    dead("d")
    before = list(Workload.objects.order_by("pk").values())
    with CaptureQueriesContext(connection) as asked:
        spans.spans(survey.read(at(9_000)))
    assert {query["sql"].split()[0] for query in asked} == {"SELECT"}
    assert list(Workload.objects.order_by("pk").values()) == before
    assert take(now=at(9_000)) == []
