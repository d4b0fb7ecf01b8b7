"""What was decided becomes rows: the version-checked update, the events, the attempts, and what follows from them.

Nothing else in the product writes a workload or its history. Sections 1 ("Transactions"), 2 and 4 of the contract.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from workloads.authority.columns import among
from workloads.authority.records import ROWS_A_STATEMENT, Transaction, lock_workloads
from workloads.authority.snapshots import CLAIM, STANDING
from workloads.authority.statements import Statements, execute_many, parts
from workloads.contract import AttemptStatus
from workloads.lifecycle.decision import AttemptClosed, AttemptOpened, AttemptStarted, Decision, NewEvent
from workloads.lifecycle.dependencies import changes_a_standing, standing_of, worst
from workloads.lifecycle.recovery import derive
from workloads.lifecycle.snapshot import Snapshot
from workloads.models import Admitted, Attempt, Dependency, Event, Result, Workload

MOVED_A_STATEMENT: Final = 1_000

DECIDED: Final = tuple(name for name in STANDING if name not in {"priority", "dependency_standing"})
"""The columns of the standing that decisions change."""
DERIVED: Final = ("due_at", "queued_lane_id", "waiting_lane_id")


def standing_values(after: Snapshot, now: dt.datetime) -> dict[str, Any]:
    """Return the columns of the workload's row that say how it stands, the derived ones included."""
    values = {name: getattr(after, name) for name in STANDING}
    values |= {name: getattr(after.claim, name) if after.claim is not None else None for name in CLAIM}
    derived = derive(after, now)
    values["due_at"] = derived.due_at
    values["queued_lane_id"] = after.lane_id if derived.queued else None
    values["waiting_lane_id"] = after.lane_id if derived.waiting else None
    return values


def write(
    tx: Transaction,
    decisions: Sequence[Decision],
    *,
    results: Sequence[dict[str, Any]] = (),
    ask: tuple[str, Sequence[Any]] | None = None,
    beside: Callable[[Statements], None] | None = None,
) -> list[tuple[Any, ...]]:
    """Write what was decided: rows first, each conditional on the version that was judged, then their history.

    `results` go in with it, under result ids that must be new (not on MariaDB). Raises Superseded if a version had
    moved or a result id was taken; nothing of the transaction is then kept.

    Returns what the query `ask` finds, which is about nothing that is written here, and is for decisions that move no
    work that others wait for. `beside` adds what else is written with it.
    """
    if not decisions:
        return []
    moved = {d.after.workload_id: d.after for d in decisions if changes_a_standing(d.before.state, d.after.state)}
    found: list[tuple[Any, ...]] = []
    for run in _runs(decisions):
        statements = Statements(tx)
        statements.insert(Result, results, unless="result_key")
        results = ()
        if beside is not None and run[0] is decisions[0]:
            beside(statements)
        for leaves, alike in itertools.groupby(run, key=_leaves_due_at):
            # A row whose indexed columns stay is cheap to write.
            _update(statements, list(alike), [*DECIDED, *CLAIM] if leaves else [*DECIDED, *CLAIM, *DERIVED])
        statements.insert(Event, [event_row(d.before.pk, e) for d in run for e in d.events])
        _add_attempts(statements, run)
        if 0 < len(moved) <= ROWS_A_STATEMENT and run[-1] is decisions[-1]:
            statements.ask(*_dependents_of(tx, list(moved)))
        elif ask is not None and run[-1] is decisions[-1]:
            statements.ask(*ask)
        found = statements.run()
    if not moved:
        return found
    if len(moved) > ROWS_A_STATEMENT:
        asked = (_dependents_of(tx, part) for part in parts(moved, ROWS_A_STATEMENT))
        found = [row for question in asked for row in tx.execute(*question)]
    if found:
        _follow(tx, moved, found, decisions[-1].now)
    return []


def _runs(decisions: Sequence[Decision]) -> Iterator[Sequence[Decision]]:
    """Yield the decisions in order, cut where a workload comes again: one statement changes a row once."""
    start, seen = 0, set[int]()
    for end, decision in enumerate(decisions):
        if decision.before.pk in seen:
            yield decisions[start:end]
            start, seen = end, set()
        seen.add(decision.before.pk)
    yield decisions[start:]


def _leaves_due_at(decision: Decision) -> bool:
    """Tell whether due_at still is a lower bound: after a heartbeat, unless the clock has gone back since the one
    before, so that the deadline of the next is sooner than it was.
    """
    if decision.events or decision.attempt is not None:
        return False
    claim, before = decision.after.claim, decision.before.claim
    return claim is not None and before is not None and claim.last_heartbeat >= before.last_heartbeat


