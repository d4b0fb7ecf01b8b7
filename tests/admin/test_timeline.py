"""The timeline: where its parts stand, and what of a life it draws."""

from __future__ import annotations

import datetime as dt
import re
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from django.test import Client
from django.utils import timezone
from hypothesis import given, strategies as st

from tests.admin.conftest import page
from tests.authority.builders import admit, claim
from tests.support import T0, at
from workloads import authority
from workloads.admin import page_picture, page_record, page_timeline
from workloads.admin.timeline import MARGIN, WIDTH, Life, Mark, Picture, Rule, Span, draw
from workloads.contract import Dependency, RetryPolicy, Timeouts
from workloads.models import Workload

DAY = 86_400_000


def span(begin: int, end: int, *, lane: int = 1, **changes: Any) -> Span:
    values: dict[str, Any] = {"kind": "FAILED", "label": "1 FAILED", "title": "", "is_busy": lane > 0}
    return Span(lane=lane, begin=at(begin), end=at(end), **(values | changes))


def mark(ms: int, kind: str = "FAILED") -> Mark:
    return Mark(lane=1, at=at(ms), kind=kind, title=str(ms))


def rule(ms: int, label: str = "now") -> Rule:
    return Rule(at=at(ms), kind="now", label=label, title=label)


def life(*spans: Span, marks: Any = (), rules: Any = (), left_out: Any = ()) -> Life:
    return Life(lanes=["no worker", "w"], spans=spans, marks=marks, rules=rules, left_out=left_out)


def shares(picture: Picture) -> list[float]:
    """Return how much of the width each bar takes."""
    return [round(bar.width / (WIDTH - 2 * MARGIN), 2) for bar in picture.bars]


@pytest.mark.parametrize("unit", [1, 1_000, DAY])
def test_lives_of_any_length_look_alike(unit: int) -> None:
    picture = draw(life(span(0, 100 * unit), span(150 * unit, 200 * unit)))
    assert shares(picture) == [0.5, 0.25]
    assert picture.bars[0].x == MARGIN
    assert not picture.breaks


def test_long_waiting_is_drawn_short_and_work_to_scale() -> None:
    picture = draw(life(span(0, 1_000), span(21 * DAY, 21 * DAY + 3_000)))
    assert shares(picture) == [0.12, 0.38]
    (gap,) = picture.breaks
    assert (gap.begin, gap.end, gap.is_left_out) == (at(1_000), at(21 * DAY), False)
    assert gap.width == pytest.approx((WIDTH - 2 * MARGIN) / 2)


def test_short_waits_stay_whole_beside_a_long_one() -> None:
    picture = draw(life(span(0, 10_000), span(11_000, 21_000), span(DAY, DAY + 10_000)))
    assert [(gap.begin, gap.end) for gap in picture.breaks] == [(at(21_000), at(DAY))]


def test_where_nothing_was_at_work_a_far_deadline_does_not_hide_what_is_near() -> None:
    picture = draw(life(rules=[rule(0), rule(7_200_000, "next"), rule(21 * DAY, "overall deadline")]))
    xs = [upright.x for upright in picture.uprights]
    assert xs[1] - xs[0] > 100
    assert len(picture.breaks) == 1
    assert xs[2] == pytest.approx(WIDTH - MARGIN)


def test_a_life_of_one_instant_is_drawn() -> None:
    picture = draw(life(span(5, 5), rules=[rule(5)]))
    assert picture.bars[0].width > 0
    assert [tick.at for tick in picture.ticks] == [at(5)]


def test_a_span_that_ends_before_it_begins_is_an_instant() -> None:
    picture = draw(life(span(100, 50, lease_ends_at=at(10)), rules=[rule(200), rule(0)]))
    (bar,) = picture.bars
    assert bar.width == 3
    assert bar.lease_x == bar.x


def test_a_label_stands_only_where_it_fits() -> None:
    picture = draw(life(span(0, 1), span(1, 100)))
    assert [bar.label for bar in picture.bars] == ["", "1 FAILED"]


