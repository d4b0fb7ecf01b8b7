"""What an operator may do: cancel, re-arm, time out. Section 7."""

from __future__ import annotations

import datetime as dt
import enum

from workloads.contract import AttemptStatus, WorkloadState
from workloads.errors import WORKLOAD_CONFLICT, WorkloadError
from workloads.lifecycle import deadlines
from workloads.lifecycle.decision import Decision, Draft
from workloads.lifecycle.snapshot import Snapshot
from workloads.lifecycle.states import CLAIMED, HELD, PARKED, denied

S = WorkloadState


class Verb(enum.StrEnum):
    """What an operator may do, to one workload or to many."""

    REARM = "rearm"
    CANCEL = "cancel"
    FORCE_CANCEL = "force_cancel"
    TIME_OUT = "time_out"


def leads_to(verb: Verb, state: str) -> WorkloadState | None:
    """Return the state in which the verb leaves work that it finds in `state`; None where it is refused.

    The same state: nothing changes.
    """
    match verb:
        case Verb.REARM:
            return S.READY if state in PARKED else None
        case Verb.TIME_OUT:
            return S.TIMED_OUT if state == S.READY or state in CLAIMED else None
        case Verb.CANCEL if state in HELD:
            return S.CANCELLATION_REQUESTED
    return S.CANCELLED if state in HELD | PARKED | {S.READY, S.CANCELLED} else None


def decide(
    verb: Verb,
    snapshot: Snapshot,
    now: dt.datetime,
    *,
    actor: str,
    reason: str,
    expected_version: int | None,
    restart_overall: bool = False,
) -> Decision | None:
    """Return what the verb's rule decides. None: nothing changes. `restart_overall` is for re-arming alone."""
    match verb:
        case Verb.REARM:
            return rearm(
                snapshot,
                now,
                actor=actor,
                reason=reason,
                expected_version=expected_version,
                restart_overall=restart_overall,
            )
        case Verb.TIME_OUT:
            return time_out(snapshot, now, actor=actor, reason=reason, expected_version=expected_version)
    force = verb is Verb.FORCE_CANCEL
    return cancel(snapshot, now, actor=actor, reason=reason, expected_version=expected_version, force=force)


def check_version(snapshot: Snapshot, expected_version: int | None) -> None:
    """Refuse with WORKLOAD_CONFLICT an operator who looked at another version than the committed one."""
    if expected_version is not None and expected_version != snapshot.version:
        raise WorkloadError(
            WORKLOAD_CONFLICT, "The workload has moved on since it was looked at.", {"version": snapshot.version}
        )


def _said(reason: str) -> dict[str, str]:
    return {"reason": reason} if reason else {}


def cancel(
    snapshot: Snapshot, now: dt.datetime, *, actor: str, reason: str, expected_version: int | None, force: bool
) -> Decision | None:
    """Call the work off. None: it is cancelled, or asked to be, already.

    READY and parked work is CANCELLED; claimed work is asked to stop, and its worker confirms. With `force` held work
    ends at once, and its worker is fenced out.
    """
    check_version(snapshot, expected_version)
    state = snapshot.state
    if state is S.CANCELLED or (state is S.CANCELLATION_REQUESTED and not force):
        return None
    draft = Draft(snapshot, now)
    said = _said(reason)
    if state in HELD and force:
        said["forced"] = "true"
        if state is not S.CANCELLATION_REQUESTED:
            draft.move(S.CANCELLATION_REQUESTED, actor=actor, **said)
        draft.close_attempt(AttemptStatus.CANCELLED, by="operator")
        draft.move(S.CANCELLED, actor=actor, **said)
    elif state in CLAIMED:
        draft.move(S.CANCELLATION_REQUESTED, actor=actor, **said)
    else:
        draft.set(next_attempt_at=None)
        draft.move(S.CANCELLED, actor=actor, **said)
    return draft.decide()


def rearm(
    snapshot: Snapshot,
    now: dt.datetime,
    *,
    actor: str,
    reason: str,
    expected_version: int | None,
    restart_overall: bool,
) -> Decision:
    """Give parked work one more attempt: READY, due now.

    If the overall deadline has passed, WORKLOAD_TIMED_OUT, unless `restart_overall`, which sets it running anew.
    """
    check_version(snapshot, expected_version)
    if snapshot.state not in PARKED:
        raise denied(snapshot.state, S.READY)
    overall = deadlines.overall_deadline(snapshot)
    if not restart_overall and overall is not None and now >= overall:
        raise deadlines.refusal("overall", overall)
    draft = Draft(snapshot, now)
    draft.set(next_attempt_at=now, operator_retries=snapshot.operator_retries + 1)
    if restart_overall:
        draft.set(overall_from=now)
    draft.move(S.READY, actor=actor, decision="operator_rearm", **_said(reason))
    return draft.decide()


def time_out(
    snapshot: Snapshot, now: dt.datetime, *, actor: str, reason: str, expected_version: int | None
) -> Decision:
    """End waiting or claimed work by hand: TIMED_OUT, where it rests."""
    check_version(snapshot, expected_version)
    if snapshot.state is not S.READY and snapshot.state not in CLAIMED:
        raise denied(snapshot.state, S.TIMED_OUT)
    draft = Draft(snapshot, now)
    error = f"timeout: by {actor}"
    if snapshot.claim is not None:
        draft.close_attempt(AttemptStatus.TIMED_OUT, by="operator", error=error)
    draft.set(last_failure=error, next_attempt_at=None)
    draft.move(S.TIMED_OUT, actor=actor, **_said(reason))
    return draft.decide()
