"""The timeline as a picture: SVG without any style of its own, so that the site's themes colour it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, ngettext

from workloads.admin.display import TONES
from workloads.admin.page_timeline import lasting, moment, title_of
from workloads.admin.timeline import (
    BAR_HEIGHT,
    CHARACTER,
    LANE_HEIGHT,
    LEAST_BAR,
    MARGIN,
    WIDTH,
    Bar,
    Break,
    Life,
    Picture,
    Point,
    Tick,
    Upright,
)

# Around the middle of a mark. Each kind has a shape of its own: colour says nothing that the shape does not.
SHAPES: Final[Mapping[str, str]] = {
    "CHECKPOINT": "M0-6 6 0 0 6-6 0Z",
    "SUCCEEDED": "M-7 0-2 5 7-5",
    "FAILED": "M-5-5 5 5M5-5-5 5",
    "TIMED_OUT": "M-6-8H6L-6 8H6Z",
    "WORKER_LOST": "M0-7 7 6H-7Z",
    "CANCELLED": "M-5-5H5V5H-5Z",
    "RELEASED": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0Z",
    "PERSON": "M-4 8V-8L7-4-4 0",
    "LEASE": "M0-10V10",
    "DEADLINE": "M0-10V10M-4-10H4M-4 10H4",
}
LINES: Final = frozenset({"FAILED", "SUCCEEDED", "LEASE", "DEADLINE", "RELEASED"})
FLAGS: Final = frozenset({"PERSON"})
MARK_TONES: Final[Mapping[str, str]] = {
    **TONES,
    "CHECKPOINT": "active",
    "PERSON": "waiting",
    "LEASE": "warning",
    "DEADLINE": "bad",
}
WAITING_TONES: Final[Mapping[str, str]] = {
    "scheduled": "quiet",
    "due": "waiting",
    "blocked": "warning",
    "parked": "bad",
    "lost": "warning",
}


def picture(life: Life, drawn: Picture) -> SafeString:
    """Return the picture as markup; its title and description have the ids that begin `timeline-`."""
    middle = drawn.bottom
    parts = [
        *(_break(gap, drawn) for gap in drawn.breaks),
        *(_lane(label, y) for label, y in drawn.lanes),
        format_html('<path class="workloads-axis" d="M{} {}H{}"/>', _n(MARGIN), _n(middle), _n(WIDTH - MARGIN)),
        *(_tick(tick, name, drawn) for tick, name in zip(drawn.ticks, _named(drawn.ticks), strict=True)),
        *(_upright(upright, drawn) for upright in drawn.uprights),
        *(part for bar in drawn.bars for part in _bar(bar)),
        *(_point(point) for point in drawn.points),
    ]
    return format_html(
        '<svg class="workloads-timeline" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" '
        'aria-labelledby="timeline-title timeline-description">'
        '<title id="timeline-title">{}</title><desc id="timeline-description">{}</desc>{}</svg>',
        _n(WIDTH),
        _n(drawn.height),
        _("Timeline"),
        _describe(life),
        format_html_join("\n", "{}", ((part,) for part in parts)),
    )


def _describe(life: Life) -> str:
    attempts = sum(span.is_busy for span in life.spans)
    said = ngettext("%(count)d attempt is drawn.", "%(count)d attempts are drawn.", attempts) % {"count": attempts}
    return _("%(attempts)s The table after the picture holds all that is in it.") % {"attempts": said}


def _n(number: float) -> str:
    # Not by a template, which would write the reader's decimal comma.
    return f"{number:.1f}".removesuffix(".0")


def _lane(label: str, y: float) -> SafeString:
    most = int((WIDTH - 2 * MARGIN) / CHARACTER)
    shown = label if len(label) <= most else f"{label[: most - 1]}…"
    return format_html(
        '<path class="workloads-lane" d="M{} {}H{}"/><text class="workloads-lane-name" x="{}" y="{}">{}</text>',
        _n(MARGIN),
        _n(y + LANE_HEIGHT),
        _n(WIDTH - MARGIN),
        _n(MARGIN + 5),
        _n(y + 12),
        shown,
    )


def _bar(bar: Bar) -> Iterator[SafeString]:
    span = bar.span
    tone = TONES.get(span.kind, "quiet") if span.is_busy else WAITING_TONES[span.kind]
    kind = "attempt" if span.is_busy else "waiting"
    if bar.lease_x is not None and bar.lease_x > bar.x + bar.width:
        yield format_html(
            '<path class="workloads-lease workloads-{}" d="M{} {}H{}M{} {}V{}"><title>{}</title></path>',
            tone,
            _n(bar.x + bar.width),
            _n(bar.y + BAR_HEIGHT / 2),
            _n(bar.lease_x),
            _n(bar.lease_x),
            _n(bar.y + 3),
            _n(bar.y + BAR_HEIGHT - 3),
            span.lease_title,
        )
    text: str | SafeString = ""
    if bar.label:
        text = format_html(
            '<text class="workloads-bar-name" x="{}" y="{}">{}</text>', _n(bar.x + 5), _n(bar.y + 14), bar.label
        )
    yield format_html(
        '<g class="workloads-bar workloads-bar-{} workloads-{}"><title>{}</title>'
        '<rect x="{}" y="{}" width="{}" height="{}" rx="2"/>{}</g>',
        kind,
        tone,
        span.title,
        _n(bar.x),
        _n(bar.y),
        _n(max(bar.width, LEAST_BAR)),
        _n(BAR_HEIGHT),
        text,
    )


def _shape(kind: str) -> SafeString:
    style = "line" if kind in LINES else "flag" if kind in FLAGS else "solid"
    return format_html('<path class="workloads-mark-{}" d="{}"/>', style, SHAPES[kind])


def _point(point: Point) -> SafeString:
    kind = point.marks[0].kind
    return format_html(
        '<g class="workloads-mark workloads-{}" transform="translate({} {})"><title>{}</title>{}</g>',
        MARK_TONES[kind],
        _n(point.x),
        _n(point.y),
        title_of(point),
        _shape(kind),
    )


def _upright(upright: Upright, drawn: Picture) -> SafeString:
    rule = upright.rule
    return format_html(
        '<g class="workloads-rule workloads-rule-{}"><title>{}</title><path d="M{} {}V{}"/>'
        '<text x="{}" y="{}" text-anchor="{}">{}</text></g>',
        rule.kind,
        rule.title,
        _n(upright.x),
        _n(upright.y - 11),
        _n(drawn.bottom),
        _n(upright.x - 4 if upright.is_left else upright.x + 4),
        _n(upright.y),
        "end" if upright.is_left else "start",
        rule.label,
    )


def _tick(tick: Tick, name: str, drawn: Picture) -> SafeString:
    return format_html(
        '<g class="workloads-tick"><title>{}</title><path d="M{} {}V{}"/>'
        '<text x="{}" y="{}" text-anchor="{}">{}</text></g>',
        moment(tick.at),
        _n(tick.x),
        _n(drawn.bottom - 4),
        _n(drawn.bottom + 4),
        _n(tick.x),
        _n(drawn.bottom + 34),
        "end" if tick.is_left else "start",
        name,
    )


def _named(ticks: Sequence[Tick]) -> list[str]:
    """Return the instants as exactly as it takes to tell them apart."""
    whole = [moment(tick.at) for tick in ticks]
    is_one_day = ticks[-1].at - ticks[0].at < dt.timedelta(hours=20)
    names = whole
    # Of "2026-11-30 14:15:16.171": the day and the minute, the second, the millisecond.
    for begin, end in ((11, 19), (11, 23)) if is_one_day else ((5, 16), (5, 19), (5, 23)):
        names = [text[begin:end] for text in whole]
        if all(one != other for one, other in pairwise(names)):
            break
    return names


def _break(gap: Break, drawn: Picture) -> SafeString:
    length = lasting(gap.end - gap.begin)
    said = _("%(lasting)s, not drawn") if gap.is_left_out else _("%(lasting)s, drawn short")
    middle = gap.x + gap.width / 2
    label: str | SafeString = ""
    if len(length) * CHARACTER + 16 <= gap.width:
        label = format_html(
            '<text x="{}" y="{}" text-anchor="middle">{}</text>', _n(middle), _n(drawn.bottom + 18), f"// {length}"
        )
    return format_html(
        '<g class="workloads-break"><title>{}</title><rect x="{}" y="{}" width="{}" height="{}"/>'
        '<path d="M{} {}l5-10M{} {}l5-10"/>{}</g>',
        said % {"lasting": length},
        _n(gap.x),
        _n(drawn.top),
        _n(gap.width),
        _n(drawn.bottom - drawn.top),
        _n(middle - 5),
        _n(drawn.bottom + 5),
        _n(middle),
        _n(drawn.bottom + 5),
        label,
    )


def legend(life: Life) -> SafeString:
    """Return what the shapes in the picture mean, of those alone that are in it."""
    words = {
        "CHECKPOINT": _("checkpoint"),
        "PERSON": _("a person's decision"),
        "LEASE": _("end of a lease"),
        "DEADLINE": _("missed deadline"),
    }
    kinds = [kind for kind in SHAPES if kind in {mark.kind for mark in life.marks}]
    return format_html('<ul class="workloads-legend">{}</ul>', _entries(kinds, words)) if kinds else SafeString()


def _entries(kinds: Iterable[str], words: Mapping[str, Any]) -> SafeString:
    rows = ((MARK_TONES[kind], _shape(kind), words.get(kind, kind)) for kind in kinds)
    return format_html_join(
        "",
        '<li><svg class="workloads-mark workloads-{}" viewBox="-11 -11 22 22" aria-hidden="true">{}</svg> {}</li>',
        rows,
    )
