"""Where the parts of a timeline picture stand: pure geometry, from a plain description of one life.

The scale is even, save that long stretches in which no worker was at it are drawn short, and marked as such: a life of
200 ms and one of three weeks are both read at a glance.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

WIDTH: Final = 1000.0
MARGIN: Final = 14.0
LANE_HEIGHT: Final = 50.0
LABEL_HEIGHT: Final = 16.0
BAR_HEIGHT: Final = 20.0
RULE_ROW: Final = 17.0
TICK_HEIGHT: Final = 38.0
LEAST_BAR: Final = 3.0
MERGED_WITHIN: Final = 11.0
CHARACTER: Final = 6.9
TICK_WIDTH: Final = 128.0
MOST_RULE_ROWS: Final = 8

# A stretch is drawn short only if that makes it shorter by this factor at least.
WORTH_CUTTING: Final = 1.5
# Where nothing was ever at work, stretches are at most so many times the shortest.
UNEVEN: Final = 6.0
# What is not drawn takes this share of what is.
LEFT_OUT_SHARE: Final = 0.12


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Something that lasts. `is_busy`: a worker was at it, so that it is drawn to scale. `lease_ends_at` is later."""

    lane: int
    begin: dt.datetime
    end: dt.datetime
    kind: str
    label: str
    title: str
    is_busy: bool = False
    lease_ends_at: dt.datetime | None = None
    lease_title: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """Something that happened at an instant. `is_within`: a bar goes on beside it, whose label it must not hide."""

    lane: int
    at: dt.datetime
    kind: str
    title: str
    is_within: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """An instant that all lanes have in common: now, a deadline, the end of a lease."""

    at: dt.datetime
    kind: str
    label: str
    title: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Life:
    """The plain description. `left_out` are stretches of which nothing is drawn."""

    lanes: Sequence[str]
    spans: Sequence[Span] = ()
    marks: Sequence[Mark] = ()
    rules: Sequence[Rule] = ()
    left_out: Sequence[tuple[dt.datetime, dt.datetime]] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A span as it is drawn; its label is empty where it does not fit."""

    span: Span
    x: float
    y: float
    width: float
    label: str
    lease_x: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Marks of one kind that stand so close that they are drawn as one."""

    marks: tuple[Mark, ...]
    x: float
    y: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Upright:
    """A rule as it is drawn, with its label to its right or, `is_left`, to its left."""

    rule: Rule
    x: float
    y: float
    is_left: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """A named instant of the scale."""

    at: dt.datetime
    x: float
    is_left: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Break:
    """A stretch that is drawn short (or, `is_left_out`, of which nothing is drawn), between two instants."""

    begin: dt.datetime
    end: dt.datetime
    x: float
    width: float
    is_left_out: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """All that is drawn, in pixels."""

    height: float
    top: float
    bottom: float
    lanes: list[tuple[str, float]]
    bars: list[Bar]
    points: list[Point]
    uprights: list[Upright]
    ticks: list[Tick]
    breaks: list[Break]


def draw(life: Life) -> Picture:
    """Return where everything stands. A span that ends before it begins is drawn as an instant, at its beginning."""
    scale = Scale(life)
    uprights, rows = _uprights(life.rules, scale)
    top = 4 + rows * RULE_ROW
    lanes = [(label, top + number * LANE_HEIGHT) for number, label in enumerate(life.lanes)]
    bottom = top + len(lanes) * LANE_HEIGHT + 4
    return Picture(
        height=bottom + TICK_HEIGHT,
        top=top,
        bottom=bottom,
        lanes=lanes,
        bars=[_bar(span, scale, lanes[span.lane][1] + LABEL_HEIGHT) for span in life.spans],
        points=_points(life.marks, scale, [y + LABEL_HEIGHT for _, y in lanes]),
        uprights=uprights,
        ticks=_ticks(scale),
        breaks=scale.breaks,
    )


@dataclass(slots=True)
class Scale:
    """From instants to pixels: even within each stretch between two instants that something is drawn at."""

    life: Life
    instants: list[dt.datetime] = field(init=False)
    places: list[float] = field(init=False)
    breaks: list[Break] = field(init=False)
    by_instant: dict[dt.datetime, float] = field(init=False)

    def __post_init__(self) -> None:
        self.instants = sorted(set(_instants(self.life)))
        stretches = list(pairwise(self.instants))
        lengths = [(end - begin).total_seconds() for begin, end in stretches]
        hidden = _covered(stretches, self.life.left_out)
        busy = _covered(stretches, [(span.begin, span.end) for span in self.life.spans if span.is_busy])
        drawn = _shorten(lengths, busy, hidden)
        total = sum(drawn)
        room = WIDTH - 2 * MARGIN
        self.places = [MARGIN]
        self.breaks = []
        for (begin, end), length, shown, is_hidden in zip(stretches, lengths, drawn, hidden, strict=True):
            x = self.places[-1]
            width = room * shown / total
            self.places.append(x + width)
            if is_hidden or shown < length:
                self.breaks.append(Break(begin=begin, end=end, x=x, width=width, is_left_out=is_hidden))
        self.by_instant = dict(zip(self.instants, self.places, strict=True))

    def __call__(self, at: dt.datetime) -> float:
        """Return the place of one of the instants that something is drawn at."""
        return self.by_instant[at]


