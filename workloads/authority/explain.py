"""Why a workload is not running now, in the order in which a claim would judge. Section 7."""

from __future__ import annotations

import datetime as dt
from typing import Final

from django.db import connections
from django.db.models import Q

from workloads.authority.claims import matching_lanes
from workloads.authority.records import Transaction, alias, is_findable, not_found, read_workloads
from workloads.contract import Blocker, WorkloadState
from workloads.lifecycle import arguments, deadlines
from workloads.lifecycle.canonical import iso
from workloads.lifecycle.snapshot import Snapshot, Standing
from workloads.lifecycle.states import CLAIMED, FINAL, PARKED
from workloads.models import Dependency, Event, PassRun, Workload

MOST_BEFORE: Final = 1000
PASS_IS_LATE: Final = dt.timedelta(minutes=5)


def explain(workload_id: str, *, now: dt.datetime | None = None) -> list[Blocker]:
    """Return every reason why this work is not running now, in the order in which `claim` judges.

    Empty for final states, and for claimable work that nothing holds back. An id that names nothing:
    WORKLOAD_NOT_FOUND. Section 7.
    """
    # No transaction of its own: it decides nothing, and on SQLite it would wait for the one writer.
    tx = Transaction(connections[alias()], arguments.now(now))
    found = read_workloads(tx, "a.workload_id = %s", [workload_id]) if is_findable(workload_id) else []
    if not found:
        raise not_found()
    (snapshot,) = found
    if snapshot.state in FINAL:
        return []
    blockers = _deadline(snapshot, tx.now)
    if snapshot.state in PARKED:
        blockers.append(_parked(tx, snapshot))
    elif snapshot.claim is not None:
        blockers.append(_claimed(snapshot))
    elif snapshot.state is WorkloadState.READY:
        blockers += _waiting(tx, snapshot)
    return blockers + _pass(tx, snapshot)


def _deadline(snapshot: Snapshot, now: dt.datetime) -> list[Blocker]:
    found = deadlines.passed(snapshot, now)
    if found is None:
        return []
    name, at = found
    return [
        Blocker(
            code="deadline_passed",
            message=f"The {name} deadline passed; the next pass or call will time the work out.",
            details={"deadline": name, "deadline_at": iso(at)},
        )
    ]


def _parked(tx: Transaction, snapshot: Snapshot) -> Blocker:
    last = Event.objects.using(tx.alias).filter(record=snapshot.pk).order_by("-sequence").first()
    decision = None if last is None else last.evidence.get("decision")
    since = snapshot.finished_at or snapshot.updated_at
    details = {"since": iso(since)}
    if decision:
        details["decision"] = decision
    return Blocker(
        code="parked",
        message=f"It rests in {snapshot.state} until an operator re-arms or cancels it.",
        details=details,
    )


def _claimed(snapshot: Snapshot) -> Blocker:
    claim = snapshot.claim
    assert claim is not None
    details = {"worker_id": claim.worker_id, "expires_at": iso(claim.expires_at)}
    if snapshot.state in CLAIMED:
        return Blocker(code="claimed", message=f"{claim.worker_id} holds it.", details=details)
    return Blocker(
        code="cancellation_unconfirmed",
        message=f"Cancellation was requested; {claim.worker_id} has not confirmed it.",
        details=details,
    )


def _waiting(tx: Transaction, snapshot: Snapshot) -> list[Blocker]:
    blockers = []
    if snapshot.dependency_standing is not Standing.MET:
        rows = Dependency.objects.using(tx.alias).filter(dependent=snapshot.pk).exclude(standing=str(Standing.MET))
        unmet = list(rows.order_by("depends_on").values_list("depends_on", flat=True))
        blockers.append(
            Blocker(
                code="dependencies_unmet",
                message=f"It waits for {len(unmet)} other workload(s).",
                details={"dependencies": unmet},
            )
        )
    if snapshot.next_attempt_at is not None and snapshot.next_attempt_at > tx.now:
        blockers.append(
            Blocker(
                code="not_due",
                message="It is not due yet.",
                details={"next_attempt_at": iso(snapshot.next_attempt_at)},
            )
        )
    if snapshot.budget_is_used:
        blockers.append(
            Blocker(
                code="attempt_budget_used",
                message="Its attempts are used up; a claim will dead-letter it.",
                details={"count": snapshot.attempt_count - snapshot.uncounted_releases},
            )
        )
    before, more = _behind(tx, snapshot)
    if before:
        blockers.append(
            Blocker(
                code="behind_others",
                message=f"{'At least ' if more else ''}{before} other workload(s) go first.",
                details={"count": before, "more": more},
            )
        )
    return blockers


def _behind(tx: Transaction, snapshot: Snapshot) -> tuple[int, bool]:
    """Count claimable work of the same application that goes first, and that a worker able to run this could run."""
    due = snapshot.next_attempt_at or tx.now
    lanes = matching_lanes(
        tx.alias, snapshot.capability_snapshot, snapshot.tenant_id, snapshot.application_id, None, tx.now
    )
    keys = [pk for pk, _ in lanes]
    first = (
        Q(priority__gt=snapshot.priority)
        | Q(priority=snapshot.priority, next_attempt_at__lt=due)
        | Q(priority=snapshot.priority, next_attempt_at=due, admitted_id__lt=snapshot.pk)
    )
    others = (
        Workload.objects.using(tx.alias)
        .filter(Q(queued_lane_id__in=keys) | Q(waiting_lane_id__in=keys), first, next_attempt_at__lte=tx.now)
        .filter(Q(due_at__isnull=True) | Q(due_at__gt=tx.now))
        .values_list("pk", flat=True)
    )
    count = len(others[: MOST_BEFORE + 1])
    return min(count, MOST_BEFORE), count > MOST_BEFORE


def _pass(tx: Transaction, snapshot: Snapshot) -> list[Blocker]:
    """Say that no pass runs, where the work needs one to go on."""
    waits_for_pass = (
        deadlines.passed(snapshot, tx.now) is not None
        or (snapshot.claim is not None and snapshot.claim.expires_at <= tx.now)
        or (snapshot.state is WorkloadState.READY and snapshot.dependency_standing is Standing.UNMEETABLE)
    )
    if not waits_for_pass:
        return []
    last = PassRun.objects.using(tx.alias).filter(id=1).values_list("ran_at", flat=True).first()
    if last is not None and tx.now - last < PASS_IS_LATE:
        return []
    said = "No pass has ever run" if last is None else "The last pass ran too long ago"
    return [
        Blocker(
            code="pass_not_running",
            message=f"{said}: start `manage.py workloads_pass`.",
            details={"since": None if last is None else iso(last)},
        )
    ]
