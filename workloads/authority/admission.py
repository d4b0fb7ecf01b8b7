"""Admission: work is promised once, however often and by however many it is asked for. Section 4.

The scope of the idempotency key *is* the workload's identity, so competing admissions contend on one unique row: the
first insert wins, the others wait for it, and then replay it, are refused, or, when it was rolled back, take its place.
"""

from __future__ import annotations

import datetime as dt
import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from django.db.models import Model

from workloads import conf
from workloads.authority import clock, grants
from workloads.authority.at_once import WAITED, admit_at_once
from workloads.authority.columns import among
from workloads.authority.dependencies import Ancestry, judge
from workloads.authority.new_work import Prepared, admitted_row, created_snapshot, lane_row, made_instance
from workloads.authority.records import ROWS_A_STATEMENT, Transaction, transact
from workloads.authority.statements import (
    BYTES_TOGETHER,
    Statements,
    can_run_ahead,
    execute_many,
    insert,
    insert_new,
    parts,
    run_ahead,
)
from workloads.authority.writes import event_row, standing_values
from workloads.contract import Admission, AdmissionRequest
from workloads.errors import IDEMPOTENCY_KEY_RETIRED, WORKLOAD_TOO_LARGE, WorkloadError, invalid
from workloads.lifecycle import arguments, canonical, secrets
from workloads.lifecycle.admission import Terms, admit as begin, check_replay, terms_of
from workloads.models import Admitted, Dependency, Event, Lane, Tombstone, Workload

MAX_TURNS: Final = 100
AHEAD: Final = 250
"""So many are made while the database stores those before them."""


def prepare(request: AdmissionRequest) -> Prepared:
    """Check a request's arguments, touching nothing: shape, bounds, size, secrets (sections 1, 4 and 9)."""
    request = arguments.admission(request)
    text = canonical.canonical(request.input, field="input")
    size, limit = canonical.measure(text), conf.limits().max_input_bytes
    if size > limit:
        raise WorkloadError(
            WORKLOAD_TOO_LARGE, "The input is too large.", {"field": "input", "limit": limit, "size": size}
        )
    secrets.check_value(request.input, field="input", scopes=frozenset(request.connection_scopes))
    return Prepared(
        request=request,
        workload_id=canonical.workload_id(
            request.tenant_id, request.application_id, request.requested_by, request.idempotency_key
        ),
        input_text=text,
        terms=terms_of(request, input_hash=canonical.digest(text)),
    )


def admit(request: AdmissionRequest, *, now: dt.datetime | None = None) -> Admission:
    """Promise work: the workload is stored, READY, or was already, asked for by the same key.

    `now` is an aware instant, or None for the database's clock. Returns the workload, and whether this call created
    it. Refused, in this order: arguments (WORKLOAD_INVALID, WORKLOAD_TOO_LARGE, WORKLOAD_SECRET_MATERIAL); a grant
    that does not cover the request (WORKLOAD_GRANT_INVALID); a key that stands for other work (IDEMPOTENCY_KEY_REUSED,
    with the differing fields) or for work that was pruned (IDEMPOTENCY_KEY_RETIRED); dependencies that close a cycle
    (WORKLOAD_INVALID). Section 4.
    """
    given = arguments.now(now)
    item = prepare(request)
    admitted = admit_at_once(item, now=given)
    if admitted is not None:
        return admitted
    (outcome,) = _admit_all([item], given)
    if isinstance(outcome, WorkloadError):
        raise outcome
    return outcome


def admit_many(
    requests: Iterable[AdmissionRequest], *, now: dt.datetime | None = None
) -> list[Admission | WorkloadError]:
    """Promise work in one transaction, each item as `admit` would, in order; a refused item refuses itself alone.

    Returns an Admission or the refusal for each request, in the order of the requests. Section 4.
    """
    given = arguments.now(now)
    if isinstance(requests, (str, bytes, AdmissionRequest)) or not isinstance(requests, Iterable):
        raise invalid("requests", "must be a list of admission requests")
    prepared: list[Prepared | WorkloadError] = []
    for request in requests:
        try:
            prepared.append(prepare(request))
        except WorkloadError as refusal:
            prepared.append(refusal)
    return _admit_all(prepared, given)


