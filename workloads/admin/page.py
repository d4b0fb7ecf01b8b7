"""What a workload's page shows: where it stands, why it does not run, and its history, in bounded numbers of rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Q
from django.db.models.functions import Left
from django.utils.html import format_html
from django.utils.translation import gettext as _

from workloads import authority
from workloads.admin.display import (
    NOTHING,
    code,
    folded,
    instant,
    listed,
    pairs,
    pretty,
    pretty_head,
    relative,
    word,
)
from workloads.contract import Blocker, RetryPolicy, Timeouts, WorkloadState
from workloads.errors import WorkloadError
from workloads.fields import TIMEOUT_NAMES
from workloads.lifecycle.states import PARKED
from workloads.models import Attempt, Result, Workload

MOST_EVENTS: Final = 200
MOST_ATTEMPTS: Final = 50
MOST_CHECKPOINTS: Final = 20
MOST_STATE_CHARS: Final = 2_000

S = WorkloadState


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One part of the page. A cell is text, which the template escapes, or markup that is escaped already."""

    anchor: str
    title: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    note: str = ""
    empty: str = ""

    @property
    def labelled(self) -> list[list[tuple[str, Any]]]:
        """The rows, each cell with its column's heading."""
        return [list(zip(self.headings, row, strict=True)) for row in self.rows]


def budget(workload: Workload) -> str:
    """Return how many attempts count, of how many that the workload may have."""
    used = workload.attempt_count - workload.uncounted_releases
    most = workload.retry_policy.max_attempts + workload.operator_retries
    return _("%(used)d of %(most)d") % {"used": used, "most": most}


def sentence(workload: Workload, now: dt.datetime) -> str:
    """Say in one sentence where the work stands."""
    state = workload.state
    worker = code(workload.worker_id or "")
    if state == S.READY:
        due = workload.next_attempt_at
        if workload.dependency_standing != "met":
            return _("It waits for other work.")
        if due is not None and due > now:
            return format_html(_("It is scheduled, and due {}."), relative(due, now))
        return format_html(_("It has waited for a worker since it came due, {}."), relative(due or now, now))
    if workload.expires_at is not None:
        lease = relative(workload.expires_at, now)
        if workload.expires_at <= now:
            return format_html(_("{} held it; the lease was over {}, and a pass will recover it."), worker, lease)
        if state == S.CLAIMED:
            return format_html(_("{} has claimed it and not started yet; the lease ends {}."), worker, lease)
        if state == S.CANCELLATION_REQUESTED:
            return format_html(_("Its cancellation was requested; {} is to confirm. The lease ends {}."), worker, lease)
        return format_html(_("{} is running it; the lease ends {}."), worker, lease)
    ended = relative(workload.finished_at or workload.updated_at, now)
    if state == S.SUCCEEDED:
        return format_html(_("It is done, since {}."), ended)
    if state == S.CANCELLED:
        return format_html(_("It was called off {}."), ended)
    if state in PARKED:
        return format_html(_("It came to rest {}, until somebody re-arms or cancels it."), ended)
    return format_html(_("It changed {}."), ended)


def blockers(workload_id: str) -> list[tuple[Blocker, str]]:
    """Return why the work does not run, each with its details as markup."""
    try:
        found = authority.explain(workload_id)
    except WorkloadError:
        # Pruned since the page began; its history below says so.
        return []
    return [(blocker, pairs({name: v for name, v in blocker.details.items() if v is not None})) for blocker in found]


def facts(workload: Workload) -> list[tuple[str, Any]]:
    """Return what was admitted, and the counters, by name."""
    return [
        (_("Workload"), code(workload.workload_id)),
        (_("Definition"), f"{workload.definition_id}@{workload.definition_revision}"),
        (_("Tenant"), workload.tenant_id),
        (_("Application"), workload.application_id),
        (_("Requested by"), workload.requested_by),
        (_("Idempotency key"), workload.idempotency_key),
        (_("Environment"), workload.environment),
        (_("Trigger"), workload.trigger or NOTHING),
        (_("Session"), workload.session_id or NOTHING),
        (_("Capabilities"), listed(workload.capability_snapshot)),
        (_("Connection scopes"), listed(workload.connection_scopes)),
        (_("Priority"), workload.priority),
        (_("Retries"), _policy(workload.retry_policy)),
        (_("Deadlines"), _timeouts(workload.timeouts)),
        (_("Admitted"), instant(workload.created_at)),
        (_("Not before"), instant(workload.not_before)),
        (_("Next attempt"), instant(workload.next_attempt_at)),
        (_("Finished"), instant(workload.finished_at)),
        (_("Attempts used"), budget(workload)),
        (_("Re-armed"), workload.operator_retries),
        (_("Releases"), workload.release_count),
        (_("Fencing token"), workload.fencing_token),
        (_("Version"), workload.version),
        (_("Last failure"), folded(workload.last_failure)),
    ]


