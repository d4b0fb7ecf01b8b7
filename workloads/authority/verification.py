"""Reading everything that is stored, and telling what can't be right. Section 12.

`lifecycle.invariants` knows what always holds; this knows how to ask it of everything, without false alarms. The work
is paged by key. Each page is read in one transaction that sees one committed state of the database, so that what others
commit meanwhile is seen whole or not at all; nothing is locked, and nothing is written.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from workloads.authority.dependencies import key_of, result_key_of
from workloads.authority.records import Transaction, alias
from workloads.authority.snapshots import CLAIM, COLD, STANDING
from workloads.authority.streams import MOST_ORPHANS, Reader, Stream, Targets, Texts, Unreadable, bytes_of
from workloads.contract import WorkloadState
from workloads.lifecycle import arguments
from workloads.lifecycle.invariants import Attempt, Event, Inspection, Outcome, Record, Scope, Target
from workloads.lifecycle.snapshot import CurrentClaim, Snapshot, Standing
from workloads.models import (
    Admitted,
    Attempt as AttemptRow,
    Checkpoint,
    Dependency,
    Event as EventRow,
    Lane,
    Result,
    Workload,
)

MAX_CHUNK: Final = 5_000

BESIDE: Final = ("requested_by", "idempotency_key", "input_hash")
DERIVED: Final = ("due_at", "queued_lane_id", "waiting_lane_id")
RESULT: Final = (*Outcome._fields, "result_key", "result_id", "output_hash")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Something that can't be right: where, what it breaks, and how.

    `invariant` is a number of section 12, or names what another section promises: `identity`, `hash`, `canonical`,
    `finished_at`, `counters`, `checkpoints`, `evidence`, `unreadable`, `orphan`. `workload_id` is `record <key>` where
    rows belong to no workload.
    """

    workload_id: str
    invariant: int | str
    message: str


def verify(
    *,
    using: str | None = None,
    chunk: int = 500,
    now: dt.datetime | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Fault]:
    """Yield every fault of what is stored, in the order of the workloads' keys: section 12, and what goes with it.

    Reads `chunk` workloads at a time. `using` names the database, a replica if you like; None is the one that the
    authority writes. `now` is an aware instant that nothing stored was decided after; None is the database's clock.
    `progress` is told, after each page, how many workloads have been read. Inside a caller's transaction the view is
    the caller's, and steady only if that is.
    """
    given = arguments.now(now)
    arguments.integer(chunk, "chunk", 1, MAX_CHUNK)
    return _verify(connections[using or alias()], chunk, given, progress)


def _verify(
    connection: BaseDatabaseWrapper, chunk: int, given: dt.datetime | None, progress: Callable[[int], None] | None
) -> Iterator[Fault]:
    after, size, count = 0, chunk, 0
    while True:
        page = Page(Transaction(connection, given), after, size)
        try:
            with _one_state_of(connection):
                page.read()
        except DatabaseError as error:
            # SQLite alone stores text that its driver can't read: the row is looked for in smaller and smaller pages.
            if connection.vendor != "sqlite":
                raise
            if size > 1:
                size //= 2
                continue
            page.give_up(error)
        yield from page.faults()
        count += len(page.ids)
        if progress is not None:
            progress(count)
        if page.last is None:
            return
        after, size = page.last, min(chunk, size * 2)