def _admit_all(
    prepared: Sequence[Prepared | WorkloadError], given: dt.datetime | None
) -> list[Admission | WorkloadError]:
    turns = itertools.count()

    def work(tx: Transaction) -> list[Admission | WorkloadError]:
        # What was superseded goes step by step from then on.
        ahead = next(turns) == 0 and tx.is_own and can_run_ahead(tx.connection)
        outcomes: dict[int, Admission | WorkloadError] = {}
        run = Run()
        for index, item in enumerate(prepared):
            if isinstance(item, WorkloadError):
                outcomes[index] = item
                continue
            if run.touches(item):
                outcomes |= _admit_run(tx, run.items, ahead)
                run = Run()
            run.add(index, item)
        outcomes |= _admit_run(tx, run.items, ahead)
        return [outcomes[index] for index in range(len(prepared))]

    return transact(work, now=given)


class Run:
    """Items that can be admitted together, since none must see the outcome of another."""

    def __init__(self) -> None:
        self.items: list[tuple[int, Prepared]] = []
        self.ids: set[str] = set()

    def touches(self, item: Prepared) -> bool:
        """Tell whether an item is the same work as one of the run, or depends on it."""
        return item.workload_id in self.ids or any(d.workload_id in self.ids for d in item.request.dependencies)

    def add(self, index: int, item: Prepared) -> None:
        """Take one more item in."""
        self.items.append((index, item))
        self.ids.add(item.workload_id)


def _admit_run(
    tx: Transaction, run: Sequence[tuple[int, Prepared]], ahead: bool
) -> dict[int, Admission | WorkloadError]:
    """Admit items that do not touch each other; `ahead`: without waiting for what is stored of the first ones."""
    outcomes: dict[int, Admission | WorkloadError] = {}
    left: dict[str, tuple[int, Prepared]] = {}
    for index, item in run:
        try:
            if item.request.grant is not None:
                grants.check_grant(item.request, tx.now)
            left[item.workload_id] = (index, item)
        except WorkloadError as refusal:
            outcomes[index] = refusal
    for _ in range(MAX_TURNS):
        # A winner may be pruned before a loser reads it back: then its tombstone answers, or nothing is left of it
        # and the loser asks again.
        if not left:
            break
        known = _known(tx, left)
        for workload in _stored(tx, known):
            index, item = left.pop(workload.workload_id)
            outcomes[index] = _replay(workload, item)
        for part in parts([workload_id for workload_id in known if workload_id in left], ROWS_A_STATEMENT):
            for tombstone in Tombstone.objects.using(tx.alias).filter(workload_id__in=part):
                index, _ = left.pop(tombstone.workload_id)
                outcomes[index] = _retired(tombstone)
        ancestries: dict[str, Ancestry] = {}
        beside: dict[tuple[str, str], dict[str, list[str]]] = {}
        for workload_id, (index, item) in list(left.items()):
            asked = item.request
            # A cycle may lead through several of them, by way of what is stored.
            others = beside.setdefault((asked.tenant_id, asked.application_id), {})
            try:
                ancestries[workload_id] = judge(tx, asked, workload_id, others)
                others[workload_id] = [d.workload_id for d in asked.dependencies]
            except WorkloadError as refusal:
                outcomes[index] = refusal
                del left[workload_id]
        size = sum(len(item.input_text) for _, item in left.values())
        create = _create_ahead if ahead and len(left) > 1 and size <= BYTES_TOGETHER else _create
        for workload in create(tx, {key: item for key, (_, item) in left.items()}, ancestries):
            index, _ = left.pop(workload.workload_id)
            outcomes[index] = Admission(workload=workload, created=True)
    if left:
        raise RuntimeError("A committed admission stays invisible: the transaction is not at READ COMMITTED.")
    return outcomes


def _known(tx: Transaction, workload_ids: Iterable[str]) -> list[str]:
    """Return those of the ids that stand for work already, or for what is left of it: mostly none."""
    known: list[str] = []
    for part in parts(workload_ids, ROWS_A_STATEMENT):
        selects, params = [], []
        for model in (Admitted, Tombstone):
            where, values = among(tx.connection, model, "workload_id", part, "t")
            selects.append(f"SELECT t.workload_id FROM {model._meta.db_table} t WHERE {where}")
            params += values
        known += [workload_id for (workload_id,) in tx.execute(" UNION ".join(selects), params)]
    return known


def _stored(tx: Transaction, workload_ids: Iterable[str]) -> list[Workload]:
    found: list[Workload] = []
    for part in parts(workload_ids, ROWS_A_STATEMENT):
        rows = Workload.objects.using(tx.alias).filter(workload_id__in=part)
        found += rows.prefetch_related("dependencies")
    return found


