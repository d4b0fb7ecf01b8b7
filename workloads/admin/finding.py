"""How a page of the list is found at any size: from which index, in which order, and how far it looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db import connections
from django.db.models import (
    BooleanField,
    Case,
    F,
    Func,
    IntegerField,
    Model,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
    When,
)

from workloads.admin.criteria import COLUMNS, STATES, Criteria
from workloads.admin.orders import BY_ADMISSION, BY_DUE, BY_END, BY_KEY, Order, Place, Start
from workloads.contract import WorkloadState
from workloads.lifecycle.states import RESTING
from workloads.models import Admitted, Lane, Workload

S = WorkloadState
PAGE_SIZE: Final = 100
MOST_COUNTED: Final = 10_000
# Where no index answers all of a selection, its candidates are looked through: few at first, then so many at most.
LOOKS: Final = (1_000, 10_000)
LEAST_LOOK: Final = 100
MOST_TOGETHER: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Rows that one index gives in an order: `lead` are its first columns, where those are one value in all rows.

    `edge` is the value of the first row, where it is known.
    """

    model: type[Model]
    condition: Q
    lead: tuple[str, ...] = ()
    edge: Any = None

    def rows(self) -> QuerySet[Any]:
        rows: QuerySet[Any] = self.model._default_manager.filter(self.condition)
        return rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way to find a selection: its parts, which indexes give, and the rest, which each candidate is asked for."""

    order: Order
    parts: Callable[[Start | None], Sequence[Part]]
    rest: tuple[Q, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The keys of one page. `stopped_at` is where it stopped looking, though the page has room; `total` is how many
    there are, as far as they were counted, and None where that is not known.
    """

    order: Order
    keys: tuple[int, ...]
    on: Start | None
    back: Start | None
    stopped_at: Place | None = None
    looked: int = 0
    total: int | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the page is full, or there is nothing left to look through."""
        return self.stopped_at is None


def find(criteria: Criteria, at: str = "", size: int = PAGE_SIZE) -> Page:
    """Return the page of a selection that begins at `at`, or the first."""
    found = ways(criteria)
    if criteria.problems or not found:
        return Page(order=BY_KEY, keys=(), on=None, back=None, total=None if criteria.problems else 0)
    start = Start.read(at)
    same = [way for way in found if start is not None and way.order.name == start.order]
    if not same:
        start = None
    best: Page | None = None
    for look in LOOKS:
        for way in same or found:
            try:
                page = _page(way, start, size, look)
            except (ValueError, TypeError, AttributeError):
                # A spoilt instant: the key alone still puts the rows in an order.
                way, start = _whole(criteria), None
                page = _page(way, start, size, look)
            if page.is_settled:
                return _counted(way, page, is_first=start is None)
            if best is None or len(page.keys) > len(best.keys) or best.looked < page.looked:
                best = page
    assert best is not None
    return best


def ways(criteria: Criteria) -> list[Way]:
    """Return the ways to find a selection, those that are likely to be short in front; none if it can hold nothing."""
    conditions = criteria.conditions()
    states = _possible_states(criteria)
    if not states:
        return []

    def rest(*served: str) -> tuple[Q, ...]:
        return tuple(condition for name, condition in conditions.items() if name not in served)

    if "q" in conditions:
        return [_fixed(BY_KEY, [Part(model=Admitted, condition=conditions["q"])], rest("q"))]
    if "worker" in conditions or "started_range" in conditions:
        held = conditions.get("worker", Q())
        return [_fixed(BY_KEY, [_of_state(state, held) for state in states], rest("state", "worker"))]
    if "blocked" in conditions and connections[Workload.objects.db].features.supports_partial_indexes:
        blocked = _of_state(S.READY.value, ~Q(dependency_standing="met"))
        return [_fixed(BY_KEY, [blocked], rest("blocked", "state"))]
    found = []
    if {"due", "due_range"} & conditions.keys():
        found.append(_fixed(BY_DUE, [Part(model=Workload, condition=_due(criteria))], rest()))
    by_state = _fixed(BY_KEY, [_of_state(state) for state in states], rest("state"))
    is_narrow = len(states) < len(_ALL) and S.SUCCEEDED not in states
    if is_narrow:
        found.append(by_state)
    if "finished_range" in conditions:
        part = Part(model=Workload, condition=conditions["finished_range"])
        found.append(_fixed(BY_END, [part], rest("finished_range")))
    if _PLACES & conditions.keys():
        found.append(
            Way(order=BY_ADMISSION, parts=lambda start: list(_places(criteria, start)), rest=rest(*_INDEXED_PLACES))
        )
    if len(states) < len(_ALL) and not is_narrow:
        found.append(by_state)
    return found or [_whole(criteria)]


_ALL: Final = frozenset(state.value for state in WorkloadState)
_INDEXED_PLACES: Final = ("tenant", "application", "definition", "admitted_range")
_PLACES: Final = {*_INDEXED_PLACES, "revision"}


def _possible_states(criteria: Criteria) -> list[str]:
    """Return the states that work of this selection can be in."""
    names = criteria.values.keys()
    states = set(criteria.states or _ALL)
    if names & {"blocked", "due", "due_from", "due_to"}:
        states &= {S.READY.value}
    if names & {"worker", "started_from", "started_to"}:
        states &= set(STATES["held"])
    if names & {"finished_from", "finished_to"} and not states & {state.value for state in RESTING}:
        states = set()
    return [state.value for state in WorkloadState if state.value in states]


def _fixed(order: Order, parts: Sequence[Part], rest: tuple[Q, ...]) -> Way:
    return Way(order=order, parts=lambda start: parts, rest=rest)


def _of_state(state: str, condition: Q | None = None) -> Part:
    """Return the part of one state.

    PostgreSQL is asked for one state of a list of one, in the order of state and key. For it knows nothing of where in
    the table a state's rows are, and would go through the table by its key alone if many rows had that state: through
    all of it, if those were at the other end. That order, the index by state alone has.
    """
    if connections[Workload.objects.db].vendor != "postgresql":
        return Part(model=Workload, condition=Q(state=state) & (condition or Q()))
    listed = Func(
        F("state"),
        Value(state),
        template="(%(expressions)s]))",
        arg_joiner=" = ANY(ARRAY[",
        output_field=BooleanField(),
    )
    return Part(model=Workload, condition=Q(listed) & (condition or Q()), lead=("state",))


def _whole(criteria: Criteria) -> Way:
    return _fixed(BY_KEY, [Part(model=Workload, condition=Q())], tuple(criteria.conditions().values()))


def _due(criteria: Criteria) -> Q:
    """Return the range of next attempts alone, which an index has."""
    values = criteria.values
    limits = {"due_from": "gte", "due_to": "lt"}
    found = Q(**{f"next_attempt_at__{sign}": values[name] for name, sign in limits.items() if name in values})
    if "due" in values:
        found &= Q(**{f"next_attempt_at__{'lte' if values['due'] == 'now' else 'gt'}": criteria.now})
    return found


def _places(criteria: Criteria, start: Start | None) -> Iterator[Part]:
    """Yield the tenants, applications and definitions that hold such work, those with the next row in front.

    Lanes say which there are: theirs is a small table. A page of so many rows needs no more places than it has rows.
    """
    given = {COLUMNS[name]: criteria.values[name] for name in _PLACES if name in criteria.values}
    names = criteria.values.keys()
    depth = 3 if names & {"definition", "revision"} else 2 if "application" in names else 1
    columns = ("tenant_id", "application_id", "definition_id")[:depth]
    falls = BY_ADMISSION.is_descending is not (start is not None and start.is_backwards)
    span = criteria.conditions().get("admitted_range", Q())
    if start is not None:
        span &= BY_ADMISSION.beyond(start.place, falls=falls)
    rows = Admitted.objects.filter(span, **{column: OuterRef(column) for column in columns})
    edge = Subquery(BY_ADMISSION.sorted(rows, falls=falls).values("created_at")[:1])
    first = F("edge").desc(nulls_last=True) if falls else F("edge").asc(nulls_last=True)
    lanes = Lane.objects.filter(**given).values_list(*columns).distinct().annotate(edge=edge).order_by(first)
    for *values, found in lanes[: PAGE_SIZE + 1]:
        if found is not None:
            at = Q(**dict(zip(columns, values, strict=True)))
            yield Part(model=Admitted, condition=at & criteria.conditions().get("admitted_range", Q()), edge=found)


def _page(way: Way, start: Start | None, size: int, look: int) -> Page:
    """Return the page that begins there, looking through at most so many candidates."""
    order = way.order
    is_backwards = start is not None and start.is_backwards
    falls = order.is_descending is not is_backwards
    parts = way.parts(start)
    share = max(LEAST_LOOK, look // max(1, len(parts))) if way.rest else size
    found: list[Place] = []
    limits: list[Place] = []
    for some in _batched(parts):
        if len(found) > size and some[0].edge is not None and _follows(found[size][0], some[0].edge, falls=falls):
            break
        spans = [_span(way, part, start, falls=falls)[: share + 1] for part in some]
        for places in _read(spans, order, falls=falls):
            if len(places) > share:
                limits.append(places[share - 1][0])
            found += [place for place, fits in places[:share] if fits]
        found = sorted(set(found), reverse=falls)
    limit = (max if falls else min)(limits, default=None)
    if limit is not None:
        found = [place for place in found if place == limit or _follows(place, limit, falls=falls)]
    more = limit
    if len(found) > size or (limit is not None and len(found) == size):
        found, more, limit = found[:size], found[size - 1], None
    if is_backwards:
        if more is None and len(found) < size:
            # There is nothing before it: the first page, and full.
            return _page(way, None, size, look)
        found.reverse()
    return _linked(order, start, found, more, limit, len(parts) * share)


def _span(way: Way, part: Part, start: Start | None, *, falls: bool) -> QuerySet[Any]:
    """Return the rows of a part from the start on, in order, each with whether the rest holds of it.

    The rest is asked for as a column: as a condition, it might move a database to begin with another index, and to
    read all that the rest holds of.
    """
    rows = part.rows()
    fits: Any = Value(True, output_field=BooleanField())
    if way.rest:
        rows = Workload.objects.filter(part.condition)
        fits = Case(When(Q(*way.rest), then=Value(True)), default=Value(False), output_field=BooleanField())
    if start is not None:
        rows = rows.filter(way.order.beyond(start.place, falls=falls))
    return way.order.sorted(rows, falls=falls, lead=part.lead).annotate(fits=fits)


def _batched(parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Yield the parts, so many together as one statement asks for."""
    yield from (parts[at : at + MOST_TOGETHER] for at in range(0, len(parts), MOST_TOGETHER))


