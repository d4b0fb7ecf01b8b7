"""The overview's charts: the last hour, day and week, each in bars of how much succeeded, failed and was given up."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from workloads.admin.charts import Bar, bar_chart
from workloads.admin.display import NOTHING
from workloads.admin.flow import FAILED, Tallies
from workloads.admin.survey import Flow, Survey
from workloads.contract import WorkloadState

HOURS_OF_A_DAY: Final = 24
HOURS_OF_A_BAR: Final = 6
BARS_OF_A_WEEK: Final = 28

S = WorkloadState


@dataclass(frozen=True, slots=True)
class Amount:
    """How many in one or more spans. None: not counted yet. `is_about`: at least a part of it is estimated."""

    value: int | None
    is_about: bool = False

    def __str__(self) -> str:
        if self.value is None:
            return NOTHING
        number = number_format(self.value, use_l10n=True, force_grouping=True)
        return _("about %(number)s") % {"number": number} if self.is_about else number


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """One chart, what it counts, and its sum."""

    label: str
    tone: str
    total: str
    note: str
    highest: str
    drawing: SafeString


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """The charts of one stretch of time, which share their bars' spans, and the same as a table, newest first."""

    name: str
    title: str
    note: str
    first: str
    last: str
    charts: list[Chart]
    rows: list[tuple[str, list[Amount]]]


def spans(survey: Survey) -> list[Span]:
    """Return the last hour, day and week."""
    minutes, hours = survey.minutes, survey.hours
    day = hours.starts[-HOURS_OF_A_DAY:]
    return [
        _span("hour", _("Last hour"), _("5 minutes a bar"), minutes, [[start] for start in minutes.starts], "H:i"),
        _span("day", _("Last day"), _("An hour a bar"), hours, [[start] for start in day], "H:i"),
        _span("week", _("Last week"), _("6 hours a bar"), hours, list(_quarters(hours.starts)), "D j, H:i"),
    ]


def _quarters(starts: Iterable[int]) -> Iterator[list[int]]:
    """Yield the hours by quarters of the reader's days; the first of a week is left out where it is cut."""
    found: list[list[int]] = []
    last: Any = None
    for start in starts:
        local = _local(start)
        key = (local.date(), local.hour // HOURS_OF_A_BAR)
        if key != last:
            found.append([])
            last = key
        found[-1].append(start)
    yield from found[-BARS_OF_A_WEEK:]


def _span(name: str, title: str, note: str, flow: Flow, bars: list[list[int]], form: str) -> Span:
    labels = [date_format(_local(bar[0]), form) for bar in bars]
    dead = flow.ended if flow.dead is None else flow.dead
    columns = (
        ("succeeded", _("Succeeded"), "good", [_amount(flow.ended, bar, S.SUCCEEDED.value) for bar in bars]),
        ("failed", _("Failed attempts"), "warning", [_amount(flow.tried, bar, *FAILED) for bar in bars]),
        ("dead", _("Dead letters"), "bad", [_amount(dead, bar, S.DEAD_LETTER.value) for bar in bars]),
    )
    rows = [(label, [amounts[index] for _key, _label, _tone, amounts in columns]) for index, label in enumerate(labels)]
    return Span(
        name=name,
        title=title,
        note=note,
        first=labels[0],
        last=_("now"),
        charts=[
            _chart(f"workloads-{name}-{key}", title, label, tone, amounts, labels)
            for key, label, tone, amounts in columns
        ],
        rows=rows[::-1],
    )


def _chart(name: str, title: str, label: str, tone: str, amounts: list[Amount], labels: list[str]) -> Chart:
    known = [amount.value for amount in amounts if amount.value is not None]
    total = str(Amount(sum(known), any(amount.is_about for amount in amounts)))
    highest = max(known, default=0)
    peak = labels[[amount.value for amount in amounts].index(highest)] if highest else ""
    missing = len(amounts) - len(known)
    bars = []
    for at, amount in zip(labels, amounts, strict=True):
        said = _("not counted yet") if amount.value is None else str(amount)
        text = _("From %(time)s: %(count)s") % {"time": at, "count": said}
        bars.append(Bar(value=amount.value, text=text, is_about=amount.is_about))
    if highest:
        description = _("%(total)s in all; the most, %(highest)s, in the span from %(time)s.")
        description %= {"total": total, "highest": highest, "time": peak}
    else:
        description = _("%(total)s in all.") % {"total": total}
    return Chart(
        label=label,
        tone=tone,
        total=total,
        note=_("so far; the rest is being counted") if missing else "",
        highest=str(Amount(highest)) if highest else "",
        drawing=bar_chart(name, _("%(what)s, %(when)s") % {"what": label, "when": title}, description, bars),
    )


def _amount(tallies: Tallies, bar: list[int], *words: str) -> Amount:
    found = [tallies[start] for start in bar if start in tallies]
    if len(found) < len(bar):
        return Amount(None)
    return Amount(sum(tally.of(*words) for tally in found), any(tally.about for tally in found))


def _local(start: int) -> dt.datetime:
    return timezone.localtime(dt.datetime.fromtimestamp(start, dt.UTC))