def _replay(workload: Workload, item: Prepared) -> Admission | WorkloadError:
    stored = Terms(
        definition_id=workload.definition_id,
        definition_revision=workload.definition_revision,
        environment=workload.environment,
        input=workload.input_hash,
        capability_snapshot=workload.capability_snapshot,
        connection_scopes=workload.connection_scopes,
        priority=workload.priority,
        retry_policy=workload.retry_policy,
        timeouts=workload.timeouts,
        dependencies=frozenset((d.depends_on, d.required_state) for d in workload.dependencies.all()),
        not_before=workload.not_before,
    )
    try:
        check_replay(stored, item.terms)
    except WorkloadError as refusal:
        return refusal
    return Admission(workload=workload, created=False)


def _retired(tombstone: Tombstone) -> WorkloadError:
    finished_at = tombstone.finished_at
    return WorkloadError(
        IDEMPOTENCY_KEY_RETIRED,
        "The work of this idempotency key is done, and has been pruned.",
        {"state": tombstone.state, "finished_at": None if finished_at is None else canonical.iso(finished_at)},
    )


def _lanes(tx: Transaction, items: Iterable[Prepared]) -> dict[str, int]:
    """Return, by workload id, the lane of each item; lanes that are new are made."""
    keys, rows = {}, {}
    for item in items:
        row = lane_row(item)
        keys[item.workload_id] = row["lane_key"]
        rows[row["lane_key"]] = row
    known = _lanes_of(tx, rows)
    new = [rows[key] for key in sorted(rows) if key not in known]
    if new:
        insert(tx, Lane, new, unless="lane_key")
        known = _lanes_of(tx, rows)
    return {workload_id: known[key] for workload_id, key in keys.items()}


def _lanes_of(tx: Transaction, keys: Iterable[uuid.UUID]) -> dict[uuid.UUID, int]:
    """Return the lanes by their keys. The clock is read with them, unless it has been read before."""
    known: dict[uuid.UUID, int] = {}
    for part in parts(keys, ROWS_A_STATEMENT):
        where, params = among(tx.connection, Lane, "lane_key", part, "l")
        for key, pk, read_at in tx.execute(
            f"SELECT l.lane_key, l.id, {clock.sql(tx.connection.vendor)} FROM {Lane._meta.db_table} l WHERE {where}",
            params,
        ):
            known[key if isinstance(key, uuid.UUID) else uuid.UUID(key)] = pk
            if tx.clock is None and tx.given is None:
                tx.clock = clock.from_db(read_at)
    return known


def _create(tx: Transaction, items: dict[str, Prepared], ancestries: dict[str, Ancestry]) -> list[Workload]:
    """Insert new workloads, with keys in the order of the requests: of equal work, what was asked for first goes first.

    Returns those that this transaction created. The others were there already, or have been committed since by the
    admission that this one waited for.
    """
    if not items:
        return []
    lanes = _lanes(tx, items.values())
    asked_at = tx.now
    cold = {
        workload_id: admitted_row(item, lanes[workload_id], ancestries[workload_id], asked_at)
        for workload_id, item in items.items()
    }
    created, ended_at = _insert(tx, cold)
    now = asked_at
    if tx.given is None:
        if ended_at - asked_at > WAITED:
            now = ended_at
            execute_many(tx, Admitted, ("created_at",), ("id",), [(now, pk) for pk in created.values()])
        tx.clock = now
    statements = Statements(tx)
    new = New(tx, now, ancestries)
    for workload_id, item in items.items():
        if workload_id in created:
            new.add(created[workload_id], item, cold[workload_id] | {"created_at": now})
    new.fill(statements)
    statements.run()
    return new.workloads


