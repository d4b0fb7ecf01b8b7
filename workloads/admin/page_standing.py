"""The sentence at the head of a workload's page: where it stands, and what comes next."""

from __future__ import annotations

import datetime as dt
from typing import Final

from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from workloads.admin.display import code, instant, relative
from workloads.admin.page_record import Record
from workloads.admin.page_timeline import deadline_names
from workloads.contract import WorkloadState
from workloads.lifecycle import deadlines
from workloads.lifecycle.snapshot import CurrentClaim, Snapshot, Standing
from workloads.lifecycle.states import FINAL, PARKED, STARTED

S = WorkloadState

AT_REST: Final[dict[str, Promise]] = {
    "attempt_budget_exhausted": gettext_lazy("It came to rest {since}, as its attempts were used up."),
    "failure_kind_not_retryable": gettext_lazy(
        "It came to rest {since}: it failed in a way that its policy does not retry."
    ),
    "effect_unknown_not_retryable": gettext_lazy(
        "It came to rest {since}: nobody knows what its last attempt did, and its policy does not retry that."
    ),
    "deadline_not_retryable": gettext_lazy("It came to rest {since}, as a deadline for all of its attempts passed."),
    "timeout_not_retryable": gettext_lazy("It came to rest {since}: it timed out, and its policy does not retry that."),
    "worker_failure_not_retryable": gettext_lazy(
        "It came to rest {since}: its worker was lost, and its policy does not retry that."
    ),
    "dependency_unsatisfiable": gettext_lazy(
        "It came to rest {since}: work that it depends on ended in another state than the one required."
    ),
}


def budget_text(used: int, most: int) -> str:
    """Return how many attempts count, of how many."""
    return _("%(used)d of %(most)d") % {"used": used, "most": most}


def sentence(record: Record) -> SafeString:
    """Say where the work stands, and what comes next unless somebody does something."""
    snapshot = record.snapshot
    if snapshot is None:
        return format_html("{}", _("Its record is spoilt, so that what comes next can't be told. See below."))
    now = record.now
    if snapshot.state in FINAL:
        return _final(snapshot, now)
    if snapshot.state in PARKED:
        return _parked(record, snapshot)
    passed = deadlines.passed(snapshot, now)
    if passed is not None:
        name, at = passed
        said = _("Its {deadline} passed {when}: the next pass, or a worker's next call, times it out.")
        return format_html(said, deadline=deadline_names()[name], when=relative(at, now))
    if snapshot.state is S.READY:
        return _ready(snapshot, now)
    if snapshot.claim is not None:
        return _held(snapshot, snapshot.claim, now)
    if snapshot.state in (S.CREATED, S.RECOVERING):
        return format_html("{}", _("It stands in a state that work only passes through: its record is spoilt."))
    return format_html("{}", _("A worker should hold it, and none does: its record is spoilt."))


def _attempts(count: int) -> str:
    return ngettext("%(count)d attempt", "%(count)d attempts", count) % {"count": count}


def _final(snapshot: Snapshot, now: dt.datetime) -> SafeString:
    ended = relative(snapshot.finished_at or snapshot.updated_at, now)
    attempts = _attempts(snapshot.attempt_count)
    if snapshot.state is S.SUCCEEDED:
        return format_html(
            _("It is done since {when}, after {attempts}. Nothing more happens."), when=ended, attempts=attempts
        )
    said = _("It was called off {when}, after {attempts}. Nothing more happens.")
    return format_html(said, when=ended, attempts=attempts)


def _parked(record: Record, snapshot: Snapshot) -> SafeString:
    last = record.events[-1] if record.events else None
    evidence = last["evidence"] if last is not None and isinstance(last["evidence"], dict) else {}
    since = relative(snapshot.finished_at or snapshot.updated_at, record.now)
    begun = AT_REST.get(str(evidence.get("decision")))
    if begun is not None:
        said = format_html(str(begun), since=since)
    elif snapshot.state is S.TIMED_OUT and last is not None:
        said = format_html(_("{actor} timed it out {since}."), actor=last.text("actor"), since=since)
    else:
        said = format_html(_("It came to rest {since}."), since=since)
    overall = deadlines.overall_deadline(snapshot)
    if overall is not None and overall <= record.now:
        follows = _(
            "Nothing happens until somebody cancels it, or re-arms it and starts its overall deadline anew, which has "
            "passed."
        )
    else:
        follows = _("Nothing happens until somebody re-arms or cancels it.")
    return format_html("{} {}", said, follows)


def _ready(snapshot: Snapshot, now: dt.datetime) -> SafeString:
    due = snapshot.next_attempt_at or snapshot.created_at
    number, most = snapshot.attempt_count - snapshot.uncounted_releases + 1, snapshot.budget
    if snapshot.dependency_standing is Standing.UNMEETABLE:
        said = _("Work that it depends on has ended in another state than the one required: the next pass gives it up.")
        return format_html("{}", said)
    if snapshot.dependency_standing is not Standing.MET:
        if due > now:
            said = _("It waits for other work, and is not due before {when}.")
            return format_html(said, when=relative(due, now))
        return format_html("{}", _("It waits for other work; once that is as required, a worker may claim it."))
    if snapshot.budget_is_used:
        return format_html("{}", _("Its attempts are used up: the next claim dead-letters it."))
    if due > now:
        said = _("It is scheduled, and due {when}, at {at}: attempt {number} of {most} may then be claimed.")
        return format_html(said, when=relative(due, now), at=instant(due), number=number, most=most)
    said = _("It has waited for a worker since it came due, {when}; what comes next is attempt {number} of {most}.")
    return format_html(said, when=relative(due, now), number=number, most=most)


def _held(snapshot: Snapshot, claim: CurrentClaim, now: dt.datetime) -> SafeString:
    worker, lease = code(claim.worker_id), relative(claim.expires_at, now)
    follows = _after_lease(snapshot)
    if claim.expires_at <= now:
        said = _("{worker} held it, and its lease was over {lease}. The next pass recovers it: {follows}")
        return format_html(said, worker=worker, lease=lease, follows=follows)
    if snapshot.state is S.CANCELLATION_REQUESTED:
        said = _(
            "{worker} has been asked to stop, and has not confirmed it. If its lease ends first, {lease}, {follows}"
        )
    elif snapshot.state in STARTED:
        said = _("{worker} is running it. Unless the lease is extended it ends {lease}, and then {follows}")
    else:
        said = _(
            "{worker} has claimed it and not started yet. Unless the lease is extended it ends {lease}, and then "
            "{follows}"
        )
    return format_html(said, worker=worker, lease=lease, follows=follows)


def _after_lease(snapshot: Snapshot) -> str:
    """Return what a pass does once the lease is over, as the end of a sentence."""
    if snapshot.state is S.CANCELLATION_REQUESTED:
        return _("it is cancelled.")
    if "worker_failure" not in snapshot.retry_policy.retry_on:
        return _("it is dead-lettered, as its policy does not retry lost workers.")
    if snapshot.budget_is_used:
        return _("it is dead-lettered, as its attempts are used up.")
    left = snapshot.budget - (snapshot.attempt_count - snapshot.uncounted_releases)
    said = ngettext(
        "it waits for another worker, with %(count)d attempt left.",
        "it waits for another worker, with %(count)d attempts left.",
        left,
    )
    return said % {"count": left}
