"""What a workload's page shows of its record: what was admitted, how it stands, and its history as tables."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from workloads.admin import page_json, page_record
from workloads.admin.display import NOTHING, instant, listed, pairs, word
from workloads.admin.page_blockers import link
from workloads.admin.page_payloads import inline, withheld
from workloads.admin.page_record import Record, cut_note
from workloads.admin.page_rows import Row
from workloads.admin.page_standing import budget_text
from workloads.admin.page_table import Table
from workloads.admin.page_text import (
    cell,
    identifier,
    json_text,
    listed_by,
    opened,
    prose,
    quoted,
    spoilt,
    visible,
)
from workloads.admin.page_timeline import lasting
from workloads.contract import RetryPolicy, Timeouts
from workloads.fields import TIMEOUT_NAMES, policy_to_json
from workloads.models import Workload

REASON: Final = "reason"

Facts = list[tuple[str, Any]]


def budget(workload: Workload) -> str:
    """Return how many attempts count, of how many that the workload may have."""
    used = workload.attempt_count - workload.uncounted_releases
    return budget_text(used, workload.retry_policy.max_attempts + workload.operator_retries)


def what(record: Record) -> list[tuple[str, Any]]:
    """Return what an operator must know at once, by name."""
    shown = dict(_identity(record))
    names = (_("Definition"), _("Revision"), _("Tenant"), _("Application"), _("Idempotency key"))
    found = [(name, shown[name]) for name in names if name in shown]
    return [*found, (_("Attempts used"), _budget(record)), (_("Re-armed"), record.workload.operator_retries)]


def facts(record: Record) -> list[tuple[str, Facts]]:
    """Return what was admitted, how it stands and by which rules, in groups by name."""
    return [
        (_("Identity"), _identity(record)),
        (_("Counters and instants"), _standing(record)),
        (_("Policies and authority"), _policies(record)),
    ]


def _identity(record: Record) -> Facts:
    cold = record.cold
    if cold is None:
        return []

    def shown(name: str, label: str, parameter: str = "", **others: str) -> tuple[str, Any]:
        text = cold.text(name)
        if not text:
            return label, cell(cold, name, NOTHING)
        return label, cell(cold, name, listed_by(parameter, text, label, **others) if parameter else identifier(text))

    return [
        shown("workload_id", _("Workload")),
        shown("definition_id", _("Definition"), "definition"),
        shown("definition_revision", _("Revision"), "revision", definition=cold.text("definition_id")),
        shown("tenant_id", _("Tenant"), "tenant"),
        shown("application_id", _("Application"), "application"),
        shown("idempotency_key", _("Idempotency key")),
        shown("requested_by", _("Requested by")),
        shown("environment", _("Environment")),
        shown("trigger", _("Trigger")),
        shown("session_id", _("Session")),
        shown("contract_version", _("Contract version")),
    ]


def _standing(record: Record) -> Facts:
    hot, cold, row = record.hot, record.cold, record.workload
    if hot is None:
        return []

    def shown(name: str, label: str) -> tuple[str, Any]:
        value = hot.values[name]
        return label, cell(
            hot, name, instant(value) if isinstance(value, dt.datetime) else NOTHING if value is None else value
        )

    claim: Facts = []
    if row.claim_id or row.worker_id:
        claim = [
            (_("Worker"), cell(hot, "worker_id", listed_by("worker", hot.text("worker_id"), _("Worker")))),
            (_("Claim"), cell(hot, "claim_id", identifier(hot.text("claim_id")))),
            (_("Attempt"), cell(hot, "attempt_id", identifier(hot.text("attempt_id")))),
            shown("claimed_at", _("Claimed")),
            shown("started_at", _("Started")),
            shown("last_heartbeat", _("Last heartbeat")),
            shown("expires_at", _("Lease ends")),
        ]
    admitted: Facts = []
    if cold is not None:
        for name, label in (("created_at", _("Admitted")), ("not_before", _("Not before"))):
            admitted.append((label, cell(cold, name, instant(cold.instant(name)))))
    return [
        (_("Attempts used"), _budget(record)),
        shown("attempt_count", _("Claims")),
        shown("retry_count", _("Retries")),
        shown("release_count", _("Releases")),
        shown("uncounted_releases", _("Releases that did not count")),
        shown("operator_retries", _("Re-armed")),
        shown("priority", _("Priority")),
        shown("fencing_token", _("Fencing token")),
        shown("version", _("Version")),
        *admitted,
        shown("next_attempt_at", _("Next attempt")),
        shown("overall_from", _("Overall deadline runs from")),
        shown("updated_at", _("Last changed")),
        shown("finished_at", _("Finished")),
        *claim,
    ]


def _budget(record: Record) -> Any:
    parts = (record.workload.attempt_count, record.workload.uncounted_releases, record.workload.operator_retries)
    if record.workload.retry_policy is None or None in parts:
        return spoilt("")
    return budget(record.workload)


def _policies(record: Record) -> Facts:
    cold = record.cold
    if cold is None:
        return []
    policy, timeouts = cold["retry_policy"], cold["timeouts"]
    snapshot, scopes = cold["capability_snapshot"] or (), cold["connection_scopes"] or ()
    return [
        (_("Retries"), cell(cold, "retry_policy", "" if policy is None else _policy(policy))),
        (_("Deadlines"), cell(cold, "timeouts", "" if timeouts is None else _timeouts(timeouts))),
        (_("Capabilities"), cell(cold, "capability_snapshot", _set(snapshot))),
        (_("Connection scopes"), cell(cold, "connection_scopes", _set(scopes))),
    ]


def _set(members: Any) -> Any:
    text = listed(visible(member) for member in members)
    if text == NOTHING:
        return text
    return format_html("{}{}", text, opened(_("As JSON"), json_text(page_json.dump(sorted(members)))))


def _policy(policy: RetryPolicy) -> SafeString:
    said = _("at most %(most)d attempts; %(backoff)s from %(initial)s ms to %(greatest)s ms; for %(kinds)s") % {
        "most": policy.max_attempts,
        "backoff": policy.backoff.value,
        "initial": policy.initial_delay_ms,
        "greatest": policy.max_delay_ms,
        "kinds": listed(policy.retry_on),
    }
    said = _("%(said)s; jitter %(jitter)g") % {"said": said, "jitter": policy.jitter} if policy.jitter else said
    return format_html("{}{}", visible(said), opened(_("As JSON"), json_text(page_json.dump(policy_to_json(policy)))))


def _timeouts(timeouts: Timeouts) -> Any:
    given = {name: ms for name in TIMEOUT_NAMES if (ms := getattr(timeouts, name)) is not None}
    if not given:
        return NOTHING
    said = ", ".join(f"{name.removesuffix('_ms')} {ms} ms" for name, ms in given.items())
    return format_html("{}{}", said, opened(_("As JSON"), json_text(page_json.dump(given))))


def history(record: Record) -> list[Table]:
    """Return the workload's history, each part in at most so many rows."""
    parts = [attempts(record), events(record), checkpoints(record)]
    return [part for part in parts if part is not None]


