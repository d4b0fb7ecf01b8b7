"""What the page of workers reads, in bounded numbers of rows: who was seen, what is held, how attempts end."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from django.db.models import ExpressionWrapper, F, Q, QuerySet, TextField
from django.utils.dateparse import parse_datetime

from workloads.lifecycle.states import HELD
from workloads.models import Event, SeenWorker, Workload

RECENT: Final = dt.timedelta(hours=1)
MOST_CLAIMS: Final = 10_000
MOST_EVENTS: Final = 5_000
NAMES_A_QUERY: Final = 500
MOST_UNSEEN: Final = 100
ENDED_BADLY: Final = ("FAILED", "TIMED_OUT", "RECOVERING")
SETS: Final = ("capabilities", "definitions")

Place = tuple[str | None, str | None]


def covers(row: SeenWorker, place: Place) -> bool:
    """Tell whether work of this tenant and application is what the worker of a row asks for there."""
    return all(
        mine is None or mine == its for mine, its in zip((row.tenant_id, row.application_id), place, strict=True)
    )


@dataclass(slots=True)
class Held:
    """What is held under one name in one tenant and application, and the signs of life that stand with it."""

    place: Place
    count: int = 0
    claimed_at: dt.datetime | None = None
    heartbeat_at: dt.datetime | None = None

    def add(self, claimed_at: dt.datetime | None, heartbeat_at: dt.datetime | None) -> None:
        """Count one more claim."""
        self.count += 1
        self.claimed_at = latest(self.claimed_at, claimed_at)
        self.heartbeat_at = latest(self.heartbeat_at, heartbeat_at)


def latest(*instants: dt.datetime | None) -> dt.datetime | None:
    """Return the latest of those instants that there are."""
    return max((at for at in instants if at is not None), default=None)


@dataclass(slots=True)
class Share:
    """How many attempts were begun under one name in one tenant and application, and how many of them ended badly."""

    place: Place
    begun: int = 0
    failed: int = 0


@dataclass(kw_only=True, slots=True)
class Work:
    """What workers hold and how their attempts end: by name, a few entries each. Bounded, and says where it is cut."""

    held: dict[str, list[Held]] = field(default_factory=dict)
    held_is_cut: bool = False
    shares: dict[str, list[Share]] = field(default_factory=dict)
    shares_since: dt.datetime | None = None
    """When the first of those was that were read, if there are more in the last hour."""


def read_held(names: Collection[str]) -> tuple[dict[str, list[Held]], bool]:
    """Return what is held under these names, up to 10,000 claims, and whether there are more: one query."""
    rows = Workload.objects.filter(worker_id__in=names).order_by("worker_id")
    columns = ("worker_id", "tenant_id", "application_id", "claimed_at", "last_heartbeat")
    found = list(rows.values_list(*columns)[: MOST_CLAIMS + 1])
    by_name: dict[str, dict[Place, Held]] = defaultdict(dict)
    for name, tenant_id, application_id, claimed_at, heartbeat_at in found[:MOST_CLAIMS]:
        place = (tenant_id, application_id)
        by_name[str(name)].setdefault(place, Held(place)).add(claimed_at, heartbeat_at)
    return {name: list(places.values()) for name, places in by_name.items()}, len(found) > MOST_CLAIMS


def read_shares(now: dt.datetime) -> tuple[dict[str, list[Share]], dt.datetime | None]:
    """Return, by name, how the attempts begun in the last hour ended, from its newest 5,000 events: one query.

    An attempt counts as begun with its claim. Failures of attempts that were begun earlier are left out.
    """
    rows = Event.objects.filter(at__gt=now - RECENT, to_state__in=("CLAIMED", *ENDED_BADLY)).order_by("-at")
    columns = ("at", "sequence", "record_id", "from_state", "to_state", "actor")
    found = list(rows.values_list(*columns, "record__tenant_id", "record__application_id")[: MOST_EVENTS + 1])
    since = found[MOST_EVENTS - 1][0] if len(found) > MOST_EVENTS else None
    by_name: dict[str, dict[Place, Share]] = defaultdict(dict)
    holding: dict[int, Share] = {}
    for _at, _sequence, record, from_state, to_state, actor, *place in sorted(found[:MOST_EVENTS]):
        if to_state == "CLAIMED":
            where = (place[0], place[1])
            holding[record] = by_name[actor].setdefault(where, Share(where))
            holding[record].begun += 1
        elif from_state in HELD and (share := holding.pop(record, None)) is not None:
            share.failed += 1
    return {name: list(places.values()) for name, places in by_name.items()}, since


def unseen() -> tuple[list[str], bool]:
    """Return names that hold claims and stand in no row, and whether there may be more. Looks at 10,000 claims."""
    claims = Workload.objects.filter(worker_id__isnull=False).order_by("worker_id")
    found = list(claims.values_list("worker_id", flat=True)[: MOST_CLAIMS + 1])
    names = sorted({str(name) for name in found[:MOST_CLAIMS]})
    missing: list[str] = []
    for start in range(0, len(names), NAMES_A_QUERY):
        part = names[start : start + NAMES_A_QUERY]
        known = set(SeenWorker.objects.filter(worker_id__in=part).values_list("worker_id", flat=True))
        missing += [name for name in part if name not in known]
        if len(missing) > MOST_UNSEEN:
            break
    return missing[:MOST_UNSEEN], len(found) > MOST_CLAIMS or len(missing) > MOST_UNSEEN


def seen_workers() -> QuerySet[SeenWorker]:
    """Return the rows, last seen first, with their sets as text: one that can't be read shows, and breaks nothing."""
    text = {f"{name}_text": ExpressionWrapper(F(name), TextField()) for name in SETS}
    return SeenWorker.objects.defer(*SETS).annotate(**text).order_by("-seen_at", "-pk")


def after(rows: QuerySet[SeenWorker], mark: str) -> QuerySet[SeenWorker]:
    """Return the rows behind the one that an address marks as the last of the page before; all, if it marks none."""
    instant, _sep, key = mark.partition("~")
    try:
        seen_at = parse_datetime(instant)
        pk = int(key)
    except ValueError:
        return rows
    if seen_at is None or seen_at.tzinfo is None or not 0 <= pk < 2**63:
        return rows
    # Spelt out twice: the first bounds the range of the index.
    return rows.filter(Q(seen_at__lte=seen_at), Q(seen_at__lt=seen_at) | Q(pk__lt=pk))


def mark_of(row: SeenWorker) -> str:
    """Return what marks a row in an address."""
    return f"{row.seen_at.astimezone(dt.UTC):%Y-%m-%dT%H:%M:%S.%fZ}~{row.pk}"