@contextmanager
def _one_state_of(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Let all statements of the block see one committed state, and keep no writer waiting."""
    if connection.in_atomic_block:
        yield
    elif connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            # The site's transactions are IMMEDIATE, and would keep writers out.
            cursor.execute("BEGIN DEFERRED")
            try:
                yield
            finally:
                cursor.execute("ROLLBACK")
    else:
        with transaction.atomic(using=connection.alias):
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield


class Page:
    """Up to `size` workloads whose keys come after `after`, with all that is theirs, and what there is nobody's.

    `last` is the key to go on from; None if there is no more.
    """

    def __init__(self, tx: Transaction, after: int, size: int) -> None:
        self.tx = tx
        self.after = after
        self.size = size
        self.last: int | None = None
        self.ids: dict[int, str] = {}
        self.found: list[tuple[int, int | str, str]] = []

    def faults(self) -> Iterator[Fault]:
        """Yield the faults in the order of the workloads' keys."""
        for pk, invariant, message in sorted(self.found, key=lambda fault: fault[0]):
            name = self.ids.get(pk, f"record {pk}")
            yield Fault(workload_id=name, invariant=invariant, message=" ".join(message.split()))

    def give_up(self, error: Exception) -> None:
        """Note that the next workload can't be read at all, and step over it."""
        found = self.tx.execute(
            f"SELECT id, workload_id FROM {Admitted._meta.db_table} WHERE id > %s ORDER BY id LIMIT 1", [self.after]
        )
        self.ids = dict(found)
        self.last = found[0][0] if found else None
        self.found = [(self.last or self.after, "unreadable", str(error))]

    def read(self) -> None:
        """Read and judge all of the page."""
        connection = self.tx.connection
        cold = Reader(connection, Admitted, (*COLD, *BESIDE), "a")
        hot = Reader(connection, Workload, (*STANDING, *CLAIM, *DERIVED), "w")
        lane = Reader(connection, Lane, ("lane_key", *Scope._fields), "l")
        rows = self.tx.execute(
            f"SELECT a.id, a.workload_id, w.admitted_id, l.id, {bytes_of(connection, 'a.input')}, "
            f"{cold.listed}, {hot.listed}, {lane.listed} FROM {Admitted._meta.db_table} a "
            f"LEFT JOIN {Workload._meta.db_table} w ON w.admitted_id = a.id "
            f"LEFT JOIN {Lane._meta.db_table} l ON l.id = a.lane_id "
            f"WHERE a.id > %s ORDER BY a.id LIMIT {int(self.size)}",
            [self.after],
        )
        self.last = rows[-1][0] if len(rows) == self.size else None
        self.ids = {row[0]: str(row[1]) for row in rows}
        strays = self._strays()
        history = History(self, self.ids.keys() | strays)
        now = self.tx.now
        first, second = len(cold), len(cold) + len(hot)
        for pk, _, standing_pk, lane_pk, size, *values in rows:
            if standing_pk is None:
                self.found.append((pk, "orphan", "it was admitted, and no row says how it stands"))
                continue
            try:
                admitted = cold.decode(values[:first])
                history.inputs.add(pk, pk, size, admitted["input_hash"])
                scope = None if lane_pk is None else self._scope(pk, lane.decode(values[second:]))
                record = _record(pk, admitted, hot.decode(values[first:second]), scope)
                self._inspect(Inspection(record, now), history)
            except DatabaseError:
                raise
            except Unreadable as error:
                self.found.append((pk, "unreadable", str(error)))
            except Exception as error:
                # Values of the right types that make no sense together, so that the rules themselves stumble.
                self.found.append((pk, "unreadable", f"{type(error).__name__}: {error}"))
        history.close()

    def _strays(self) -> set[int]:
        """Note the rows of workloads that nobody admitted; return their keys."""
        until = "" if self.last is None else f" AND w.admitted_id <= {int(self.last)}"
        rows = self.tx.execute(
            f"SELECT w.admitted_id FROM {Workload._meta.db_table} w "
            f"LEFT JOIN {Admitted._meta.db_table} a ON a.id = w.admitted_id "
            f"WHERE w.admitted_id > %s{until} AND a.id IS NULL ORDER BY w.admitted_id LIMIT {MOST_ORPHANS}",
            [self.after],
        )
        self.found += [(pk, "orphan", "a row says how it stands, and nobody admitted it") for (pk,) in rows]
        return {pk for (pk,) in rows}

    def _scope(self, pk: int, lane: dict[str, Any]) -> Scope:
        key = lane.pop("lane_key")
        scope = Scope(**lane)
        if key != key_of(*scope[:4], *sorted(scope.capabilities)):
            self.found.append((pk, 8, "lane_key is not that of its lane"))
        return scope

    def _inspect(self, inspection: Inspection, history: History) -> None:
        snapshot = inspection.snapshot
        pk = snapshot.pk
        try:
            inspection.events(Event(**row) for row in history.events.of(pk))
            inspection.attempts(Attempt(**row) for row in history.attempts.of(pk))
            inspection.checkpoints(history.checkpoint(pk, row) for row in history.checkpoints.of(pk))
            inspection.dependencies(_target(snapshot, row) for row in history.dependencies.of(pk))
            inspection.result(history.result(snapshot))
            inspection.row()
        finally:
            self.found += [(pk, breach.invariant, breach.message) for breach in inspection.breaches]


class History:
    """The histories of a page's workloads, side by side, and the texts to be checked."""

    def __init__(self, page: Page, known: set[int]) -> None:
        def stream(kind: type[Stream], model: Any, names: tuple[str, ...], **options: Any) -> Any:
            return kind(page.tx, model, names, after=page.after, last=page.last, known=known, **options)

        self.page = page
        self.events: Stream = stream(Stream, EventRow, Event._fields)
        self.attempts: Stream = stream(Stream, AttemptRow, Attempt._fields, order="number")
        self.checkpoints: Stream = stream(Stream, Checkpoint, ("id", "sequence"), sized=("state",))
        self.results: Stream = stream(Stream, Result, RESULT, order="record_id", sized=("output", "artifacts"))
        names = ("depends_on", "required_state", "standing")
        self.dependencies: Stream = stream(Targets, Dependency, names, owner="dependent_id", order="depends_on")
        self.inputs = Texts(page.tx, Admitted, "id", "input", page.found)
        self.states = Texts(page.tx, Checkpoint, "id", "state", page.found)
        self.outputs = Texts(page.tx, Result, "record_id", "output", page.found)
        self.artifacts = Texts(page.tx, Result, "record_id", "artifacts", page.found)

    def checkpoint(self, pk: int, row: dict[str, Any]) -> int:
        """Note a checkpoint's state to be checked; return its sequence."""
        self.states.add(row["id"], pk, row["state_bytes"])
        return int(row["sequence"])

    def result(self, snapshot: Snapshot) -> Outcome | None:
        """Return a workload's result, if it has one, and note its texts to be checked."""
        pk = snapshot.pk
        for row in self.results.of(pk):
            self.outputs.add(pk, pk, row["output_bytes"], row["output_hash"])
            self.artifacts.add(pk, pk, row["artifacts_bytes"])
            if row["result_key"] != result_key_of(snapshot.tenant_id, row["result_id"]):
                self.page.found.append((pk, "identity", "result_key is not that of its tenant and result_id"))
            return Outcome(**{name: row[name] for name in Outcome._fields})
        return None

    def close(self) -> None:
        """Check the texts that are left, and note the rows that belong to no workload."""
        for texts in (self.inputs, self.states, self.outputs, self.artifacts):
            texts.flush()
        for stream in (self.events, self.attempts, self.checkpoints, self.results, self.dependencies):
            stream.close()
            self.page.found += [
                (pk, "orphan", f"there are rows of no workload: {stream.kind}") for pk in stream.orphans
            ]
            if stream.is_cut:
                self.page.found.append(
                    (max(stream.orphans), "orphan", f"and more rows of no workload follow: {stream.kind}")
                )


def _target(snapshot: Snapshot, row: dict[str, Any]) -> Target:
    target = row.pop("target")
    # What belongs to another application is as good as what does not exist.
    if target is None or target[:2] != (snapshot.tenant_id, snapshot.application_id):
        return Target(**row, state=None, is_pruned=False)
    return Target(**row, state=target[2], is_pruned=target[3])


def _record(pk: int, admitted: dict[str, Any], standing: dict[str, Any], lane: Scope | None) -> Record:
    claim = {name: standing[name] for name in CLAIM}
    is_whole = all(value is not None for name, value in claim.items() if name != "started_at")
    values = {name: admitted[name] for name in COLD} | {name: standing[name] for name in STANDING}
    for name, kind in (("state", WorkloadState), ("dependency_standing", Standing)):
        try:
            values[name] = kind(values[name])
        except ValueError as error:
            raise Unreadable(f"{name} of its workload: {error}") from error
    return Record(
        snapshot=Snapshot(pk=pk, claim=CurrentClaim(**claim) if is_whole else None, **values),
        requested_by=admitted["requested_by"],
        idempotency_key=admitted["idempotency_key"],
        claim=claim,
        due_at=standing["due_at"],
        queued_lane_id=standing["queued_lane_id"],
        waiting_lane_id=standing["waiting_lane_id"],
        lane=lane,
    )
