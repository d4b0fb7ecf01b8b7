"""What operators do: cancel, re-arm, time out; and the two reads that everybody needs. Section 7."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from workloads.authority.records import Transaction, alias, committed, is_findable, lock_workload, not_found, transact
from workloads.authority.writes import write
from workloads.errors import invalid
from workloads.lifecycle import arguments, interventions as rules, secrets
from workloads.lifecycle.decision import Decision
from workloads.lifecycle.snapshot import Snapshot
from workloads.models import Workload, WorkloadQuerySet


def get(workload_id: str) -> Workload:
    """Return the workload as committed. An id that names nothing, whatever it is: WORKLOAD_NOT_FOUND. Section 7."""
    found: Workload | None = None
    if is_findable(workload_id):
        found = Workload.objects.using(alias()).filter(workload_id=workload_id).first()
    if found is None:
        raise not_found()
    return found


def list_for(tenant_id: str, application_id: str) -> WorkloadQuerySet:
    """Return the workloads of an application as a QuerySet, newest first. Section 7."""
    arguments.identifier(tenant_id, "tenant_id")
    arguments.identifier(application_id, "application_id")
    rows = Workload.objects.using(alias()).filter(tenant_id=tenant_id, application_id=application_id)
    return rows.newest_first()


def check(actor: str, reason: str, expected_version: int | None = None) -> None:
    """Refuse what no intervention may say: WORKLOAD_INVALID, WORKLOAD_SECRET_MATERIAL."""
    arguments.identifier(actor, "actor")
    arguments.reason(reason)
    secrets.check_text(reason, field="reason")
    if expected_version is not None:
        arguments.integer(expected_version, "expected_version", -(2**63), 2**63 - 1)


def _intervene(
    workload_id: str, now: dt.datetime | None, judge: Callable[[Transaction, Snapshot], Decision | None]
) -> Workload:
    def work(tx: Transaction) -> Workload:
        snapshot = lock_workload(tx, workload_id)
        decision = judge(tx, snapshot)
        if decision is not None:
            write(tx, [decision])
        return committed(tx, snapshot)

    return transact(work, now=now)


def cancel(
    workload_id: str,
    *,
    actor: str,
    reason: str = "",
    expected_version: int | None = None,
    force: bool = False,
    now: dt.datetime | None = None,
) -> Workload:
    """Call the work off. READY and parked: CANCELLED. Claimed: CANCELLATION_REQUESTED, for the worker to confirm.

    Cancelled or requested already: no change. With `force`, held work is CANCELLED at once and its worker fenced out,
    though an effect under way may still happen. Refused, in this order: arguments; WORKLOAD_NOT_FOUND; another version
    than `expected_version` (WORKLOAD_CONFLICT); SUCCEEDED (WORKLOAD_TRANSITION_DENIED). Section 7.
    """
    given = arguments.now(now)
    check(actor, reason, expected_version)
    arguments.boolean(force, "force")
    return _intervene(
        workload_id,
        given,
        lambda tx, snapshot: rules.cancel(
            snapshot, tx.now, actor=actor, reason=reason, expected_version=expected_version, force=force
        ),
    )


def rearm(
    workload_id: str,
    *,
    actor: str,
    reason: str,
    expected_version: int | None = None,
    restart_overall: bool = False,
    now: dt.datetime | None = None,
) -> Workload:
    """Give parked work one more attempt: READY, due now. A reason is required.

    Refused, in this order: arguments, a blank reason among them; WORKLOAD_NOT_FOUND; another version than
    `expected_version` (WORKLOAD_CONFLICT); work that is not parked (WORKLOAD_TRANSITION_DENIED); an overall deadline
    that has passed (WORKLOAD_TIMED_OUT), unless `restart_overall`, which always sets it running anew. Section 7.
    """
    given = arguments.now(now)
    check(actor, reason, expected_version)
    if not reason.strip():
        raise invalid("reason", "must not be blank")
    arguments.boolean(restart_overall, "restart_overall")
    return _intervene(
        workload_id,
        given,
        lambda tx, snapshot: rules.rearm(
            snapshot,
            tx.now,
            actor=actor,
            reason=reason,
            expected_version=expected_version,
            restart_overall=restart_overall,
        ),
    )


def time_out(
    workload_id: str,
    *,
    actor: str,
    reason: str = "",
    expected_version: int | None = None,
    now: dt.datetime | None = None,
) -> Workload:
    """End waiting or claimed work by hand: TIMED_OUT, where it rests until it is re-armed or cancelled.

    Refused, in this order: arguments; WORKLOAD_NOT_FOUND; another version than `expected_version`
    (WORKLOAD_CONFLICT); any other state (WORKLOAD_TRANSITION_DENIED). Section 7.
    """
    given = arguments.now(now)
    check(actor, reason, expected_version)
    return _intervene(
        workload_id,
        given,
        lambda tx, snapshot: rules.time_out(
            snapshot, tx.now, actor=actor, reason=reason, expected_version=expected_version
        ),
    )