def test_marks_that_would_hide_one_another_are_one() -> None:
    marks = [mark(0), mark(1), mark(2), mark(500), mark(1, "OTHER")]
    picture = draw(life(span(0, 1_000), marks=marks))
    gathered = [[each.title for each in point.marks] for point in picture.points]
    assert gathered == [["0", "1", "2"], ["500"], ["1"]]


def test_labels_of_rules_do_not_cover_one_another() -> None:
    rules = [rule(n, "a long label of a deadline") for n in range(0, 100, 5)]
    picture = draw(life(span(0, 100), rules=rules))
    rows: dict[float, list[tuple[float, float]]] = {}
    for upright in picture.uprights:
        width = len(upright.rule.label) * 6.9 + 12
        begin = upright.x - width if upright.is_left else upright.x
        assert begin >= 0 and begin + width <= WIDTH + 1
        rows.setdefault(upright.y, []).append((begin, begin + width))
    assert len(rows) <= 8
    for row in list(rows.values())[:-1]:
        row.sort()
        assert all(one[1] <= other[0] + 0.1 for one, other in pairwise(row))


def test_what_is_left_out_takes_little_room_and_says_so() -> None:
    picture = draw(life(span(0, 100), span(10 * DAY, 10 * DAY + 100), left_out=[(at(100), at(10 * DAY))]))
    (gap,) = picture.breaks
    assert gap.is_left_out
    assert 0.1 < gap.width / WIDTH < 0.15


instants = st.integers(min_value=-(10**13), max_value=10**13)


@given(
    st.lists(st.tuples(instants, instants, st.booleans()), max_size=12),
    st.lists(instants, max_size=12),
    st.lists(instants, min_size=1, max_size=6),
)
def test_whatever_the_instants_all_stands_within_the_picture_in_the_order_of_time(
    spans: list[tuple[int, int, bool]], marks: list[int], rules: list[int]
) -> None:
    drawn = [span(begin, end, lane=int(busy)) for begin, end, busy in spans]
    picture = draw(life(*drawn, marks=[mark(ms) for ms in marks], rules=[rule(ms) for ms in rules]))
    for bar in picture.bars:
        assert bar.x >= MARGIN - 0.1 and bar.x + bar.width <= WIDTH
    by_instant = sorted((upright.rule.at, upright.x) for upright in picture.uprights)
    assert [x for _, x in by_instant] == sorted(x for _, x in by_instant)
    assert all(MARGIN - 0.1 <= point.x <= WIDTH for point in picture.points)
    assert sum(len(point.marks) for point in picture.points) == len(marks)
    assert len(picture.ticks) <= 9


pytestmark = pytest.mark.django_db


def told(workload_id: str, now: dt.datetime) -> Life:
    """Return the life of a workload as it is described at `now`."""
    key = authority.get(workload_id).pk
    record = page_record.read_record(Workload.objects.all(), key, now, reads_payloads=False)
    assert record is not None
    assert record.trouble == []
    return page_timeline.describe(record)


def kinds(life: Life) -> list[tuple[str, str]]:
    return [(life.lanes[span.lane], span.kind) for span in life.spans]


def labels(life: Life) -> dict[str, dt.datetime]:
    return {rule.label: rule.at for rule in life.rules}


