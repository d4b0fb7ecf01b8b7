"""All that one workload's page reads, in a bounded number of rows, and what in it is spoilt or missing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _, ngettext

from workloads.admin import page_json
from workloads.admin.page_rows import Fault, Row, read
from workloads.contract import WorkloadState
from workloads.lifecycle import arguments
from workloads.lifecycle.snapshot import CurrentClaim, Snapshot, Standing
from workloads.lifecycle.states import HELD, RESTING
from workloads.models import Admitted, Result, Workload

MOST_EVENTS: Final = 100
MOST_ATTEMPTS: Final = 50
MOST_CHECKPOINTS: Final = 20
MOST_MARKS: Final = 500
MOST_STATE_CHARS: Final = 2_000
MOST_PAYLOAD_CHARS: Final = 16_000
MOST_NAMED: Final = 10
MOST_READINGS: Final = 3
LARGEST_KEY: Final = 2**63 - 1

COLD: Final = (
    "workload_id",
    "tenant_id",
    "application_id",
    "requested_by",
    "idempotency_key",
    "contract_version",
    "definition_id",
    "definition_revision",
    "environment",
    "input_hash",
    "trigger",
    "session_id",
    "capability_snapshot",
    "connection_scopes",
    "retry_policy",
    "timeouts",
    "not_before",
    "created_at",
    "lane_id",
)
CLAIM: Final = ("claim_id", "worker_id", "attempt_id", "claimed_at", "started_at", "last_heartbeat", "expires_at")
HOT: Final = (
    "version",
    "state",
    "priority",
    "next_attempt_at",
    "attempt_count",
    "retry_count",
    "release_count",
    "uncounted_releases",
    "operator_retries",
    "fencing_token",
    "last_failure",
    "updated_at",
    "finished_at",
    "overall_from",
    "event_count",
    "checkpoint_count",
    "dependency_standing",
    *CLAIM,
)
EVENT: Final = ("sequence", "from_state", "to_state", "at", "actor", "evidence")
ATTEMPT: Final = (
    "number",
    "attempt_id",
    "claim_id",
    "worker_id",
    "fencing_token",
    "status",
    "claimed_at",
    "started_at",
    "ended_at",
    "ended_by",
    "error",
    "failure_kind",
    "effect",
    "outcome_state",
    "outcome_decision",
    "outcome_next_attempt_at",
)
MARK: Final = ("sequence", "attempt_id", "at")
CHECKPOINT: Final = ("sequence", "checkpoint_id", "attempt_id", "key", "at")
RESULT: Final = (
    "result_id",
    "attempt_id",
    "produced_by",
    "output_hash",
    "schema_version",
    "claim_id",
    "fencing_token",
    "at",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """Something of the record that can't be right: in which row and column, why, and what is stored there."""

    row: str
    column: str
    said: str
    stored: str = ""


@dataclass(kw_only=True, slots=True)
class Record:
    """One workload as its page shows it. `workload` has None where a column can't be read."""

    pk: int
    now: dt.datetime
    reads_payloads: bool
    workload: Workload
    cold: Row | None
    hot: Row | None
    events: list[Row] = field(default_factory=list)
    attempts: list[Row] = field(default_factory=list)
    marks: list[Row] = field(default_factory=list)
    checkpoints: list[Row] = field(default_factory=list)
    result: Row | None = None
    trouble: list[Trouble] = field(default_factory=list)

    @property
    def snapshot(self) -> Snapshot | None:
        """What rules judge; None where the authority can't read the row, and passes it over."""
        if self.hot is None or self.cold is None or self.hot.faults or self.cold.faults.keys() - {"input"}:
            return None
        row = self.workload
        names = set(Snapshot.__dataclass_fields__) - {"pk", "state", "dependency_standing", "claim"}
        claim = {name: getattr(row, name) for name in CLAIM}
        if any(value is None for name, value in claim.items() if name != "started_at"):
            claim = {}
        return Snapshot(
            pk=self.pk,
            state=WorkloadState(row.state),
            dependency_standing=Standing(row.dependency_standing),
            claim=CurrentClaim(**claim) if claim else None,
            **{name: getattr(row, name) for name in names},
        )