def _instants(life: Life) -> Iterable[dt.datetime]:
    for span in life.spans:
        yield span.begin
        yield max(span.begin, span.end)
        if span.lease_ends_at is not None:
            yield max(span.begin, span.lease_ends_at)
    yield from (mark.at for mark in life.marks)
    yield from (rule.at for rule in life.rules)
    for begin, end in life.left_out:
        yield from (begin, end)


def _covered(
    stretches: Sequence[tuple[dt.datetime, dt.datetime]], spans: Iterable[tuple[dt.datetime, dt.datetime]]
) -> list[bool]:
    """Return of each stretch, in order, whether one of the spans covers it."""
    waiting = sorted(((begin, end) for begin, end in spans if begin < end), reverse=True)
    covered = []
    until: dt.datetime | None = None
    for begin, _ in stretches:
        while waiting and waiting[-1][0] <= begin:
            end = waiting.pop()[1]
            until = end if until is None else max(until, end)
        covered.append(until is not None and until > begin)
    return covered


def _shorten(lengths: Sequence[float], busy: Sequence[bool], hidden: Sequence[bool]) -> list[float]:
    """Return how long each stretch is drawn."""
    idle = [length for length, at_work, out in zip(lengths, busy, hidden, strict=True) if not (at_work or out)]
    worked = sum(length for length, at_work, out in zip(lengths, busy, hidden, strict=True) if at_work and not out)
    limit = _limit(idle, worked)
    drawn = [
        limit if not at_work and length > limit * WORTH_CUTTING else length
        for length, at_work in zip(lengths, busy, strict=True)
    ]
    shown = sum(length for length, out in zip(drawn, hidden, strict=True) if not out)
    left_out = (shown or 1.0) * LEFT_OUT_SHARE
    return [left_out if out else length for length, out in zip(drawn, hidden, strict=True)]


def _limit(idle: Sequence[float], worked: float) -> float:
    """Return the longest that an idle stretch is drawn: together they take as much as what was worked, at most."""
    if not idle:
        return 0.0
    if not worked:
        return min(idle) * UNEVEN
    left, limit = worked, 0.0
    for number, length in enumerate(sorted(idle)):
        limit = left / (len(idle) - number)
        if length > limit:
            return limit
        left -= length
    return max(idle)


def _bar(span: Span, scale: Scale, y: float) -> Bar:
    x = scale(span.begin)
    width = max(scale(max(span.begin, span.end)) - x, LEAST_BAR)
    # The right margin is wide enough for the least of bars.
    lease_x = None if span.lease_ends_at is None else scale(max(span.begin, span.lease_ends_at))
    label = span.label if len(span.label) * CHARACTER + 16 <= width else ""
    return Bar(span=span, x=x, y=y, width=width, label=label, lease_x=lease_x)


def _points(marks: Sequence[Mark], scale: Scale, tops: Sequence[float]) -> list[Point]:
    """Put marks of one kind on one lane together where they would hide one another."""
    points: list[Point] = []
    for lane, kind in sorted({(mark.lane, mark.kind) for mark in marks}):
        gathered: list[Mark] = []
        first = 0.0
        for mark in sorted((m for m in marks if (m.lane, m.kind) == (lane, kind)), key=lambda m: m.at):
            x = scale(mark.at)
            if gathered and x - first > MERGED_WITHIN:
                points.append(_point(gathered, scale, tops[lane]))
                gathered = []
            if not gathered:
                first = x
            gathered.append(mark)
        points.append(_point(gathered, scale, tops[lane]))
    return points


def _point(marks: Sequence[Mark], scale: Scale, top: float) -> Point:
    y = top + (BAR_HEIGHT if marks[0].is_within else BAR_HEIGHT / 2)
    return Point(marks=tuple(marks), x=(scale(marks[0].at) + scale(marks[-1].at)) / 2, y=y)


def _uprights(rules: Sequence[Rule], scale: Scale) -> tuple[list[Upright], int]:
    """Place the rules' labels in rows, so that none covers another; return them and the number of rows."""
    ends: list[list[tuple[float, float]]] = []
    placed = []
    for rule in sorted(rules, key=lambda rule: rule.at):
        x = scale(rule.at)
        width = len(rule.label) * CHARACTER + 12
        is_left = x + width > WIDTH
        begin, end = (x - width, x) if is_left else (x, x + width)
        row = next((n for n, taken in enumerate(ends) if all(end <= a or begin >= b for a, b in taken)), len(ends))
        if row == len(ends):
            ends.append([])
        ends[row].append((begin, end))
        placed.append(Upright(rule=rule, x=x, y=min(row, MOST_RULE_ROWS - 1) * RULE_ROW + 13, is_left=is_left))
    return placed, min(len(ends), MOST_RULE_ROWS)


def _ticks(scale: Scale) -> list[Tick]:
    """Name as many instants of the scale as have room, the first and the last among them."""
    ticks: list[Tick] = []
    end = -1.0
    last = scale.instants[-1]
    for at, x in zip(scale.instants, scale.places, strict=True):
        is_first = not ticks
        if is_first or (x >= end and x + TICK_WIDTH <= WIDTH - TICK_WIDTH):
            ticks.append(Tick(at=at, x=x, is_left=False))
            end = x + TICK_WIDTH
    if len(scale.instants) > 1:
        ticks.append(Tick(at=last, x=scale.places[-1], is_left=True))
    return ticks
