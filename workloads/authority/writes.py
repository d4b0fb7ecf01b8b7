"""What was decided becomes rows: the version-checked update, the events, the attempts, and what follows from them.

Nothing else in the product writes a workload or its history. Sections 1 ("Transactions"), 2 and 4 of the contract.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from workloads.authority.records import (
    CLAIM,
    ROWS_A_STATEMENT,
    STANDING,
    Superseded,
    Transaction,
    field_of,
    lock_workloads,
)
from workloads.contract import AttemptStatus
from workloads.lifecycle.decision import AttemptClosed, AttemptOpened, AttemptStarted, Decision, NewEvent
from workloads.lifecycle.dependencies import changes_a_standing, standing_of, worst
from workloads.lifecycle.recovery import derive
from workloads.lifecycle.snapshot import Snapshot
from workloads.models import Attempt, Dependency, Event, Workload

Item = TypeVar("Item")

BYTES_A_STATEMENT: Final = 4 * 1024 * 1024
MOVED_A_STATEMENT: Final = 1_000

DECIDED: Final = tuple(name for name in STANDING if name not in {"priority", "dependency_standing"})
"""The columns of the standing that decisions change."""
DERIVED: Final = ("due_at", "queued_lane_id", "waiting_lane_id")


def prepared(connection: BaseDatabaseWrapper, model: type[models.Model], name: str, value: Any) -> Any:
    return field_of(model, name).get_db_prep_save(value, connection)


def insert(tx: Transaction, model: type[models.Model], rows: Sequence[dict[str, Any]], *, unless: str = "") -> None:
    """Insert rows (values by attribute name, the same names in each).

    With `unless`, a unique column's name, a row whose value is taken is left out: it waits for a writer of the same
    value, ignores no other error, and leaves the transaction whole. Statements are cut below the packet size.
    """
    if not rows:
        return
    quote = tx.connection.ops.quote_name
    names = list(rows[0])
    columns = [field_of(model, name) for name in names]
    listed = ", ".join(quote(str(column.column)) for column in columns)
    head = f"INSERT INTO {quote(model._meta.db_table)} ({listed}) VALUES "
    tail = ""
    if unless:
        target = quote(unless)
        tail = (
            f" ON DUPLICATE KEY UPDATE {target} = {target}"
            if tx.connection.vendor == "mysql"
            else f" ON CONFLICT ({target}) DO NOTHING"
        )
    marks = "(" + ", ".join(["%s"] * len(names)) + ")"
    batch: list[list[Any]] = []
    size = 0

    def flush() -> None:
        if batch:
            tx.execute(head + ", ".join([marks] * len(batch)) + tail, [value for row in batch for value in row])

    for row in rows:
        values = [
            column.get_db_prep_save(row[name], tx.connection) for name, column in zip(names, columns, strict=True)
        ]
        bytes_here = sum(4 * len(value) for value in values if isinstance(value, str))
        if batch and (len(batch) >= ROWS_A_STATEMENT or size + bytes_here > BYTES_A_STATEMENT):
            flush()
            batch, size = [], 0
        batch.append(values)
        size += bytes_here
    flush()


def standing_values(after: Snapshot, now: dt.datetime) -> dict[str, Any]:
    """Return the columns of the workload's row that say how it stands, the derived ones included."""
    values = {name: getattr(after, name) for name in STANDING}
    values |= {name: getattr(after.claim, name) if after.claim is not None else None for name in CLAIM}
    derived = derive(after, now)
    values["due_at"] = derived.due_at
    values["queued_lane_id"] = after.lane_id if derived.queued else None
    values["waiting_lane_id"] = after.lane_id if derived.waiting else None
    return values


def write(tx: Transaction, decisions: Sequence[Decision]) -> None:
    """Write what was decided: rows first, each conditional on the version that was judged, then their history.

    Raises Superseded if a version had moved; nothing of the transaction is then kept.
    """
    if not decisions:
        return
    for beats, run in itertools.groupby(decisions, key=_is_heartbeat):
        # After a heartbeat the lower bound of due_at still holds; a row whose indexed columns stay is cheap to write.
        _update(tx, list(run), [*DECIDED, *CLAIM] if beats else [*DECIDED, *CLAIM, *DERIVED])
    insert(tx, Event, [event_row(d.before.pk, e) for d in decisions for e in d.events])
    _write_attempts(tx, decisions)
    follow(tx, decisions)