def test_a_life_with_retries_has_a_lane_for_each_worker() -> None:
    workload_id = admit(retry_policy=RetryPolicy(initial_delay_ms=5_000, retry_on={"slow"}))
    for number, worker in enumerate(("w1", "w2")):
        begin = 10_000 + number * 60_000
        fence = claim(workload_id, worker_id=worker, now=at(begin)).fence
        authority.start(fence, now=at(begin + 500))
        authority.checkpoint(fence, {}, now=at(begin + 600))
        authority.fail(fence, kind="slow", error="", now=at(begin + 1_000))
    life = told(workload_id, at(100_000))
    assert life.lanes == ["no worker", "w1", "w2"]
    assert kinds(life)[:2] == [("w1", "FAILED"), ("w2", "FAILED")]
    waits = [(span.kind, span.begin, span.end) for span in life.spans if span.lane == 0]
    assert waits == [
        ("due", T0, at(10_000)),
        ("scheduled", at(11_000), at(16_000)),
        ("due", at(16_000), at(70_000)),
        ("scheduled", at(71_000), at(81_000)),
        ("due", at(81_000), at(100_000)),
    ]
    assert [(mark.kind, mark.lane) for mark in life.marks] == [
        ("FAILED", 1),
        ("FAILED", 2),
        ("CHECKPOINT", 1),
        ("CHECKPOINT", 2),
    ]
    assert "started after 500 ms" in life.spans[0].title


def test_every_deadline_and_the_lease_are_lines() -> None:
    timeouts = Timeouts(overall_ms=90_000, queue_ms=80_000, claim_ms=70_000, execution_ms=60_000, heartbeat_ms=50_000)
    workload_id = admit(timeouts=timeouts)
    assert labels(told(workload_id, at(1))) == {
        "admitted": T0,
        "now": at(1),
        "overall deadline": at(90_000),
        "queue deadline": at(80_000),
    }
    fence = claim(workload_id, now=at(1_000), lease_ms=30_000).fence
    held = labels(told(workload_id, at(1_500)))
    assert (held["claim deadline"], held["heartbeat deadline"]) == (at(71_000), at(51_000))
    assert held["lease ends"] == at(31_000)
    authority.start(fence, now=at(2_000))
    assert labels(told(workload_id, at(2_500)))["execution deadline"] == at(62_000)
    late = told(workload_id, at(32_000))
    assert labels(late)["lease ended"] == at(31_000)
    assert [(span.kind, span.begin, span.end) for span in late.spans if span.lane == 1] == [
        ("RUNNING", at(1_000), at(31_000)),
        ("lost", at(31_000), at(32_000)),
    ]


def test_what_was_missed_and_lost_stays_in_the_picture() -> None:
    workload_id = admit(timeouts=Timeouts(execution_ms=5_000), retry_policy=RetryPolicy(initial_delay_ms=0))
    fence = claim(workload_id, worker_id="late", now=at(1_000)).fence
    authority.start(fence, now=at(2_000))
    authority.enforce_deadlines(now=at(9_000))
    claim(workload_id, worker_id="lost", now=at(10_000), lease_ms=1_000)
    authority.recover_expired(now=at(15_000))
    marks = [(mark.kind, mark.at) for mark in told(workload_id, at(20_000)).marks]
    assert marks == [
        ("TIMED_OUT", at(9_000)),
        ("WORKER_LOST", at(15_000)),
        ("DEADLINE", at(7_000)),
        ("LEASE", at(11_000)),
    ]


def test_peoples_decisions_and_rest_are_drawn() -> None:
    workload_id = admit(timeouts=Timeouts(overall_ms=DAY))
    authority.time_out(workload_id, actor="olga", reason="stuck", now=at(1_000))
    parked = told(workload_id, at(5_000))
    assert kinds(parked)[-1] == ("no worker", "parked")
    assert labels(parked)["overall deadline"] == at(DAY)
    authority.rearm(workload_id, actor="olga", reason="again", now=at(6_000))
    authority.cancel(workload_id, actor="olga", reason="enough", now=at(7_000))
    life = told(workload_id, at(8_000))
    people = [mark.at for mark in life.marks if mark.kind == "PERSON"]
    assert people == [at(1_000), at(6_000), at(7_000)]
    assert "now" not in labels(life)


def test_blocked_and_scheduled_work_says_so_ahead() -> None:
    first = admit("first", not_before=at(60_000))
    life = told(first, at(1_000))
    assert [(span.kind, span.end) for span in life.spans] == [("scheduled", at(60_000))]
    assert labels(life)["next attempt"] == at(60_000)
    second = admit("second", dependencies=[Dependency(workload_id=first)])
    assert kinds(told(second, at(1_000))) == [("no worker", "blocked")]