def _update(statements: Statements, decisions: Sequence[Decision], names: Sequence[str]) -> None:
    rows = []
    for decision in decisions:
        values = standing_values(decision.after, decision.now)
        if values["queued_lane_id"] is not None:
            statements.tx.has_queued = True
        rows.append([*[values[name] for name in names], decision.before.pk, decision.before.version])
    statements.update(Workload, names, ("admitted_id", "version"), rows)


def write_derived(tx: Transaction, snapshots: Sequence[Snapshot], now: dt.datetime) -> None:
    """Write the derived columns of locked rows, as the rules give them for these snapshots: no decision, no version."""
    names = ("dependency_standing", *DERIVED)
    rows = []
    for snapshot in snapshots:
        values = standing_values(snapshot, now)
        tx.has_queued = tx.has_queued or values["queued_lane_id"] is not None
        rows.append([*[values[name] for name in names], snapshot.pk])
    execute_many(tx, Workload, names, ("admitted_id",), rows)


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


def _add_attempts(statements: Statements, decisions: Sequence[Decision]) -> None:
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
    statements.insert(Attempt, opened)
    by_names: dict[tuple[str, ...], list[list[Any]]] = {}
    for pk, number, values in changed:
        by_names.setdefault(tuple(values), []).append([*values.values(), pk, number])
    for names, rows in by_names.items():
        statements.update(Attempt, names, ("record_id", "number"), rows)


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
                due = due.select_for_update(skip_locked=True)
            ordered = due.order_by("waiting_lane_id", "next_attempt_at").values_list("pk", flat=True)
            found = list(ordered[:MOVED_A_STATEMENT])
            if found:
                tx.has_queued = True
                # One statement for all, since a whole night's work may come due at one instant. MariaDB assigns from
                # left to right.
                tx.run(
                    f"UPDATE {Workload._meta.db_table} SET queued_lane_id = waiting_lane_id, waiting_lane_id = NULL "
                    f"WHERE admitted_id IN ({', '.join(['%s'] * len(found))})",
                    found,
                )
            if len(found) < MOVED_A_STATEMENT:
                break


def _dependents_of(tx: Transaction, workload_ids: Sequence[str]) -> tuple[str, list[Any]]:
    where, params = among(tx.connection, Dependency, "depends_on", workload_ids, "d")
    return (
        "SELECT d.id, d.dependent_id, d.depends_on, d.required_state, a.tenant_id, a.application_id "
        f"FROM {Dependency._meta.db_table} d JOIN {Admitted._meta.db_table} a ON a.id = d.dependent_id WHERE {where}",
        params,
    )


def _follow(
    tx: Transaction, moved: dict[str, Snapshot], dependents: Sequence[tuple[Any, ...]], now: dt.datetime
) -> None:
    """Bring what depends on the moved workloads up to date, in the transaction in which they changed.

    The dependents' rows are locked before their dependencies' standings are written: a pass that looks again at one of
    them holds that lock too.
    """
    standings: dict[int, str] = {}
    waiting: set[int] = set()
    for pk, dependent, depends_on, required, *place in dependents:
        target = moved[depends_on]
        if place == [target.tenant_id, target.application_id]:
            standings[pk] = str(standing_of(target.state, required))
            waiting.add(dependent)
    if not waiting:
        return
    clock_before = tx.clock
    locked = lock_workloads(tx, pks=sorted(waiting))
    tx.clock = clock_before
    write_standings(tx, standings)
    refresh(tx, locked, now)


def write_standings(tx: Transaction, standings: dict[int, str]) -> None:
    """Write how dependencies stand (by the key of their row). Their dependents are locked."""
    rows = [(standing, pk) for pk, standing in sorted(standings.items())]
    execute_many(tx, Dependency, ("standing",), ("id",), rows)


def refresh(tx: Transaction, locked: Iterable[Snapshot], now: dt.datetime) -> None:
    """Derive anew how the dependencies of locked workloads stand together, and what follows from that."""
    for part in parts(locked, ROWS_A_STATEMENT):
        together: dict[int, set[str]] = {}
        rows = Dependency.objects.using(tx.alias).filter(dependent__in=[s.pk for s in part])
        for dependent, standing in rows.values_list("dependent_id", "standing"):
            together.setdefault(dependent, set()).add(standing)
        write_derived(tx, [s.but(dependency_standing=worst(together.get(s.pk, ()))) for s in part], now)