def _is_heartbeat(decision: Decision) -> bool:
    return not decision.events and decision.attempt is None


def _update(tx: Transaction, decisions: Sequence[Decision], names: Sequence[str]) -> None:
    columns = [field_of(Workload, name) for name in names]
    rows = []
    for decision in decisions:
        values = standing_values(decision.after, decision.now)
        tx.has_queued = tx.has_queued or values["queued_lane_id"] is not None
        row = [c.get_db_prep_save(values[c.attname], tx.connection) for c in columns]
        rows.append([*row, decision.before.pk, decision.before.version])
    execute_many(tx, Workload, names, "admitted_id = %s AND version = %s", rows)


def execute_many(
    tx: Transaction, model: type[models.Model], names: Sequence[str], where: str, rows: Sequence[Sequence[Any]]
) -> None:
    if not rows:
        return
    quote = tx.connection.ops.quote_name
    assignments = ", ".join(f"{quote(str(field_of(model, name).column))} = %s" for name in names)
    sql = f"UPDATE {quote(model._meta.db_table)} SET {assignments} WHERE {where}"
    with tx.connection.cursor() as cursor:
        if len(rows) == 1:
            cursor.execute(sql, rows[0])
        else:
            cursor.executemany(sql, rows)
        if cursor.rowcount != len(rows):
            raise Superseded


def write_derived(tx: Transaction, snapshots: Sequence[Snapshot], now: dt.datetime) -> None:
    """Write the derived columns of locked rows, as the rules give them for these snapshots: no decision, no version."""
    names = ("dependency_standing", *DERIVED)
    rows = []
    for snapshot in snapshots:
        values = standing_values(snapshot, now)
        tx.has_queued = tx.has_queued or values["queued_lane_id"] is not None
        rows.append([prepared(tx.connection, Workload, n, values[n]) for n in names] + [snapshot.pk])
    if rows:
        execute_many(tx, Workload, names, "admitted_id = %s", rows)


def event_row(pk: int, event: NewEvent) -> dict[str, Any]:
    return {
        "record_id": pk,
        "sequence": event.sequence,
        "from_state": event.from_state,
        "to_state": event.to_state,
        "at": event.at,
        "actor": event.actor,
        "evidence": dict(event.evidence),
    }


def _write_attempts(tx: Transaction, decisions: Sequence[Decision]) -> None:
    opened: list[dict[str, Any]] = []
    changed: list[tuple[int, int, dict[str, Any]]] = []
    for decision in decisions:
        pk, change = decision.before.pk, decision.attempt
        match change:
            case AttemptOpened():
                opened.append(
                    {
                        "record_id": pk,
                        "number": change.number,
                        "attempt_id": change.claim.attempt_id,
                        "claim_id": change.claim.claim_id,
                        "worker_id": change.claim.worker_id,
                        "fencing_token": change.fencing_token,
                        "status": str(change.status),
                        "claimed_at": change.claim.claimed_at,
                        "started_at": change.claim.started_at,
                        "ended_by": "",
                    }
                )
            case AttemptStarted():
                values = {"status": str(AttemptStatus.RUNNING), "started_at": change.started_at}
                changed.append((pk, change.number, values))
            case AttemptClosed():
                changed.append((pk, change.number, _ending(change)))
            case None:
                pass
    insert(tx, Attempt, opened)
    by_names: dict[tuple[str, ...], list[tuple[int, int, dict[str, Any]]]] = {}
    for item in changed:
        by_names.setdefault(tuple(item[2]), []).append(item)
    for names, items in by_names.items():
        rows = [
            [prepared(tx.connection, Attempt, name, values[name]) for name in names] + [pk, number]
            for pk, number, values in items
        ]
        execute_many(tx, Attempt, names, "record = %s AND number = %s", rows)


