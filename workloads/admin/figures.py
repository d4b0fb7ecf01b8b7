"""How much stands where, what is due, and what is stuck: each figure bounded by an index and a cap, whatever is stored.

Nothing here scans a table. A count stops at a cap and says so; where no index sorts what is asked, the newest or oldest
rows of an index are looked through, and the answer says that it holds for these alone. Columns with JSON are left out,
so that a row that can't be read is counted like any other.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Case, Count, F, OuterRef, Q, Subquery, Value, When
from django.db.models.functions import Left, StrIndex
from django.db.models.lookups import GreaterThan

from workloads.contract import WorkloadState
from workloads.lifecycle.signs import WORKER_IS_GONE
from workloads.models import IDENTIFIER_LENGTH, Admitted, Dependency, Lane, PassRun, SeenWorker, Workload

MOST_COUNTED: Final = 10_000
MOST_GROUPED: Final = 5_000
MOST_LOOKED_AT: Final = 2_000
MOST_IN_A_LANE: Final = 1_000
MOST_LANES: Final = 200
MOST_STATES: Final = 30
MOST_SHOWN: Final = 5
MOST_WORKERS: Final = 5

LATELY: Final = dt.timedelta(hours=1)
LOOKED_AT_AGAIN: Final = dt.timedelta(minutes=1)

HELD: Final = Q(worker_id__isnull=False)

S = WorkloadState


@dataclass(frozen=True, slots=True)
class Capped:
    """A count. `more`: counting stopped here, and there may be more."""

    count: int = 0
    more: bool = False

    def __add__(self, other: Capped) -> Capped:
        return Capped(self.count + other.count, self.more or other.more)


NONE: Final = Capped()


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Whose work of which kind."""

    tenant_id: str
    application_id: str
    definition_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One workload to point at. `since` is the instant from which its standing here counts."""

    pk: int
    workload_id: str
    state: str
    definition: str
    tenant_id: str
    application_id: str
    since: dt.datetime | None
    worker_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadGroup:
    """Dead letters of one definition that failed alike. `kind` is None where no attempt has failed."""

    definition_id: str
    kind: str | None
    dead: int
    lately: int
    latest: dt.datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetters:
    """The newest dead letters, in groups; `total` is cut where `groups` do not hold them all."""

    total: Capped
    lately: Capped
    groups: tuple[DeadGroup, ...]
    by_lane: Mapping[int, Capped]


@dataclass(frozen=True, slots=True)
class Some:
    """How many, and the first of them."""

    counted: Capped = NONE
    first: tuple[Item, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Overdue:
    """What the clock should have seen to by now, oldest first, and what waits for what nobody has admitted."""

    leases: Some
    deadlines: Some
    unmeetable: Some
    missing: Some


def _some(pks: list[int], since: str, *, more: bool) -> Some:
    return Some(Capped(len(pks), more and bool(pks)), items(pks[:MOST_SHOWN], since)) if pks else Some()


def _within(column: str, value: Any, **others: Any) -> Any:
    """Return the workloads with this value in an index's first column. To be ordered by that column, and the next.

    As a range, and so ordered, the index alone can give them. An equality, or no order, would let the database believe
    that it soon finds enough of them where they are not: from one end of the table to the other.
    """
    return Workload.objects.filter(**{f"{column}__gte": value, f"{column}__lte": value}, **others)


def _in_state(state: str) -> Any:
    """Return the workloads in this state, the newest first."""
    return _within("state", state).order_by("-state", "-admitted_id")


def _capped(rows: Any) -> Capped:
    """Count the rows, up to a bound."""
    count = rows[: MOST_COUNTED + 1].count()
    return Capped(min(count, MOST_COUNTED), count > MOST_COUNTED)


def by_state() -> dict[str, Capped]:
    """Return how many workloads are in each state that there is, those included that the contract does not know."""
    # From one state to the next: each step is one look into the index, and finds what no list of states would.
    found: dict[str, Capped] = {}
    last = ""
    while len(found) < MOST_STATES:
        rows = Workload.objects.filter(state__gt=last).order_by("state")
        state = rows.values_list("state", flat=True)[:1].first()
        if state is None:
            break
        found[state] = _capped(_in_state(state))
        last = state
    return found


def blocked() -> Capped:
    """Return how much READY work waits for other work."""
    return _capped(_in_state(S.READY.value).exclude(dependency_standing="met"))


def queues(now: dt.datetime) -> tuple[dict[int, Capped], dict[int, Capped]]:
    """Return by lane how much could be claimed now, and how much can be later."""
    due: Counter[int] = Counter()
    later: Counter[int] = Counter()
    for column in ("queued_lane_id", "waiting_lane_id"):
        rows = Workload.objects.filter(**{f"{column}__isnull": False}).order_by(column)
        seen = rows.values_list(column, "next_attempt_at")[: MOST_COUNTED + 1]
        if len(seen) > MOST_COUNTED:
            return _lane_by_lane(now)
        for lane, at in seen:
            # A clock ahead of this one has queued what this one finds too early.
            (later if column == "waiting_lane_id" and at is not None and at > now else due)[lane] += 1
    return _exact(due), _exact(later)


def _exact(counts: Mapping[int, int]) -> dict[int, Capped]:
    return {lane: Capped(count) for lane, count in counts.items()}


def _lane_by_lane(now: dt.datetime) -> tuple[dict[int, Capped], dict[int, Capped]]:
    """Return the same where there is too much to look through: each lane counted up to a bound of its own."""
    due = _in_each(QUEUED)
    for lane, counted in _in_each(WAITING, next_attempt_at__lte=now).items():
        due[lane] = due.get(lane, NONE) + counted
    return due, _in_each(WAITING, next_attempt_at__gt=now)


QUEUED: Final = ("queued_lane_id", "-priority", "next_attempt_at")
WAITING: Final = ("waiting_lane_id", "next_attempt_at")


def _in_each(index: tuple[str, ...], **condition: Any) -> dict[int, Capped]:
    """Return by lane how much an index that begins with the lane holds, up to a bound for each."""
    mine = _within(index[0], OuterRef("pk"), **condition)
    inside = mine.order_by(*index).values("pk")
    first, beyond = Subquery(inside[:1]), Subquery(inside[MOST_IN_A_LANE : MOST_IN_A_LANE + 1])
    lanes = Lane.objects.alias(first=first).filter(first__isnull=False).annotate(beyond=beyond).order_by("pk")
    found = dict(lanes.values_list("pk", "beyond")[:MOST_LANES])
    # Only of those that are known to hold few is all counted.
    few = Lane.objects.filter(pk__in=[lane for lane, pk in found.items() if pk is None])
    counted = Subquery(mine.order_by().values(index[0]).annotate(count=Count("pk")).values("count"))
    counts = dict(few.annotate(count=counted).values_list("pk", "count"))
    return {lane: Capped(counts.get(lane, MOST_IN_A_LANE) or 0, lane not in counts) for lane in found}


def held() -> tuple[dict[int, Capped], Item | None, Capped]:
    """Return by lane how much is held, the work whose claim is the oldest, and how much is held in all."""
    rows = Workload.objects.filter(HELD).order_by("worker_id")
    seen = list(rows.values_list(_admitted("lane_id"), "claimed_at", "pk")[: MOST_COUNTED + 1])
    counts = Counter(lane for lane, _, _ in seen)
    claims = [(claimed_at, pk) for _, claimed_at, pk in seen if claimed_at is not None]
    longest = items([min(claims)[1]], "claimed_at") if claims else ()
    in_all = Capped(min(len(seen), MOST_COUNTED), len(seen) > MOST_COUNTED)
    return _exact(counts), longest[0] if longest else None, in_all


def done_lately(now: dt.datetime) -> dict[int, Capped]:
    """Return by lane how much of what ended last has succeeded within the hour."""
    rows = Workload.objects.filter(finished_at__gt=now - LATELY).order_by("-finished_at")
    seen = list(rows.values_list(_admitted("lane_id"), "state")[: MOST_LOOKED_AT + 1])
    counts = Counter(lane for lane, state in seen if state == S.SUCCEEDED.value)
    return {lane: Capped(count, len(seen) > MOST_LOOKED_AT) for lane, count in counts.items()}


def _admitted(column: str) -> Subquery:
    """Return a column of what was admitted. Not as a join: for many rows, that would read the whole of both tables."""
    return Subquery(Admitted.objects.filter(pk=OuterRef("pk")).values(column)[:1])


def places(lanes: Iterable[int]) -> dict[int, Place]:
    """Return whose and what the lanes' work is."""
    rows = Lane.objects.filter(pk__in=set(lanes)).values_list("pk", "tenant_id", "application_id", "definition_id")
    return {
        pk: Place(tenant_id=tenant, application_id=application, definition_id=definition)
        for pk, tenant, application, definition in rows
    }