def test_many_attempts_by_many_workers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_record, "MOST_ATTEMPTS", 8)
    monkeypatch.setattr(page_timeline, "MOST_ATTEMPTS", 8)
    monkeypatch.setattr(page_record, "MOST_EVENTS", 12)
    workload_id = admit(retry_policy=RetryPolicy(max_attempts=100, initial_delay_ms=0, retry_on={"slow"}))
    for number in range(20):
        fence = claim(workload_id, worker_id=f"w{number}", now=at(1_000 * number + 100)).fence
        authority.fail(fence, kind="slow", error="", now=at(1_000 * number + 600))
    life = told(workload_id, at(30_000))
    assert len(life.lanes) == page_timeline.MOST_LANES + 1
    assert life.lanes[-1] == "other workers"
    assert sum(span.is_busy for span in life.spans) == 16
    assert list(life.left_out) == [(at(7_600), at(12_100))]
    assert draw(life).breaks


def test_the_picture_is_one_image_with_a_name_and_a_table_that_says_the_same(client_with: Any) -> None:
    viewer: Client = client_with("view_workload")
    workload_id = admit("<&>", now=None, definition_id="d")
    fence = claim(workload_id, worker_id="<w&>", now=None).fence
    authority.start(fence)
    text = viewer.get(page(authority.get(workload_id))).content.decode()
    (drawn,) = re.findall(r'<svg class="workloads-timeline".*?</svg>', text, re.DOTALL)
    assert "style=" not in drawn
    root = ElementTree.fromstring(drawn)  # our own page
    assert root.get("role") == "img"
    names = root.get("aria-labelledby", "").split()
    ids = {each.get("id") for each in root.iter()}
    assert names and set(names) <= ids
    titles = {each.text for each in root.iter("{http://www.w3.org/2000/svg}title")}
    table = text.partition("The timeline as a table")[2].partition("</table>")[0]
    for title in titles - {"Timeline"}:
        if title and title.startswith(("Attempt", "now", "admitted", "Due")):
            assert title.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") in table, title
    assert 'tabindex="0" role="region" aria-label="Picture of the timeline"' in text


def test_numbers_in_the_picture_know_no_decimal_comma(client_with: Any, settings: Any) -> None:
    settings.LANGUAGE_CODE = "de"
    viewer: Client = client_with("view_workload")
    workload_id = admit("k", now=None)
    for key in range(3):
        claim(admit(f"other {key}", now=None), now=None)
    text = viewer.get(page(authority.get(workload_id))).content.decode()
    (drawn,) = re.findall(r'<svg class="workloads-timeline".*?</svg>', text, re.DOTALL)
    assert not re.search(r'="[^"a-z]*\d,\d', drawn)


@pytest.mark.parametrize(
    ("length", "said"),
    [(7, "7 ms"), (61_900, "1 min 1 s"), (2_450, "2.4 s"), (3_700_000, "1 h 1 min"), (21 * DAY, "21 d 0 h")],
)
def test_lengths_of_time_are_said_in_their_greatest_units(length: int, said: str) -> None:
    assert page_timeline.lasting(dt.timedelta(milliseconds=length)) == said


def test_instants_at_the_ends_of_the_calendar_have_names() -> None:
    for zone in ("America/New_York", "Asia/Tokyo"):
        with timezone.override(zone):
            assert page_timeline.moment(dt.datetime.min.replace(tzinfo=dt.UTC)).startswith("0001-01-01")
            assert page_timeline.moment(dt.datetime.max.replace(tzinfo=dt.UTC))[:4] in ("9999",)


def test_each_kind_of_mark_has_a_shape_and_a_colour_of_its_own() -> None:
    assert len(set(page_picture.SHAPES.values())) == len(page_picture.SHAPES)
    assert page_picture.SHAPES.keys() <= page_picture.MARK_TONES.keys()