def _policy(policy: RetryPolicy) -> str:
    said = _("at most %(most)d attempts; %(backoff)s from %(initial)s ms to %(greatest)s ms; for %(kinds)s") % {
        "most": policy.max_attempts,
        "backoff": policy.backoff.value,
        "initial": policy.initial_delay_ms,
        "greatest": policy.max_delay_ms,
        "kinds": listed(policy.retry_on),
    }
    return _("%(said)s; jitter %(jitter)g") % {"said": said, "jitter": policy.jitter} if policy.jitter else said


def _timeouts(timeouts: Timeouts) -> str:
    given = [(name.removesuffix("_ms"), getattr(timeouts, name)) for name in TIMEOUT_NAMES]
    return ", ".join(f"{name} {ms} ms" for name, ms in given if ms is not None) or NOTHING


def tables(workload: Workload) -> list[Table]:
    """Return the workload's history and relations, each part in at most so many rows."""
    parts = [_attempts(workload), _events(workload), _checkpoints(workload), _dependencies(workload)]
    return [part for part in parts if part is not None]


def _ends(name: str, count: int, most: int) -> Q:
    """Return the condition for the first and the last `most` of `count` rows that are numbered by column `name`."""
    if count <= 2 * most:
        return Q()
    return Q(**{f"{name}__lte": most}) | Q(**{f"{name}__gt": count - most})


def _cut(count: int, most: int) -> str:
    if count <= 2 * most:
        return ""
    return _("The first %(most)d and the last %(most)d of %(count)d are shown.") % {"most": most, "count": count}


def _events(workload: Workload) -> Table:
    count = workload.event_count
    rows = workload.events.filter(_ends("sequence", count, MOST_EVENTS)).order_by("sequence")
    return Table(
        anchor="events",
        title=_("Events"),
        headings=[_("No."), _("At"), _("From"), _("To"), _("By"), _("Evidence")],
        rows=[
            [
                row.sequence,
                instant(row.at),
                word(row.from_state) if row.from_state else NOTHING,
                word(row.to_state),
                row.actor,
                pairs(row.evidence),
            ]
            for row in rows
        ],
        note=_cut(count, MOST_EVENTS),
    )


def _attempts(workload: Workload) -> Table:
    count = workload.attempt_count
    rows = workload.attempts.filter(_ends("number", count, MOST_ATTEMPTS)).order_by("number")
    return Table(
        anchor="attempts",
        title=_("Attempts"),
        headings=[_("No."), _("Status"), _("Worker"), _("Times"), _("Failure"), _("Then")],
        rows=[
            [
                row.number,
                word(row.status),
                row.worker_id,
                _times(row),
                format_html("{} {}", code(row.failure_kind), folded(row.error))
                if row.failure_kind
                else folded(row.error),
                row.outcome_decision or NOTHING,
            ]
            for row in rows
        ],
        note=_cut(count, MOST_ATTEMPTS),
        empty=_("Nobody has claimed it yet."),
    )


def _times(row: Attempt) -> str:
    instants = ((_("claimed"), row.claimed_at), (_("started"), row.started_at), (_("ended"), row.ended_at))
    return pairs({name: instant(at) for name, at in instants if at is not None})


def _checkpoints(workload: Workload) -> Table | None:
    count = workload.checkpoint_count
    if not count:
        return None
    rows: Any = workload.checkpoints.filter(_ends("sequence", count, MOST_CHECKPOINTS)).order_by("sequence")
    # At 64 KiB each, whole states would make megabytes of a page.
    rows = rows.defer("state").annotate(state_head=Left("state", MOST_STATE_CHARS + 1))
    return Table(
        anchor="checkpoints",
        title=_("Checkpoints"),
        headings=[_("No."), _("At"), _("Attempt"), _("Key"), _("State")],
        rows=[
            [
                row.sequence,
                instant(row.at),
                code(row.attempt_id),
                row.key or NOTHING,
                pretty_head(row.state_head, MOST_STATE_CHARS),
            ]
            for row in rows
        ],
        note=_cut(count, MOST_CHECKPOINTS),
    )


def _dependencies(workload: Workload) -> Table | None:
    rows = [[row.depends_on, word(row.required_state), row.standing] for row in workload.dependencies.all()]
    if not rows:
        return None
    return Table(
        anchor="dependencies",
        title=_("Depends on"),
        headings=[_("Workload"), _("Required state"), _("Standing")],
        rows=rows,
    )


def result(workload: Workload) -> Iterable[tuple[str, Any]]:
    """Return the result by name; empty while there is none."""
    row = Result.objects.filter(record=workload.pk).first()
    if row is None:
        return []
    return [
        (_("Output"), pretty(row.output)),
        (_("Artifacts"), pretty(row.artifacts) if row.artifacts else NOTHING),
        (_("Result id"), code(row.result_id)),
        (_("Attempt"), code(row.attempt_id)),
        (_("Produced by"), row.produced_by),
        (_("Fencing token"), row.fencing_token),
        (_("At"), instant(row.at)),
        (_("Output's hash"), code(row.output_hash)),
        (_("Schema version"), row.schema_version),
    ]
