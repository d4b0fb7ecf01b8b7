"""Why a workload is not running now, in the order in which a claim would judge. Section 7."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from django.db import connections
from django.db.models import ExpressionWrapper, F, Q, QuerySet, TextField

from workloads.authority.claims import matching_lanes
from workloads.authority.records import Transaction, alias, is_findable, not_found, peek_queued, read_workloads
from workloads.contract import Blocker, WorkloadState
from workloads.lifecycle import arguments, deadlines
from workloads.lifecycle.canonical import iso
from workloads.lifecycle.signs import PASS_IS_LATE, WORKER_IS_GONE
from workloads.lifecycle.snapshot import Snapshot, Standing
from workloads.lifecycle.states import CLAIMED, FINAL, PARKED
from workloads.models import Dependency, Event, PassRun, SeenWorker, Workload

MOST_BEFORE: Final = 1000
MOST_LOOKED_AT: Final = 10_000
FIRST_WORKERS: Final = 100
MOST_WORKERS: Final = 10_000

Rank = tuple[int, dt.datetime, int]
"""Where work stands in the order of claims: the negated priority, the instant at which it is due, and its key."""


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
    blockers += _without_worker(tx, snapshot)
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


def _without_worker(tx: Transaction, snapshot: Snapshot) -> list[Blocker]:
    """Say that no worker was seen of late that could take it, where the site's workers are seen at all.

    `since` is when such a one was last seen, `missing` what it needs that none of those seen of late has. With no row
    in the registry nothing is said: a site may claim by the verbs themselves, which make none.
    """
    registry = SeenWorker.objects.using(tx.alias)
    here = registry.filter(
        Q(tenant_id=None) | Q(tenant_id=snapshot.tenant_id),
        Q(application_id=None) | Q(application_id=snapshot.application_id),
    ).order_by("-seen_at")
    names = {snapshot.definition_id, f"{snapshot.definition_id}@{snapshot.definition_revision}"}
    missing = set(snapshot.capability_snapshot)
    are_here = do_ask = False
    since = None
    for seen_at, capabilities, definitions in _offers(here):
        asks = definitions is None or not names.isdisjoint(definitions)
        is_of_late = tx.now - seen_at < WORKER_IS_GONE
        if asks and snapshot.capability_snapshot <= capabilities:
            if is_of_late:
                return []
            since = seen_at
            break
        if is_of_late:
            are_here = True
            do_ask = do_ask or asks
            missing -= capabilities
    if since is None and not are_here and not registry.exists():
        return []
    if not are_here:
        said = "No worker that asks for work of its tenant and application was seen in the last five minutes."
    elif not do_ask:
        said = "None of the workers that were seen in the last five minutes asks for its definition."
    else:
        said = "None of the workers that were seen in the last five minutes has all the capabilities that it needs."
    details: dict[str, Any] = {"missing": sorted(missing)} if missing else {}
    if since is not None:
        details["since"] = iso(since)
    return [Blocker(code="no_capable_worker_seen", message=said, details=details)]


def _offers(workers: QuerySet[SeenWorker]) -> Iterator[tuple[dt.datetime, frozenset[str], frozenset[str] | None]]:
    """Yield when each of these was seen, and what it offered: first some, then, if that is not enough, the rest.

    What a hand or a disk has made unreadable offers nothing.
    """
    # As text, since one that can't be read must not hide the others.
    text = {f"{name}_text": ExpressionWrapper(F(name), TextField()) for name in ("capabilities", "definitions")}
    rows = workers.annotate(**text).values_list("seen_at", *text)
    for part in (rows[:FIRST_WORKERS], rows[FIRST_WORKERS:MOST_WORKERS]):
        for seen_at, capabilities, definitions in part:
            with suppress(ValueError, TypeError):
                yield seen_at, _names(capabilities), None if definitions is None else _names(definitions)


@lru_cache(maxsize=1_000)
def _names(text: str) -> frozenset[str]:
    # Most workers offer what many others do.
    return frozenset(json.loads(text))


def _behind(tx: Transaction, snapshot: Snapshot) -> tuple[int, bool]:
    """Count claimable work of the same application that goes first, and that a worker able to run this could run."""
    rank = (-snapshot.priority, snapshot.next_attempt_at or tx.now, snapshot.pk)
    lanes = matching_lanes(tx, snapshot.capability_snapshot, snapshot.tenant_id, snapshot.application_id, None)
    count = _ahead_in_queues(tx, [pk for pk, _ in lanes], rank)
    if count <= MOST_BEFORE:
        count += _ahead_beside(tx, [pk for pk, has_due in lanes if has_due], rank)
    return min(count, MOST_BEFORE), count > MOST_BEFORE


def _ahead_in_queues(tx: Transaction, lanes: Sequence[int], rank: Rank) -> int:
    """Count what stands before this place, up to one more than is told.

    A queue is read from its head, in longer and longer parts, for as long as all of a part goes first: of a million
    that do not, one row is read.
    """
    ahead: Counter[int] = Counter()
    size, open_lanes = 1, list(lanes)
    while open_lanes:
        heads = peek_queued(tx, open_lanes, size, (), tx.now)
        found = Counter(lane for *place, lane in heads if tuple(place) < rank)
        ahead |= found
        if size > MOST_BEFORE or ahead.total() > MOST_BEFORE:
            break
        open_lanes = [lane for lane in open_lanes if found[lane] == size]
        size = min(8 * size, MOST_BEFORE + 1)
    return ahead.total()


def _ahead_beside(tx: Transaction, lanes: Sequence[int], rank: Rank) -> int:
    """Count what has come due and stands before this place, but was not moved into its queue yet.

    That has no order but its time, so a bounded number is looked at. The next claim moves it.
    """
    if not lanes:
        return 0
    due = (
        Workload.objects.using(tx.alias)
        .filter(waiting_lane_id__in=lanes, next_attempt_at__lte=tx.now)
        .order_by("waiting_lane_id", "next_attempt_at")
        .values_list("priority", "next_attempt_at", "pk", "due_at")
    )
    return sum(
        (-priority, at, pk) < rank
        for priority, at, pk, due_at in due[:MOST_LOOKED_AT]
        if due_at is None or due_at > tx.now
    )


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