def oldest_claimable(now: dt.datetime) -> tuple[tuple[Item, ...], bool]:
    """Return what could be claimed and has been due the longest, and whether only the longest due were looked through.

    Work that waits for other work is due beside it in the same index: after a bounded number of these the search ends,
    and goes on at the far end of each lane, where what is starved stands.
    """
    due = Workload.objects.filter(next_attempt_at__lte=now)
    oldest = due.order_by("next_attempt_at", "admitted_id")
    seen = oldest.values_list("pk", "queued_lane_id", "waiting_lane_id")[:MOST_LOOKED_AT]
    found = [pk for pk, queued, waiting in seen if queued is not None or waiting is not None][:MOST_SHOWN]
    if found or len(seen) < MOST_LOOKED_AT:
        return items(found, "next_attempt_at"), False
    ends: list[tuple[dt.datetime, int]] = []  # `next_attempt_at` and key; a queue holds none without an instant.
    for lane in _in_each(QUEUED):
        queued = _within("queued_lane_id", lane, next_attempt_at__lte=now)
        lowest = queued.order_by("-queued_lane_id", "priority").values("priority")[:1]
        ends += _first_due(queued.filter(priority=Subquery(lowest)), QUEUED)
    for lane in _in_each(WAITING, next_attempt_at__lte=now):
        ends += _first_due(_within("waiting_lane_id", lane, next_attempt_at__lte=now), WAITING)
    return items([pk for _, pk in sorted(ends)[:MOST_SHOWN]], "next_attempt_at"), True


