"""Row to snapshot: the one guarded transaction in which every decision is made.

Lock, then read the database's clock, then decide; `writes` then writes what was decided, conditional on the version.
Section 1 of the contract, "Transactions".
"""

from __future__ import annotations

import datetime as dt
import logging
import random
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from django.db import DatabaseError, connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from workloads import signals
from workloads.authority import clock, snapshots
from workloads.authority.columns import among
from workloads.contract import AttemptStatus, Effect, WorkloadState
from workloads.errors import WORKLOAD_CONFLICT, WORKLOAD_NOT_FOUND, WorkloadError
from workloads.lifecycle.snapshot import PastAttempt, Snapshot
from workloads.models import Admitted, Attempt, Workload

T = TypeVar("T")

logger = logging.getLogger("workloads.authority")

MAX_TRIES: Final = 8
ROWS_A_STATEMENT: Final = 500
LANES_A_STATEMENT: Final = 100

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND: Final = dt.timedelta(milliseconds=1)
_POSTGRES_REPEATABLE: Final = frozenset({"40001", "40P01"})
_MARIADB_REPEATABLE: Final = frozenset({1020, 1205, 1213})


class Superseded(Exception):
    """Another writer stepped the version although the row was to be locked: the decision is void."""


@dataclass(slots=True)
class Transaction:
    """One open transaction on the authority's database. `now` is the instant at which its decisions are made.

    `is_own`: it is no part of a caller's, so that it is done again where it was superseded.
    """

    connection: BaseDatabaseWrapper
    given: dt.datetime | None
    is_own: bool = False
    clock: dt.datetime | None = None
    has_queued: bool = False

    @property
    def alias(self) -> str:
        return self.connection.alias

    @property
    def now(self) -> dt.datetime:
        """The instant that the caller gave, else the database's clock since the last lock was taken."""
        if self.given is not None:
            return self.given
        if self.clock is None:
            self.clock = clock.read(self.connection)
        return self.clock

    def execute(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement that has an answer, and return its rows."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, params)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def run(self, sql: str, params: Sequence[Any] = ()) -> None:
        """Run one statement that has no answer."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, params)


def alias() -> str:
    """Return the database that the site's router gives for writing workloads."""
    return router.db_for_write(Workload)


def transact(work: Callable[[Transaction], T], *, now: dt.datetime | None = None) -> T:
    """Run `work` in one transaction, which joins the caller's if there is one; return what it returns.

    A WorkloadError that `work` raises is raised once the block is committed: what was written before it (a time-out)
    stays, and a caller's transaction is not broken. So `work` raises before it writes, or after all of it.

    A transaction of our own is repeated, up to eight times, on a deadlock or a serialization failure, and when the
    version was stepped in spite of the lock. Inside a caller's transaction such an error is raised as it is, since the
    database has ended that transaction already; a lost version is WORKLOAD_CONFLICT.
    """
    using = alias()
    connection = connections[using]
    joined = connection.in_atomic_block or not connection.get_autocommit()
    tries = 1 if joined else MAX_TRIES
    for turn in range(1, tries + 1):
        refusal: WorkloadError | None = None
        try:
            # A savepoint would cost two round trips, and is not needed: refusals do not roll back.
            with transaction.atomic(using=using, savepoint=False):
                tx = Transaction(connection, now, not joined)
                try:
                    value = work(tx)
                except WorkloadError as error:
                    refusal = error
            if tx.has_queued and (connection.in_atomic_block or connection.get_autocommit()):
                announce(connection)
            if refusal is not None:
                raise refusal
            return value
        except Superseded as error:
            if turn == tries:
                raise WorkloadError(WORKLOAD_CONFLICT, "The workload was changed by another writer.") from error
        except DatabaseError as error:
            if turn == tries or not is_repeatable(error):
                raise
        # Two that met once meet again unless they part: a random pause, longer with each turn.
        time.sleep(random.uniform(0, 0.005 * 2**turn))
    raise AssertionError("unreachable")


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a transaction has to say once it is committed. A receiver's error is logged, and disturbs nobody else."""

    using: str

    def __call__(self) -> None:
        signals.work_queued.send_robust(Workload, using=self.using)


def announce(connection: BaseDatabaseWrapper) -> None:
    """Let work_queued be sent after the commit, once for the transaction; at once, where none is open.

    A word that waits already was asked for in a block that is rolled back, if ever, together with the one that now
    asks, so it serves for both.
    """
    pending: list[Any] = connection.run_on_commit
    if not any(isinstance(said, Announcement) for _, said, _ in pending):
        transaction.on_commit(Announcement(connection.alias), using=connection.alias)


def is_repeatable(error: DatabaseError) -> bool:
    """Tell whether the database ended the transaction for the sake of another one, so that it may be repeated."""
    cause = error.__cause__
    if getattr(cause, "sqlstate", None) in _POSTGRES_REPEATABLE:
        return True
    code = error.args[0] if error.args else None
    if isinstance(code, int):
        return code in _MARIADB_REPEATABLE
    return isinstance(code, str) and code.startswith("database") and "locked" in code


def make_id(at: dt.datetime | None = None) -> str:
    """Return a new opaque id: 128 random bits as 32 hex digits.

    With `at`, that instant in milliseconds, a 7 and 76 random bits. A worker may give such an id of its attempt to the
    result, whose key begins with the instant then: see `dependencies.result_key_of`.
    """
    if at is None:
        return secrets.token_hex(16)
    since = (at - _EPOCH) // _MILLISECOND % 2**48
    return f"{since:012x}7{secrets.token_hex(10)[1:]}"


def draw() -> float:
    """Return a random number of 0 to 1, for jitter."""
    return random.random()


def lock_workloads(
    tx: Transaction,
    *,
    pks: Sequence[int] | None = None,
    workload_ids: Sequence[str] | None = None,
    wait: bool = True,
    spoilt: list[int] | None = None,
) -> list[Snapshot]:
    """Lock the named workloads in the order of their keys, and return their snapshots in that order.

    The clock is read when the last row is locked, in the same statement. Without `wait`, rows that others have locked
    are left out. Those that do not exist are left out, and so are, where `spoilt` takes their keys, those that can't be
    read.
    """
    if pks is None and (tx.connection.vendor == "mysql" or len(workload_ids or ()) > ROWS_A_STATEMENT):
        # MariaDB locks rows in the order in which it reads them, and several statements lock in several orders.
        pks = _resolve(tx, workload_ids or ())
    wanted: Sequence[Any] = pks if pks is not None else list(workload_ids or ())
    snapshots: list[Snapshot] = []
    for start in range(0, len(wanted), ROWS_A_STATEMENT):
        part = wanted[start : start + ROWS_A_STATEMENT]
        where, params = (
            among(tx.connection, Admitted, "workload_id", part, "a")
            if pks is None
            else among(tx.connection, Workload, "admitted_id", part, "w")
        )
        snapshots += _select(tx, where, params, lock=True, wait=wait, spoilt=spoilt)
    return snapshots


def _resolve(tx: Transaction, workload_ids: Sequence[str]) -> list[int]:
    found: list[int] = []
    for start in range(0, len(workload_ids), ROWS_A_STATEMENT):
        part = workload_ids[start : start + ROWS_A_STATEMENT]
        found += Admitted.objects.using(tx.alias).filter(workload_id__in=part).values_list("id", flat=True)
    return sorted(found)


def read_workloads(tx: Transaction, where: str, params: Sequence[Any]) -> list[Snapshot]:
    """Return snapshots of the rows that `where` (over `w` and `a`) finds, unlocked: good for choosing, not deciding."""
    return _select(tx, where, params, lock=False, wait=True)


def lock_queued(
    tx: Transaction,
    lane_id: int,
    limit: int,
    without: Collection[int],
    as_of: dt.datetime,
    floor: int | None = None,
) -> tuple[list[Snapshot], list[int]]:
    """Lock up to `limit` workloads at the head of a lane's queue; those that others have locked are passed over.

    With a `floor`, none of a lower priority. Returned beside them are the keys of rows that can't be read, as a hand or
    a disk may leave them: such a row is told once in each process, and holds up no other.
    """
    where, params = _in_queue(tx, lane_id, without, as_of)
    if floor is not None:
        where += " AND w.priority >= %s"
        params.append(floor)
    spoilt: list[int] = []
    found = _select(
        tx,
        where,
        params,
        lock=True,
        wait=False,
        order=f"ORDER BY w.priority DESC, w.next_attempt_at, w.admitted_id LIMIT {int(limit)}",
        index="workloads_queued",
        spoilt=spoilt,
    )
    return found, spoilt


def peek_queued(
    tx: Transaction, lane_ids: Sequence[int], limit: int, without: Collection[int], as_of: dt.datetime
) -> list[tuple[int, dt.datetime, int, int]]:
    """Return the heads of several queues, unlocked: (-priority, next_attempt_at, key, lane) of up to `limit` each."""
    hot = Workload._meta.db_table
    heads: list[tuple[int, dt.datetime, int, int]] = []
    for start in range(0, len(lane_ids), LANES_A_STATEMENT):
        selects, params = [], []
        for lane_id in lane_ids[start : start + LANES_A_STATEMENT]:
            where, values = _in_queue(tx, lane_id, without, as_of)
            selects.append(
                f"SELECT * FROM (SELECT w.priority, w.next_attempt_at, w.admitted_id, w.queued_lane_id FROM {hot} w "
                f"WHERE {where} ORDER BY w.priority DESC, w.next_attempt_at, w.admitted_id LIMIT {int(limit)}) "
                f"AS lane_{lane_id}"
            )
            params += values
        for priority, due, pk, lane in tx.execute(" UNION ALL ".join(selects), params):
            # Negated here: in the database the lowest priority would leave its 32 bits.
            heads.append((-priority, clock.from_db(due), pk, lane))
    return heads


def _in_queue(tx: Transaction, lane_id: int, without: Collection[int], as_of: dt.datetime) -> tuple[str, list[Any]]:
    # What is past a deadline is passed over: for queued work due_at is that very deadline.
    instant = tx.connection.ops.adapt_datetimefield_value(as_of)
    where = "w.queued_lane_id = %s AND w.next_attempt_at <= %s AND (w.due_at IS NULL OR w.due_at > %s)"
    params = [lane_id, instant, instant]
    if without:
        where += f" AND w.admitted_id NOT IN ({', '.join(['%s'] * len(without))})"
        params += list(without)
    return where, params


def _select(
    tx: Transaction,
    where: str,
    params: Sequence[Any],
    *,
    lock: bool,
    wait: bool,
    order: str = "ORDER BY w.admitted_id",
    index: str = "",
    spoilt: list[int] | None = None,
) -> list[Snapshot]:
    listed = snapshots.listed(tx.alias)
    hot, cold = Workload._meta.db_table, Admitted._meta.db_table
    vendor = tx.connection.vendor
    # MariaDB locks every row that it sorts, so the order must come from the index that is read.
    forced = f" FORCE INDEX ({index})" if index and vendor == "mysql" else ""
    join = "STRAIGHT_JOIN" if vendor == "mysql" else "JOIN"
    source = f"FROM {hot} w{forced} {join} {cold} a ON a.id = w.admitted_id WHERE {where} {order}"
    skip = "" if wait else " SKIP LOCKED"
    if not lock:
        rows = [(None, *row) for row in tx.execute(f"SELECT {listed} {source}", params)]
    elif vendor == "postgresql":
        # A clock in the same select list would be read before the wait for the lock.
        rows = tx.execute(
            f"WITH l AS MATERIALIZED (SELECT {listed} {source} FOR UPDATE OF w{skip}) "
            f"SELECT {clock.sql(vendor)}::text, l.* FROM l",
            params,
        )
    else:
        suffix = f" FOR UPDATE{skip}" if vendor == "mysql" else ""
        rows = tx.execute(f"SELECT {clock.sql(vendor)}, {listed} {source}{suffix}", params)
    if lock:
        # Row by row they were locked and the clock was read.
        tx.clock = clock.from_db(rows[-1][0]) if rows else None
    if spoilt is None:
        return [snapshots.read(tx.connection, row[1:]) for row in rows]
    found = []
    for row in rows:
        try:
            found.append(snapshots.read(tx.connection, row[1:]))
        except Exception as error:
            spoilt.append(row[1])
            _tell_spoilt(row[1], error)
    return found


_told: Final[set[int]] = set()


def _tell_spoilt(pk: int, error: Exception) -> None:
    if pk not in _told:
        _told.add(pk)
        logger.error("The workload with the key %s can't be read, and is passed over: %r", pk, error)


def not_found() -> WorkloadError:
    """Return the refusal of an id that names nothing that the caller may see."""
    return WorkloadError(WORKLOAD_NOT_FOUND, "There is no such workload.")


def is_findable(workload_id: object) -> bool:
    """Tell whether a value can name a workload at all, so that no database is asked for what it can't compare."""
    return (
        isinstance(workload_id, str)
        and 0 < len(workload_id) <= 64
        and workload_id.isascii()
        and "\0" not in workload_id
    )


def lock_workload(tx: Transaction, workload_id: object) -> Snapshot:
    """Lock one workload and return its snapshot. An id that names nothing, whatever it is: WORKLOAD_NOT_FOUND."""
    found = lock_workloads(tx, workload_ids=[str(workload_id)]) if is_findable(workload_id) else []
    if not found:
        raise not_found()
    return found[0]


def find_attempts(tx: Transaction, wanted: Iterable[tuple[int, str]]) -> dict[int, PastAttempt]:
    """Return, by workload key, the attempts that were claimed under the given claim ids."""
    pairs = {pk: claim_id for pk, claim_id in wanted if is_findable(claim_id)}
    if not pairs:
        return {}
    rows = Attempt.objects.using(tx.alias).filter(record__in=pairs, claim_id__in=set(pairs.values()))
    return {
        row.record_id: PastAttempt(
            attempt_id=row.attempt_id,
            number=row.number,
            claim_id=row.claim_id,
            worker_id=row.worker_id,
            fencing_token=row.fencing_token,
            status=AttemptStatus(row.status),
            ended_by=row.ended_by,
            error=row.error,
            failure_kind=row.failure_kind,
            effect=Effect(row.effect) if row.effect else None,
            outcome_state=WorkloadState(row.outcome_state) if row.outcome_state else None,
            outcome_decision=row.outcome_decision,
            outcome_next_attempt_at=row.outcome_next_attempt_at,
        )
        for row in rows
        if pairs[row.record_id] == row.claim_id
    }


def committed(tx: Transaction, snapshot: Snapshot) -> Workload:
    """Return the workload's model instance as this transaction has left it."""
    workload: Workload = Workload.objects.using(tx.alias).get(pk=snapshot.pk)
    return workload