def _read(spans: Sequence[QuerySet[Any]], order: Order, *, falls: bool) -> list[list[tuple[Place, bool]]]:
    """Return the places of each of these rows, with whether they fit: in one statement where the database can."""
    marked = [
        rows.annotate(part=Value(number, output_field=IntegerField())).values_list(*order.columns, "fits", "part")
        for number, rows in enumerate(spans)
    ]
    is_one = len(marked) > 1 and connections[marked[0].db].features.supports_slicing_ordering_in_compound
    found: list[list[tuple[Place, bool]]] = [[] for _ in marked]
    for rows in [marked[0].union(*marked[1:], all=True)] if is_one else marked:
        for *place, fits, part in rows:
            found[part].append((tuple(place), bool(fits)))
    return [sorted(places, reverse=falls) for places in found]


def _follows(place: Any, other: Any, *, falls: bool) -> bool:
    """Whether the other comes after the place."""
    return bool(other < place if falls else other > place)


def _linked(
    order: Order, start: Start | None, found: list[Place], more: Place | None, limit: Place | None, looked: int
) -> Page:
    def link(place: Place, *, is_backwards: bool) -> Start:
        return Start(order=order.name, is_backwards=is_backwards, place=place)

    is_backwards = start is not None and start.is_backwards
    ahead = None if more is None else link(more, is_backwards=is_backwards)
    behind = None
    if start is not None:
        nearest = (found[-1] if is_backwards else found[0]) if found else start.place
        behind = link(nearest, is_backwards=not is_backwards)
    return Page(
        order=order,
        keys=tuple(place[-1] for place in found),
        on=behind if is_backwards else ahead,
        back=ahead if is_backwards else behind,
        stopped_at=limit,
        looked=looked if limit is not None else 0,
    )


def _counted(way: Way, page: Page, *, is_first: bool) -> Page:
    """Return the page with how many there are in all: one more than are counted where there are more than that."""
    total: int | None = None
    if is_first and page.on is None:
        total = len(page.keys)
    elif not way.rest:
        total, parts = 0, way.parts(None)
        for some in _batched(parts):
            # In the order of its index: else PostgreSQL may read all of it to count some.
            left = MOST_COUNTED + 1 - total
            counted = [_span(way, part, None, falls=way.order.is_descending).values("pk")[:left] for part in some]
            total += _count(counted, left)
            if total > MOST_COUNTED:
                break
        if total <= MOST_COUNTED and len(parts) > PAGE_SIZE:
            # There may be more parts, which no page needs.
            total = None
    return Page(order=page.order, keys=page.keys, on=page.on, back=page.back, total=total)


def _count(rows: Sequence[QuerySet[Any]], most: int) -> int:
    """Return how many there are in all of these rows, up to so many."""
    if len(rows) == 1:
        return rows[0].count()
    if connections[rows[0].db].features.supports_slicing_ordering_in_compound:
        return rows[0].union(*rows[1:], all=True)[:most].count()
    return min(most, sum(each.count() for each in rows))