def events(record: Record) -> Table:
    """Return what was decided, by whom, and the words of people."""
    rows, before = [], None
    for row in record.events:
        rows.append(
            [
                cell(row, "sequence", row["sequence"]),
                _when(row, before),
                cell(row, "from_state", word(row.text("from_state")) if row.text("from_state") else NOTHING),
                cell(row, "to_state", word(row.text("to_state"))),
                cell(row, "actor", identifier(row.text("actor"))),
                cell(row, "evidence", _evidence(row["evidence"])),
            ]
        )
        before = row
    return Table(
        anchor="events",
        title=_("Events"),
        headings=[_("No."), _("At"), _("From"), _("To"), _("By"), _("Evidence")],
        rows=rows,
        keys=[f"event-{row.text('sequence')}" for row in record.events],
        note=cut_note(record.workload.event_count, page_record.MOST_EVENTS),
        empty=_("There are none, though every workload has some."),
    )


def _when(row: Row, before: Row | None) -> Any:
    when = row.instant("at")
    then = None if before is None else before.instant("at")
    shown: Any = instant(when)
    if when is not None and then is not None and when != then:
        # A clock that was set back shows as such.
        sign = "+" if when > then else "−"
        shown = format_html('{}<br><span class="workloads-since">{}{}</span>', shown, sign, lasting(when - then))
    return cell(row, "at", shown)


def _evidence(evidence: Any) -> Any:
    if not isinstance(evidence, dict):
        return ""
    said = evidence.get(REASON)
    told = {visible(name): _detail(name, value) for name, value in evidence.items() if name != REASON or not said}
    parts = [quoted(str(said))] if said else []
    if told:
        parts.append(format_html("{}", pairs(told)))
    return format_html_join("", "{}", ((part,) for part in parts)) if parts else NOTHING


