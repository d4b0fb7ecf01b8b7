"""What has happened over time: how much ended, and how much failed, in each span of a chart.

Spans that are over are counted once and kept in the site's cache. A look counts from the newest backwards, a bounded
number of rows at a time; what it does not reach is counted by the looks that follow. A single span that holds more than
that is estimated from its newest rows, and says so.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.core.cache import cache
from django.db.models import Count
from django.db.models.functions import TruncHour, TruncMinute

from workloads.models import Event, Workload

MOST_COUNTED: Final = 5_000
MOST_TURNS: Final = 12
GRACE: Final = dt.timedelta(minutes=1)
KEPT_S: Final = 8 * 24 * 3600

FIVE_MINUTES: Final = 300
HOUR: Final = 3600

# The states whose events the index for figures holds; of these, those that say that an attempt failed.
RECENT: Final = ("CLAIMED", "FAILED", "TIMED_OUT", "RECOVERING")
FAILED: Final = ("FAILED", "TIMED_OUT", "RECOVERING")

logger = logging.getLogger("workloads.admin")


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Rows that carry an instant and a word, with an index on the instant."""

    name: str
    rows: Callable[[], Any]
    at: str
    said: str


ENDED: Final = Series(name="ended", rows=lambda: Workload.objects.all(), at="finished_at", said="state")
TRIED: Final = Series(name="tried", rows=lambda: Event.objects.filter(to_state__in=RECENT), at="at", said="to_state")


@dataclass(frozen=True, slots=True)
class Tally:
    """How often each word was said in one span. `about`: estimated from the newest rows of the span."""

    counts: Mapping[str, int] = field(default_factory=dict)
    about: bool = False

    def of(self, *words: str) -> int:
        return sum(self.counts.get(word, 0) for word in words)


Tallies = dict[int, Tally]


def starts(now: dt.datetime, width: int, count: int) -> list[int]:
    """Return when the last `count` spans of `width` seconds began, the present one included, oldest first."""
    last = int(now.timestamp()) // width * width
    return [last - width * back for back in reversed(range(count))]


def tallies(series: Series, now: dt.datetime, width: int, count: int) -> Tallies:
    """Return the spans that have been counted, by when they began; what is missing has not been counted yet."""
    wanted = starts(now, width, count)
    key = f"workloads.flow.1.{series.name}.{width}"
    kept = _kept(key)
    found = {start: kept[start] for start in wanted if start in kept}
    todo = [start for start in reversed(wanted) if start not in found]
    for _turn in range(MOST_TURNS):
        if not todo:
            break
        counted = dict(_count(series, _run(todo, width), width, now))
        found |= counted
        todo = [start for start in todo if start not in counted]
    over = int((now - GRACE).timestamp())
    closed = {start: tally for start, tally in found.items() if start + width <= over}
    if closed.keys() - kept.keys():
        _keep(key, {start: (dict(tally.counts), tally.about) for start, tally in closed.items()})
    return found


def _run(todo: list[int], width: int) -> list[int]:
    """Return the first of the spans, newest first, that follow each other without a gap."""
    length = next((i for i in range(1, len(todo)) if todo[i] != todo[i - 1] - width), len(todo))
    return todo[:length]


def _count(series: Series, run: list[int], width: int, now: dt.datetime) -> Iterator[tuple[int, Tally]]:
    """Yield the tallies of as many of these spans, newest first, as a bounded number of rows fills; at least one."""
    since, until = _instant(run[-1]), _instant(run[0] + width)
    rows = series.rows().filter(**{f"{series.at}__gte": since, f"{series.at}__lt": until}).order_by()
    # Where the newest end, the index alone tells; so the rows can be grouped in the database.
    cut = rows.order_by(f"-{series.at}").values_list(series.at, flat=True)[MOST_COUNTED : MOST_COUNTED + 1].first()
    if cut is not None:
        rows = rows.filter(**{f"{series.at}__gt": cut})
    truncated = (TruncHour if width >= HOUR else TruncMinute)(series.at, tzinfo=dt.UTC)
    counts: dict[int, dict[str, int]] = {}
    for at, word, number in rows.annotate(span=truncated).values_list("span", series.said).annotate(Count("pk")):
        of_span = counts.setdefault(int(at.timestamp()) // width * width, {})
        of_span[word] = of_span.get(word, 0) + number
    whole = [start for start in run if cut is None or _instant(start) > cut]
    if whole or cut is None:
        yield from ((start, Tally(counts.get(start, {}))) for start in whole)
        return
    end = min(until, now)
    share = (end - _instant(run[0])) / max(end - cut, dt.timedelta(milliseconds=1))
    yield run[0], Tally({word: round(number * share) for word, number in counts.get(run[0], {}).items()}, True)


def _instant(start: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(start, dt.UTC)


def by_span(instants: Iterable[dt.datetime], word: str, now: dt.datetime, width: int, count: int) -> Tallies:
    """Return the spans of what was said at these instants, all of one word."""
    wanted = starts(now, width, count)
    counts = dict.fromkeys(wanted, 0)
    for at in instants:
        # A clock ahead of this one has put some after the last span.
        start = min(int(at.timestamp()) // width * width, wanted[-1])
        if start in counts:
            counts[start] += 1
    return {start: Tally({word: number}) for start, number in counts.items()}


def _kept(key: str) -> Tallies:
    try:
        kept = cache.get(key) or {}
        return {int(start): Tally(dict(counts), bool(about)) for start, (counts, about) in kept.items()}
    except Exception:
        # A cache that is away, or that holds what another version put there, costs time and breaks nothing.
        logger.warning("The cache did not give what was counted before.", exc_info=True)
        return {}


def _keep(key: str, closed: dict[int, tuple[dict[str, int], bool]]) -> None:
    try:
        cache.set(key, closed, KEPT_S)
    except Exception:
        logger.warning("The cache did not take what was counted.", exc_info=True)
