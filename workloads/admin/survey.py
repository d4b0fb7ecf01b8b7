"""The overview's figures, read together: one look at everything, kept for a few seconds for all who ask."""

from __future__ import annotations

import datetime as dt
import logging
import time
from dataclasses import dataclass
from typing import Any, Final

from django.core.cache import cache

from workloads import authority
from workloads.admin import figures, flow
from workloads.admin.figures import NONE, Capped, DeadLetters, Item, Overdue, Place, Some
from workloads.contract import WorkloadState

FRESH_S: Final = 10.0
KEPT_S: Final = 120
KEY: Final = "workloads.overview.1"

GRACE: Final = dt.timedelta(minutes=1)
"""For so long, what the clock has not seen to yet, or a worker not confirmed, is nothing out of the ordinary."""
MOST_EXPLAINED_AMONG: Final = 2_000

S = WorkloadState
logger = logging.getLogger("workloads.admin")


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """How much of one kind of work, or of one application's, stands where."""

    due: Capped = NONE
    later: Capped = NONE
    held: Capped = NONE
    dead: Capped = NONE
    done: Capped = NONE

    @property
    def weight(self) -> int:
        """How far in front it stands where there is not room for all."""
        return 1_000 * (self.due.count + self.held.count + self.dead.count) + self.later.count + self.done.count

    def __add__(self, other: Part) -> Part:
        return Part(
            due=self.due + other.due,
            later=self.later + other.later,
            held=self.held + other.held,
            dead=self.dead + other.dead,
            done=self.done + other.done,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Work that is due and not running. `is_crowded`: so much waits beside it that telling why would read too much."""

    item: Item
    is_crowded: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """What has happened in the spans of one chart; `starts` has them all, the tallies those that are counted."""

    width: int
    starts: tuple[int, ...]
    ended: flow.Tallies
    tried: flow.Tallies
    dead: flow.Tallies | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Everything that the overview shows. Plain values, so that a cache can hold them; `at` is the database's clock."""

    at: dt.datetime
    states: dict[str, Capped]
    due: Capped
    later: Capped
    held: Capped
    blocked: Capped
    parts: tuple[tuple[Place, Part], ...]
    longest_held: Item | None
    oldest: tuple[Waiting, ...]
    oldest_is_bound: bool
    dead: DeadLetters
    overdue: Overdue
    waiting_for_dead: Some
    cancelling: Some
    last_pass: dt.datetime | None
    workers: Capped
    last_workers: tuple[tuple[str, dt.datetime], ...]
    minutes: Flow
    hours: Flow

    @property
    def is_empty(self) -> bool:
        """Whether nothing has ever been admitted, or all of it is pruned."""
        return not self.states


def current() -> tuple[Survey, float]:
    """Return a survey and its age in seconds: a kept one while it is fresh, else a new one.

    While somebody else makes the new one, the old one is shown. Without a cache, each look makes its own.
    """
    kept = _ask("get", KEY)
    found, made_at = kept if _is_kept(kept) else (None, 0.0)
    age = time.time() - made_at
    if found is not None and 0 <= age < FRESH_S:
        return found, age
    is_mine = _ask("add", f"{KEY}.turn", 1, FRESH_S)
    if found is not None and 0 <= age < KEPT_S and is_mine is False:
        return found, age
    made_at = time.time()
    survey = read(authority.read_clock())
    _ask("set", KEY, (survey, made_at), KEPT_S)
    return survey, max(0.0, time.time() - made_at)


def _is_kept(kept: Any) -> bool:
    return isinstance(kept, tuple) and len(kept) == 2 and isinstance(kept[0], Survey)


def _ask(name: str, *args: Any) -> Any:
    """Return what the cache answers; None where it is away, or holds what this version can't read."""
    try:
        return getattr(cache, name)(*args)
    except Exception:
        logger.warning("The cache did not answer; the overview was read anew.", exc_info=True)
        return None


def read(now: dt.datetime) -> Survey:
    """Read everything."""
    states = figures.by_state()
    due, later = figures.queues(now)
    held, longest_held, held_in_all = figures.held()
    dead, died_at = figures.dead_letters(now)
    exact = None if dead.total.more else died_at
    oldest, oldest_is_bound = figures.oldest_claimable(now)
    workers, last_workers = figures.workers(now)
    done = figures.done_lately(now)
    places = figures.places({*due, *later, *held, *dead.by_lane, *done})
    parts: dict[Place, Part] = {}
    for lane, place in places.items():
        part = Part(
            due=due.get(lane, NONE),
            later=later.get(lane, NONE),
            held=held.get(lane, NONE),
            dead=dead.by_lane.get(lane, NONE),
            done=done.get(lane, NONE),
        )
        parts[place] = parts.get(place, Part()) + part
    return Survey(
        at=now,
        states=states,
        due=sum(due.values(), NONE),
        later=sum(later.values(), NONE),
        held=held_in_all,
        blocked=figures.blocked(),
        parts=tuple(parts.items()),
        longest_held=longest_held,
        oldest=tuple(_waiting(item, parts) for item in oldest),
        oldest_is_bound=oldest_is_bound,
        dead=dead,
        overdue=figures.overdue(now, GRACE),
        waiting_for_dead=figures.waiting_for_dead_letters(),
        cancelling=figures.cancelling(now, GRACE),
        last_pass=figures.last_pass(),
        workers=workers,
        last_workers=last_workers,
        minutes=_flow(now, flow.FIVE_MINUTES, 12, exact),
        hours=_flow(now, flow.HOUR, 168, exact),
    )


def _waiting(item: Item, parts: dict[Place, Part]) -> Waiting:
    mine = (item.tenant_id, item.application_id)
    beside = sum((part.due for at, part in parts.items() if (at.tenant_id, at.application_id) == mine), NONE)
    # To say how many go first, all that is due in its application is read.
    return Waiting(item=item, is_crowded=beside.more or beside.count > MOST_EXPLAINED_AMONG)


def _flow(now: dt.datetime, width: int, count: int, died_at: list[dt.datetime] | None) -> Flow:
    return Flow(
        width=width,
        starts=tuple(flow.starts(now, width, count)),
        ended=flow.tallies(flow.ENDED, now, width, count),
        tried=flow.tallies(flow.TRIED, now, width, count),
        dead=None if died_at is None else flow.by_span(died_at, S.DEAD_LETTER.value, now, width, count),
    )