def _detail(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if name == "dependency":
        return link(value)
    return identifier(value) if name.endswith("_id") else visible(value)


def attempts(record: Record) -> Table:
    """Return the attempts, each with how it ended and what followed."""
    return Table(
        anchor="attempts",
        title=_("Attempts"),
        headings=[_("No."), _("Status"), _("Worker"), _("Times"), _("Failure"), _("Then")],
        rows=[
            [
                cell(row, "number", row["number"]),
                cell(row, "status", word(row.text("status"))),
                _worker(row),
                _times(record, row),
                _failure(row),
                _outcome(row),
            ]
            for row in record.attempts
        ],
        keys=[f"attempt-{row.text('number')}" for row in record.attempts],
        note=cut_note(record.workload.attempt_count, page_record.MOST_ATTEMPTS),
        empty=_("Nobody has claimed it yet."),
    )


def _times(record: Record, row: Row) -> str:
    shown: dict[str, Any] = {}
    for name, label in (("claimed_at", _("claimed")), ("started_at", _("started")), ("ended_at", _("ended"))):
        if name in row.faults or row.values[name] is not None:
            shown[label] = cell(row, name, instant(row.instant(name)))
    begin, end = row.instant("claimed_at"), row.instant("ended_at")
    if begin is not None and end is not None:
        shown[_("lasted")] = lasting(end - begin)
    elif begin is not None and row.text("attempt_id") == (record.workload.attempt_id or ""):
        shown[_("so far")] = lasting(record.now - begin)
    return pairs(shown)


def _failure(row: Row) -> Any:
    kind = row.text("failure_kind")
    error = cell(row, "error", prose(row.text("error")))
    if not kind:
        return error
    shown = cell(row, "failure_kind", listed_by("failure_kind", kind, _("Failure kind")))
    effect = row.text("effect")
    said = _("effect: %(effect)s") % {"effect": effect} if effect else ""
    return format_html('{} <span class="workloads-since">{}</span>{}', shown, said, error)


def _outcome(row: Row) -> str:
    shown: dict[str, Any] = {}
    if row.text("outcome_decision"):
        shown[_("decision")] = identifier(row.text("outcome_decision"))
    if row.text("outcome_state"):
        shown[_("to")] = word(row.text("outcome_state"))
    if row.instant("outcome_next_attempt_at") or "outcome_next_attempt_at" in row.faults:
        shown[_("due")] = cell(row, "outcome_next_attempt_at", instant(row.instant("outcome_next_attempt_at")))
    if row.text("ended_by"):
        shown[_("ended by")] = row.text("ended_by")
    return pairs(shown)


def _worker(row: Row) -> SafeString:
    worker = cell(row, "worker_id", listed_by("worker", row.text("worker_id"), _("Worker")))
    ids = {
        _("attempt"): cell(row, "attempt_id", identifier(row.text("attempt_id"))),
        _("claim"): cell(row, "claim_id", identifier(row.text("claim_id"))),
        _("fencing token"): cell(row, "fencing_token", row["fencing_token"]),
    }
    return format_html("{}{}", worker, opened(_("Ids"), pairs(ids)))


def checkpoints(record: Record) -> Table | None:
    """Return the first and the last checkpoints; None where there are none."""
    if not record.checkpoints:
        return None
    numbers = {row.text("attempt_id"): row.text("number") for row in record.attempts}
    notes = [cut_note(record.workload.checkpoint_count, page_record.MOST_CHECKPOINTS)]
    headings = [_("No."), _("At"), _("Attempt"), _("Key")]
    rows: list[list[Any]] = [
        [
            cell(row, "sequence", row["sequence"]),
            cell(row, "at", instant(row.instant("at"))),
            cell(row, "attempt_id", _attempt(row.text("attempt_id"), numbers)),
            cell(row, "key", identifier(row.text("key")) if row.text("key") else NOTHING),
        ]
        for row in record.checkpoints
    ]
    if record.reads_payloads:
        headings.append(_("State"))
        for shown, row in zip(rows, record.checkpoints, strict=True):
            what = f"checkpoints/{row.text('sequence')}"
            shown.append(cell(row, "state", inline(record, what, row, "state", page_record.MOST_STATE_CHARS)))
    else:
        notes.append(withheld())
    return Table(
        anchor="checkpoints",
        title=_("Checkpoints"),
        headings=headings,
        rows=rows,
        keys=[f"checkpoint-{row.text('sequence')}" for row in record.checkpoints],
        note=" ".join(filter(None, notes)),
    )


def _attempt(attempt_id: str, numbers: dict[str, str]) -> SafeString:
    number = numbers.get(attempt_id)
    if number is None:
        return identifier(attempt_id)
    return format_html('<a href="#attempt-{}" title="{}">{}</a>', number, attempt_id, number)