def find_key(rows: QuerySet[Any], text: str) -> int | None:
    """Return the key that is meant by a key, or by the id of a workload among `rows`; None where it can be neither."""
    if text.startswith("workload_"):
        found = rows.filter(workload_id=text) if arguments.is_identifier(text) else rows.none()
        return next(iter(found.order_by().values_list("pk", flat=True)[:1]), None)
    key = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
    return key if 0 < key <= LARGEST_KEY else None


def read_record(rows: QuerySet[Any], key: int, now: dt.datetime, *, reads_payloads: bool) -> Record | None:
    """Return the record with this key, of those in `rows`; None where there is none. Payloads are read if they may be.

    What is committed while it is read may make its parts disagree: then it is read anew.
    """
    for _turn in range(MOST_READINGS):
        record = _read_once(rows, key, now, reads_payloads)
        if record is None or not record.trouble or _version(rows, key) == record.workload.version:
            break
    return record


def _version(rows: QuerySet[Any], key: int) -> Any:
    found = read(rows.filter(pk=key).order_by(), ("version",))
    return found[0]["version"] if found else None


def _read_once(rows: QuerySet[Any], key: int, now: dt.datetime, reads_payloads: bool) -> Record | None:
    found = read(rows.filter(pk=key).order_by(), HOT)
    # Where a site shows its people some workloads only, work of which a half is missing can't be told to be theirs.
    if not found and rows.query.where:
        return None
    heads = {"input": MOST_PAYLOAD_CHARS + 1} if reads_payloads else {}
    admitted = read(Admitted.objects.using(rows.db).filter(pk=key), COLD, heads)
    if not found and not admitted:
        return None
    record = Record(
        pk=key,
        now=now,
        reads_payloads=reads_payloads,
        workload=_as_workload(rows.db, key, found, admitted),
        cold=admitted[0] if admitted else None,
        hot=found[0] if found else None,
    )
    _read_history(record, rows.db)
    _tell_trouble(record)
    return record


def _as_workload(using: str, key: int, *parts: list[Row]) -> Workload:
    values: dict[str, Any] = dict.fromkeys((*COLD, *HOT))
    for row in (row for part in parts for row in part):
        values |= row.values
    values |= {"id": key, "admitted_id": key}
    names = [column.attname for column in Workload._meta.concrete_fields if column.attname in values]
    # What is left out (payloads, the grant) stays deferred.
    names = [name for name in names if name not in ("input", "grant")]
    workload: Workload = Workload.from_db(using, names, [values[name] for name in names])
    return workload


def _read_history(record: Record, using: str) -> None:
    row = record.workload

    def ends(model_rows: QuerySet[Any], number: str, count: int | None, most: int) -> QuerySet[Any]:
        chosen = _ends(number, count, most)
        # The slice bounds it where the count is spoilt.
        return model_rows.using(using).filter(chosen).order_by(number)[: 2 * most + 1]

    def of(name: str) -> Any:
        return getattr(row, name).all()

    record.events = read(ends(of("events"), "sequence", row.event_count, MOST_EVENTS), EVENT)
    record.attempts = read(ends(of("attempts"), "number", row.attempt_count, MOST_ATTEMPTS), ATTEMPT)
    if row.checkpoint_count or record.hot is None or "checkpoint_count" in record.hot.faults:
        heads = {"state": MOST_STATE_CHARS + 1} if record.reads_payloads else {}
        count = row.checkpoint_count
        record.marks = read(ends(of("checkpoints"), "sequence", count, MOST_MARKS), MARK)
        record.checkpoints = read(ends(of("checkpoints"), "sequence", count, MOST_CHECKPOINTS), CHECKPOINT, heads)
    most = MOST_PAYLOAD_CHARS + 1
    heads = {"output": most, "artifacts": most} if record.reads_payloads else {}
    found = read(Result.objects.using(using).filter(record=record.pk), RESULT, heads)
    record.result = found[0] if found else None


def _ends(name: str, count: int | None, most: int) -> Q:
    """Return the condition for the first and the last `most` of `count` rows that are numbered by column `name`."""
    if count is None or count <= 2 * most:
        return Q()
    return Q(**{f"{name}__lte": most}) | Q(**{f"{name}__gt": count - most})