def _first_due(rows: Any, index: tuple[str, ...]) -> Iterable[tuple[dt.datetime, int]]:
    found: Iterable[tuple[dt.datetime, int]] = rows.order_by(*index).values_list("next_attempt_at", "pk")[:MOST_SHOWN]
    return found


def overdue(now: dt.datetime, grace: dt.timedelta) -> Overdue:
    """Return what the clock had something to say about, `grace` ago and longer."""
    rows = Workload.objects.filter(due_at__lte=now + LOOKED_AT_AGAIN).order_by("due_at", "admitted_id")
    columns = ("pk", "state", "worker_id", "expires_at", "due_at", "dependency_standing")
    seen = list(rows.values_list(*columns)[: MOST_LOOKED_AT + 1])
    leases: list[int] = []
    deadlines: list[int] = []
    unmeetable: list[int] = []
    missing: list[int] = []
    late = now - grace
    for pk, state, worker_id, expires_at, due_at, standing in seen[:MOST_LOOKED_AT]:
        if worker_id is not None:
            # Early where a heartbeat has moved the lease on: the next pass moves `due_at` after it.
            if expires_at is not None and expires_at <= late:
                leases.append(pk)
        elif state == S.READY.value and standing == "missing":
            missing.append(pk)
        elif state == S.READY.value and due_at <= late:
            (unmeetable if standing == "unmeetable" else deadlines).append(pk)
    # What was admitted just now may wait for work whose admission is under way.
    old = Admitted.objects.filter(pk__in=missing, created_at__lte=late).order_by("pk")
    more = len(seen) > MOST_LOOKED_AT
    return Overdue(
        leases=_some(leases, "expires_at", more=more),
        deadlines=_some(deadlines, "due_at", more=more),
        unmeetable=_some(unmeetable, "created_at", more=more),
        missing=_some(list(old.values_list("pk", flat=True)) if missing else [], "created_at", more=more),
    )


def waiting_for_dead_letters() -> Some:
    """Return what waits for one of the newest dead letters."""
    dead = _in_state(S.DEAD_LETTER.value)
    names = list(dead.values_list(_admitted("workload_id"), flat=True)[:MOST_LOOKED_AT])
    if not names:
        return Some()
    rows = Dependency.objects.filter(depends_on__in=names, standing="waiting").order_by()
    pks = list(rows.values_list("dependent_id", flat=True)[: MOST_LOOKED_AT + 1])
    return _some(sorted(set(pks)), "created_at", more=len(pks) > MOST_LOOKED_AT)