def _create_ahead(tx: Transaction, items: dict[str, Prepared], ancestries: dict[str, Ancestry]) -> list[Workload]:
    """Insert new workloads, in parts of which the database stores one while the next is made.

    All or nothing: Superseded if one of them is there already, or if an insert may have waited for another admission.
    """
    lanes = _lanes(tx, items.values())
    now = tx.now
    drawn = _draw_keys(tx, len(items))
    workloads: dict[int, Workload] = {}

    def stored() -> Iterator[Statements]:
        keyed = sorted(zip(items.values(), drawn, strict=True), key=lambda one: one[0].workload_id)
        for part in parts(keyed, AHEAD):
            new = New(tx, now, ancestries)
            rows = []
            for item, pk in part:
                values = admitted_row(item, lanes[item.workload_id], ancestries[item.workload_id], now)
                rows.append(values | {"id": pk})
                new.add(pk, item, values)
            statements = Statements(tx)
            statements.insert(Admitted, rows, unless="workload_id")
            new.fill(statements)
            yield statements
            workloads.update((workload.pk, workload) for workload in new.workloads)

    run_ahead(tx, stored(), within=WAITED)
    return [workloads[pk] for pk in drawn]


class New:
    """Rows of new workloads, gathered one by one."""

    def __init__(self, tx: Transaction, now: dt.datetime, ancestries: Mapping[str, Ancestry]) -> None:
        self.tx = tx
        self.now = now
        self.ancestries = ancestries
        self.workloads: list[Workload] = []
        self.rows: dict[type[Model], list[dict[str, Any]]] = {Workload: [], Event: [], Dependency: []}

    def add(self, pk: int, item: Prepared, values: dict[str, Any]) -> None:
        """Begin the history of one, of which `values` are what was admitted."""
        ancestry = self.ancestries[item.workload_id]
        decision = begin(
            created_snapshot(pk, item, values, ancestry),
            requested_by=item.request.requested_by,
            not_before=item.request.not_before,
        )
        standing = standing_values(decision.after, self.now)
        self.tx.has_queued = self.tx.has_queued or standing["queued_lane_id"] is not None
        self.rows[Workload].append({"admitted_id": pk} | standing)
        self.rows[Event] += [event_row(pk, event) for event in decision.events]
        self.rows[Dependency] += [
            {
                "dependent_id": pk,
                "depends_on": d.workload_id,
                "required_state": str(d.required_state),
                "standing": str(ancestry.standings[d.workload_id]),
            }
            for d in item.request.dependencies
        ]
        self.workloads.append(made_instance(self.tx, pk, item, values, standing))

    def fill(self, statements: Statements) -> None:
        """Add the rows to what is to be written."""
        for model, rows in self.rows.items():
            statements.insert(model, rows)


def _insert(tx: Transaction, cold: dict[str, dict[str, Any]]) -> tuple[dict[str, int], dt.datetime]:
    """Insert what is admitted; return the keys of those that are new by their ids, and the instant after it."""
    rows = _in_inserting_order(tx, cold)
    created: dict[str, int]
    read_at = None
    if tx.connection.vendor == "mysql":
        insert(tx, Admitted, rows, unless="workload_id")
        created = _ours(tx, list(cold))
    else:
        inserted = insert_new(tx, Admitted, rows, unless="workload_id", answer=["workload_id", "id"])
        created = {workload_id: pk for workload_id, pk, _ in inserted}
        read_at = inserted[-1][-1] if inserted else None
    if tx.given is not None:
        return created, tx.given
    return created, clock.read(tx.connection) if read_at is None else clock.from_db(read_at)


def _in_inserting_order(tx: Transaction, cold: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows in the order in which to insert them.

    On PostgreSQL keys are drawn beforehand, so that rows can go in by their ids, and racing batches do not deadlock.
    MariaDB has no such keys to draw: there the owner of the transaction repeats it. SQLite has one writer.
    """
    if tx.connection.vendor != "postgresql" or len(cold) == 1:
        return list(cold.values())
    keyed = [row | {"id": key} for row, key in zip(cold.values(), _draw_keys(tx, len(cold)), strict=True)]
    return sorted(keyed, key=lambda row: str(row["workload_id"]))


def _draw_keys(tx: Transaction, count: int) -> list[int]:
    drawn = tx.execute(
        "SELECT nextval(pg_get_serial_sequence(%s, 'id')) FROM generate_series(1, %s)",
        [Admitted._meta.db_table, count],
    )
    return [key for (key,) in drawn]


def _ours(tx: Transaction, workload_ids: Sequence[str]) -> dict[str, int]:
    """Return the keys of the rows that this transaction has inserted: a committed one has its standing beside it."""
    ours: dict[str, int] = {}
    for part in parts(workload_ids, ROWS_A_STATEMENT):
        rows = Admitted.objects.using(tx.alias).filter(workload_id__in=part, standing__isnull=True)
        ours |= dict(rows.values_list("workload_id", "id"))
    return ours