def cut_note(count: int | None, most: int) -> str:
    """Say that only the ends of a history are shown, where it is so."""
    if count is None or count <= 2 * most:
        return ""
    return _("The first %(most)d and the last %(most)d of %(count)d are shown.") % {"most": most, "count": count}


def _tell_trouble(record: Record) -> None:
    record.trouble += _missing_rows(record)
    parts: list[tuple[str, Row | None]] = [(_("workload"), record.hot), (_("admitted work"), record.cold)]
    parts += [(_("event %(number)s") % {"number": row.text("sequence")}, row) for row in record.events]
    parts += [(_("attempt %(number)s") % {"number": row.text("number")}, row) for row in record.attempts]
    parts += [(_("checkpoint %(number)s") % {"number": row.text("sequence")}, row) for row in record.checkpoints]
    parts.append((_("result"), record.result))
    for name, row in parts:
        if row is not None:
            record.trouble += [_trouble(name, column, fault) for column, fault in row.faults.items()]
            record.trouble += _unreadable(name, row)
    record.trouble += _missing_values(record)


def _trouble(row: str, column: str, fault: Fault) -> Trouble:
    return Trouble(row=row, column=column, said=fault.said, stored=fault.stored)


def _unreadable(name: str, row: Row) -> Iterable[Trouble]:
    """Yield the payloads that are no JSON, of those that were read whole."""
    for column, asked in row.heads.items():
        text = row.text(column)
        if column not in row.faults and len(text) < asked and (fault := page_json.fault_of(text)):
            yield Trouble(row=name, column=column, said=_("It is no JSON: %(fault)s") % {"fault": fault})


def _missing_rows(record: Record) -> Iterable[Trouble]:
    row = record.workload
    if record.hot is None:
        yield Trouble(row=_("workload"), column="", said=_("The row that says how it stands is missing."))
    if record.cold is None:
        yield Trouble(row=_("admitted work"), column="", said=_("The row that says what was admitted is missing."))
    parts: list[tuple[str, str, Sequence[Row], int | None, int]] = [
        (_("events"), "sequence", record.events, row.event_count, MOST_EVENTS),
        (_("attempts"), "number", record.attempts, row.attempt_count, MOST_ATTEMPTS),
        (_("checkpoints"), "sequence", record.checkpoints, row.checkpoint_count, MOST_CHECKPOINTS),
    ]
    for name, number, rows, count, most in parts:
        if count is not None:
            yield from _gaps(name, number, rows, count, most)


def _gaps(name: str, number: str, rows: Sequence[Row], count: int, most: int) -> Iterable[Trouble]:
    first = range(1, min(count, 2 * most) + 1) if count <= 2 * most else range(1, most + 1)
    last = range(0) if count <= 2 * most else range(count - most + 1, count + 1)
    found = {row.number(number) for row in rows}
    missing = [wanted for part in (first, last) for wanted in part if wanted not in found]
    if missing:
        said = ngettext("Number %(numbers)s is missing.", "Numbers %(numbers)s are missing.", len(missing))
        shown = ", ".join(map(str, missing[:MOST_NAMED])) + (" …" if len(missing) > MOST_NAMED else "")
        yield Trouble(row=name, column=number, said=said % {"numbers": shown})
    if len(rows) > len(first) + len(last):
        said = _("There are more rows than the workload counts: %(count)d.") % {"count": count}
        yield Trouble(row=name, column=number, said=said)


def _missing_values(record: Record) -> Iterable[Trouble]:
    """Yield what must have a value in the state in which the work stands, and has none."""
    row, hot = record.workload, record.hot
    if hot is None or "state" in hot.faults:
        return
    state = WorkloadState(row.state)
    wanted = [name for name in CLAIM if name != "started_at"] if state in HELD else []
    if state in RESTING:
        wanted.append("finished_at")
    for name in wanted:
        if getattr(row, name) is None and name not in hot.faults:
            said = _("It is empty, and must not be in the state %(state)s.") % {"state": row.state}
            yield Trouble(row=_("workload"), column=name, said=said)
    if (state is WorkloadState.SUCCEEDED) != (record.result is not None):
        said = _("It is missing.") if record.result is None else _("There is one, though the work has not succeeded.")
        yield Trouble(row=_("result"), column="", said=said)