def cancelling(now: dt.datetime, grace: dt.timedelta) -> Some:
    """Return the cancellations that no worker has confirmed for so long."""
    rows = _in_state(S.CANCELLATION_REQUESTED.value)
    seen = list(rows.values_list("pk", "updated_at")[: MOST_LOOKED_AT + 1])
    late = [pk for pk, updated_at in seen if updated_at <= now - grace]
    return _some(late, "updated_at", more=len(seen) > MOST_LOOKED_AT)


def dead_letters(now: dt.datetime) -> tuple[DeadLetters, list[dt.datetime]]:
    """Return the newest dead letters by definition and failure kind, and when each came to rest.

    Those groups come first that have grown in the last hour.
    """
    rows = _in_state(S.DEAD_LETTER.value)
    seen = list(rows.values_list(_admitted("lane_id"), failure_kind(), "finished_at")[: MOST_GROUPED + 1])
    is_cut = len(seen) > MOST_GROUPED
    definitions = {lane: place.definition_id for lane, place in places(row[0] for row in seen).items()}
    groups: dict[tuple[str, str | None], list[dt.datetime | None]] = {}
    for lane, kind, finished_at in seen[:MOST_GROUPED]:
        groups.setdefault((definitions.get(lane, ""), kind), []).append(finished_at)
    found = [_group(*name, instants, now - LATELY) for name, instants in groups.items()]
    found.sort(key=lambda group: (-group.lately, -group.dead, group.definition_id, group.kind or ""))
    said = DeadLetters(
        total=Capped(min(len(seen), MOST_GROUPED), is_cut),
        lately=Capped(sum(group.lately for group in found), is_cut),
        groups=tuple(found),
        by_lane={lane: Capped(count, is_cut) for lane, count in Counter(row[0] for row in seen).items()},
    )
    return said, [at for _lane, _kind, at in seen if at is not None]


def _group(definition_id: str, kind: str | None, instants: list[dt.datetime | None], since: dt.datetime) -> DeadGroup:
    known = [at for at in instants if at is not None]
    return DeadGroup(
        definition_id=definition_id,
        kind=kind,
        dead=len(instants),
        lately=sum(at > since for at in known),
        latest=max(known, default=None),
    )


def failure_kind() -> Case:
    """Return the kind that a last failure begins with: what stands before its colon, None where there is none."""
    colon = StrIndex("last_failure", Value(": "))
    return Case(
        When(GreaterThan(colon, Value(1)), then=Left("last_failure", colon - Value(1))),
        default=Left("last_failure", IDENTIFIER_LENGTH),
    )


def last_pass() -> dt.datetime | None:
    """Return when a pass last ran."""
    return PassRun.objects.filter(id=1).values_list("ran_at", flat=True).first()


def workers(now: dt.datetime) -> tuple[Capped, tuple[tuple[str, dt.datetime], ...]]:
    """Return how many workers have been seen in the last minutes, and the last seen of all, with the instants."""
    here = _capped(SeenWorker.objects.filter(seen_at__gt=now - WORKER_IS_GONE).order_by("-seen_at"))
    last = SeenWorker.objects.order_by("-seen_at").values_list("worker_id", "seen_at")[:MOST_WORKERS]
    return here, tuple(last)


def items(pks: Iterable[int], since: str) -> tuple[Item, ...]:
    """Return these workloads, in this order, each with the instant in column `since`."""
    keys = list(pks)
    columns = ("workload_id", "state", "definition_id", "definition_revision", "tenant_id", "application_id")
    rows = Workload.objects.filter(pk__in=keys).annotate(since=F(since)).order_by()
    found = {
        pk: Item(
            pk=pk,
            workload_id=workload_id,
            state=state,
            definition=f"{definition}@{revision}",
            tenant_id=tenant,
            application_id=application,
            worker_id=worker_id,
            since=at,
        )
        for pk, workload_id, state, definition, revision, tenant, application, worker_id, at in rows.values_list(
            "pk", *columns, "worker_id", "since"
        )
    }
    return tuple(found[key] for key in keys if key in found)