def _ending(change: AttemptClosed) -> dict[str, Any]:
    values: dict[str, Any] = {
        "status": str(change.status),
        "ended_at": change.ended_at,
        "ended_by": change.ended_by,
        "error": change.error,
    }
    if change.failure_kind is not None:
        values |= {
            "failure_kind": change.failure_kind,
            "effect": None if change.effect is None else str(change.effect),
            "outcome_state": str(change.outcome_state),
            "outcome_decision": change.outcome_decision,
            "outcome_next_attempt_at": change.outcome_next_attempt_at,
        }
    return values


def promote(tx: Transaction, lane_ids: Sequence[int], now: dt.datetime) -> None:
    """Move work that has come due from beside its queue into it. What others have locked is left to them."""
    for part in parts(lane_ids, ROWS_A_STATEMENT):
        while True:
            due = Workload.objects.using(tx.alias).filter(waiting_lane_id__in=part, next_attempt_at__lte=now)
            if tx.connection.features.has_select_for_update_skip_locked:
                due = due.select_for_update(skip_locked=True, of=_only_itself(tx))
            ordered = due.order_by("waiting_lane_id", "next_attempt_at").values_list("pk", flat=True)
            found = list(ordered[:MOVED_A_STATEMENT])
            if found:
                tx.has_queued = True
                # One statement for all, since a whole night's work may come due at one instant. MariaDB assigns from
                # left to right.
                tx.execute(
                    f"UPDATE {Workload._meta.db_table} SET queued_lane_id = waiting_lane_id, waiting_lane_id = NULL "
                    f"WHERE admitted_id IN ({', '.join(['%s'] * len(found))})",
                    found,
                )
            if len(found) < MOVED_A_STATEMENT:
                break


def _only_itself(tx: Transaction) -> tuple[str, ...]:
    return ("self",) if tx.connection.features.has_select_for_update_of else ()


def parts(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of at most `size`."""
    rest = iter(items)
    while part := list(itertools.islice(rest, size)):
        yield part


def follow(tx: Transaction, decisions: Sequence[Decision]) -> None:
    """Bring what depends on the decided workloads up to date, in the transaction in which they changed.

    The dependents' rows are locked before their dependencies' standings are written: a pass that looks again at one of
    them holds that lock too.
    """
    moved = {d.after.workload_id: d.after for d in decisions if changes_a_standing(d.before.state, d.after.state)}
    if not moved:
        return
    columns = (
        "id",
        "dependent_id",
        "depends_on",
        "required_state",
        "dependent__tenant_id",
        "dependent__application_id",
    )
    standings: dict[int, str] = {}
    dependents: set[int] = set()
    for part in parts(moved, ROWS_A_STATEMENT):
        found = Dependency.objects.using(tx.alias).filter(depends_on__in=part).values_list(*columns)
        for pk, dependent, depends_on, required, tenant_id, application_id in found:
            target = moved[depends_on]
            if (tenant_id, application_id) == (target.tenant_id, target.application_id):
                standings[pk] = str(standing_of(target.state, required))
                dependents.add(dependent)
    now = decisions[-1].now
    clock_before = tx.clock
    locked = lock_workloads(tx, pks=sorted(dependents))
    tx.clock = clock_before
    write_standings(tx, standings)
    refresh(tx, locked, now)


def write_standings(tx: Transaction, standings: dict[int, str]) -> None:
    """Write how dependencies stand (by the key of their row). Their dependents are locked."""
    rows = [(standing, pk) for pk, standing in sorted(standings.items())]
    if rows:
        execute_many(tx, Dependency, ("standing",), "id = %s", rows)


def refresh(tx: Transaction, locked: Iterable[Snapshot], now: dt.datetime) -> None:
    """Derive anew how the dependencies of locked workloads stand together, and what follows from that."""
    for part in parts(locked, ROWS_A_STATEMENT):
        together: dict[int, set[str]] = {}
        rows = Dependency.objects.using(tx.alias).filter(dependent__in=[s.pk for s in part])
        for dependent, standing in rows.values_list("dependent_id", "standing"):
            together.setdefault(dependent, set()).add(standing)
        write_derived(tx, [replace(s, dependency_standing=worst(together.get(s.pk, ()))) for s in part], now)
