"""Endings that a worker reports, recorded once: success with its result, failure with what follows. Section 6."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workloads import conf
from workloads.authority.columns import among
from workloads.authority.dependencies import result_key_of
from workloads.authority.records import (
    ROWS_A_STATEMENT,
    Transaction,
    draw,
    find_attempts,
    is_findable,
    lock_workload,
    lock_workloads,
    not_found,
    transact,
)
from workloads.authority.statements import insert, insert_new, parts
from workloads.authority.writes import write
from workloads.contract import CompletionReport, Effect, FailureOutcome, Fence, ResultRecord
from workloads.errors import WORKLOAD_TOO_LARGE, WorkloadError, invalid
from workloads.fields import CanonicalText
from workloads.lifecycle import arguments, canonical, reports as rules, secrets
from workloads.lifecycle.decision import Decision
from workloads.lifecycle.snapshot import Snapshot
from workloads.models import Result, Tombstone


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A completion whose arguments have been checked."""

    asked: CompletionReport
    report: rules.Report
    output_text: str

    @property
    def workload_id(self) -> str:
        return self.asked.fence.workload_id


def _sized(value: Any, field: str, limit: int) -> str:
    text = canonical.canonical(value, field=field)
    size = canonical.measure(text)
    if size > limit:
        raise WorkloadError(
            WORKLOAD_TOO_LARGE, f"The {field} is too large.", {"field": field, "limit": limit, "size": size}
        )
    secrets.check_patterns(value, field=field)
    return text


def prepare(asked: CompletionReport) -> Prepared:
    """Check a completion's arguments, touching nothing (sections 1, 6 and 9)."""
    if not isinstance(asked, CompletionReport):
        raise invalid("reports", "each must be a CompletionReport")
    fence = arguments.fence_types(asked.fence)
    arguments.identifier(asked.result_id, "result_id")
    limit = conf.limits().max_output_bytes
    output = _sized(asked.output, "output", limit)
    artifacts = _sized(asked.artifacts, "artifacts", limit)
    arguments.integer(asked.schema_version, "schema_version", 1, 2**31 - 1)
    report = rules.Report(
        fence=fence,
        result_id=asked.result_id,
        output_hash=canonical.digest(output),
        artifacts_text=artifacts,
        schema_version=asked.schema_version,
    )
    return Prepared(asked=asked, report=report, output_text=output)


def complete(
    fence: Fence,
    *,
    result_id: str,
    output: Any,
    artifacts: Any = (),
    schema_version: int = 1,
    now: dt.datetime | None = None,
) -> ResultRecord:
    """End the work well: SUCCEEDED, with its one result.

    The very same report again answers with the stored result, whatever has happened since. Refused, in this order:
    arguments (WORKLOAD_INVALID, WORKLOAD_TOO_LARGE, WORKLOAD_SECRET_MATERIAL); WORKLOAD_NOT_FOUND; the result id
    (WORKLOAD_RESULT_CONFLICT, WORKLOAD_RESULT_DUPLICATE); a deadline that passed (recorded, WORKLOAD_TIMED_OUT); the
    fence; WORKLOAD_TRANSITION_DENIED unless RUNNING or CHECKPOINTED. Section 6.
    """
    report = CompletionReport(
        fence=fence, result_id=result_id, output=output, artifacts=artifacts, schema_version=schema_version
    )
    (outcome,) = complete_many([report], now=now)
    if isinstance(outcome, WorkloadError):
        raise outcome
    return outcome


def complete_many(
    reports: Iterable[CompletionReport], *, now: dt.datetime | None = None
) -> list[ResultRecord | WorkloadError]:
    """Record many completions in one transaction, each as `complete` would, in order.

    Returns a ResultRecord or the refusal for each report; none depends on another. Section 5.
    """
    given = arguments.now(now)
    if isinstance(reports, (str, bytes, CompletionReport)) or not isinstance(reports, Iterable):
        raise invalid("reports", "must be a list of completion reports")
    prepared: list[Prepared | WorkloadError] = []
    for report in reports:
        try:
            prepared.append(prepare(report))
        except WorkloadError as refusal:
            prepared.append(refusal)

    def work(tx: Transaction) -> list[ResultRecord | WorkloadError]:
        ids = {p.workload_id for p in prepared if isinstance(p, Prepared)}
        locked = lock_workloads(tx, workload_ids=sorted(i for i in ids if is_findable(i)))
        current = {s.workload_id: s for s in locked}
        is_first = True
        outcomes: dict[int, ResultRecord | WorkloadError] = {}
        run: list[tuple[int, Prepared]] = []
        workloads_seen: set[str] = set()
        results_seen: set[str] = set()
        for index, item in enumerate(prepared):
            if isinstance(item, WorkloadError):
                outcomes[index] = item
                continue
            if item.workload_id in workloads_seen or item.asked.result_id in results_seen:
                outcomes |= _complete_run(tx, run, current if is_first else _again(tx, run, current))
                run, workloads_seen, results_seen = [], set(), set()
                is_first = False
            run.append((index, item))
            workloads_seen.add(item.workload_id)
            results_seen.add(item.asked.result_id)
        outcomes |= _complete_run(tx, run, current if is_first else _again(tx, run, current))
        return [outcomes[index] for index in range(len(prepared))]

    return transact(work, now=given)


def _again(
    tx: Transaction, run: Sequence[tuple[int, Prepared]], current: Mapping[str, Snapshot]
) -> dict[str, Snapshot]:
    """Read a run's workloads anew: the runs before it ended some, and what followed may have changed others."""
    pks = {current[item.workload_id].pk for _, item in run if item.workload_id in current}
    return {snapshot.workload_id: snapshot for snapshot in lock_workloads(tx, pks=sorted(pks))}


def _complete_run(
    tx: Transaction, run: Sequence[tuple[int, Prepared]], current: Mapping[str, Snapshot]
) -> dict[int, ResultRecord | WorkloadError]:
    """Record completions of different workloads under different result ids; `current` is how these stand."""
    outcomes: dict[int, ResultRecord | WorkloadError] = {}
    keys: dict[int, uuid.UUID] = {}
    for index, item in run:
        snapshot = current.get(item.workload_id)
        try:
            if snapshot is None:
                raise not_found()
            secrets.check_keys(item.asked.output, field="output", scopes=snapshot.connection_scopes)
            secrets.check_keys(item.asked.artifacts, field="artifacts", scopes=snapshot.connection_scopes)
            keys[index] = result_key_of(snapshot.tenant_id, item.asked.result_id)
        except WorkloadError as refusal:
            outcomes[index] = refusal
    stored = _stored(tx, keys.values())
    decided: dict[int, tuple[Decision, Prepared]] = {}
    for index, item in run:
        if index in outcomes:
            continue
        try:
            found = stored.get(keys[index])
            if isinstance(found, Tombstone):
                raise rules.duplicate()
            if rules.replays_result(item.report, None if found is None else _as_report(found)):
                assert found is not None
                outcomes[index] = as_record(found)
                continue
            decision = rules.complete(
                current[item.workload_id],
                item.asked.fence,
                tx.now,
                result_id=item.asked.result_id,
                late_is_accepted=conf.limits().accept_late_reports,
                draw=draw(),
            )
        except WorkloadError as refusal:
            outcomes[index] = refusal
            continue
        decided[index] = (decision, item)
        if decision.refusal is not None:
            outcomes[index] = decision.refusal
    rows = {
        keys[index]: _row(decision, item, keys[index])
        for index, (decision, item) in decided.items()
        if decision.refusal is None
    }
    # With the rest, where another's use of a result id since it was looked for does no more than begin this anew.
    together = tx.is_own and tx.connection.vendor == "postgresql"
    lost = set() if together else _insert_results(tx, rows)
    written: list[Decision] = []
    for index, (decision, item) in decided.items():
        if keys[index] in lost:
            outcomes[index] = rules.duplicate()
        else:
            written.append(decision)
            if decision.refusal is None:
                outcomes[index] = _record_of(rows[keys[index]], item)
    write(tx, written, results=[rows[key] for key in sorted(rows)] if together else ())
    return outcomes


def _stored(tx: Transaction, keys: Iterable[uuid.UUID]) -> dict[uuid.UUID, Result | Tombstone]:
    found: dict[uuid.UUID, Result | Tombstone] = {}
    for part in parts(keys, ROWS_A_STATEMENT):
        if not _some_are_known(tx, part):
            continue
        for tombstone in Tombstone.objects.using(tx.alias).filter(result_key__in=part):
            if tombstone.result_key is not None:
                found[tombstone.result_key] = tombstone
        for row in Result.objects.using(tx.alias).filter(result_key__in=part).select_related("record__admitted"):
            found[row.result_key] = row
    return found


def _some_are_known(tx: Transaction, keys: Sequence[uuid.UUID]) -> bool:
    """Tell whether there is a result, or what is left of one, under any of the keys: nearly always there is none."""
    selects, params = [], []
    for model in (Tombstone, Result):
        where, values = among(tx.connection, model, "result_key", keys, "t")
        selects.append(f"EXISTS (SELECT 1 FROM {model._meta.db_table} t WHERE {where})")
        params += values
    ((is_known,),) = tx.execute(f"SELECT {' OR '.join(selects)}", params)
    return bool(is_known)


def _insert_results(tx: Transaction, rows: dict[uuid.UUID, dict[str, Any]]) -> set[uuid.UUID]:
    """Insert results; return the keys that another workload has taken, whose writer this one may have waited for."""
    if not rows:
        return set()
    ordered = [rows[key] for key in sorted(rows)]
    if tx.connection.vendor == "mysql":
        insert(tx, Result, ordered, unless="result_key")
    elif len(insert_new(tx, Result, ordered, unless="result_key", answer=())) == len(rows):
        return set()
    lost: set[uuid.UUID] = set()
    for part in parts(rows, ROWS_A_STATEMENT):
        owners = Result.objects.using(tx.alias).filter(result_key__in=part).values_list("result_key", "record_id")
        lost |= {key for key, owner in owners if owner != rows[key]["record_id"]}
    return lost


def _row(decision: Decision, item: Prepared, key: uuid.UUID) -> dict[str, Any]:
    claim = decision.before.claim
    assert claim is not None
    return {
        "record_id": decision.before.pk,
        "result_key": key,
        "result_id": item.asked.result_id,
        "attempt_id": claim.attempt_id,
        "produced_by": claim.worker_id,
        "output": CanonicalText(item.output_text),
        "output_hash": item.report.output_hash,
        "artifacts": CanonicalText(item.report.artifacts_text),
        "schema_version": item.asked.schema_version,
        "claim_id": claim.claim_id,
        "fencing_token": decision.before.fencing_token,
        "at": decision.now,
    }


def _record_of(row: dict[str, Any], item: Prepared) -> ResultRecord:
    return ResultRecord(
        result_id=row["result_id"],
        attempt_id=row["attempt_id"],
        produced_by=row["produced_by"],
        output=canonical.parse(item.output_text),
        output_hash=row["output_hash"],
        artifacts=canonical.parse(item.report.artifacts_text),
        schema_version=row["schema_version"],
        provenance={"claim_id": row["claim_id"], "fencing_token": row["fencing_token"]},
        at=row["at"],
    )


def as_record(row: Result) -> ResultRecord:
    """Return a stored result as the contract's value."""
    return ResultRecord(
        result_id=row.result_id,
        attempt_id=row.attempt_id,
        produced_by=row.produced_by,
        output=row.output,
        output_hash=row.output_hash,
        artifacts=row.artifacts,
        schema_version=row.schema_version,
        provenance=row.provenance,
        at=row.at,
    )


def _as_report(row: Result) -> rules.Report:
    return rules.Report(
        fence=Fence(
            workload_id=row.record.workload_id,
            claim_id=row.claim_id,
            worker_id=row.produced_by,
            fencing_token=row.fencing_token,
        ),
        result_id=row.result_id,
        output_hash=row.output_hash,
        artifacts_text=canonical.canonical(row.artifacts, field="artifacts"),
        schema_version=row.schema_version,
    )


def fail(
    fence: Fence,
    *,
    kind: str,
    error: str,
    effect: Effect | str | None = None,
    retry_after_ms: int | None = None,
    now: dt.datetime | None = None,
) -> FailureOutcome:
    """Record that an attempt failed, and decide in the same commit what follows.

    `kind` is judged by the retry policy; `error` is text, mended and cut to the site's maximum; `effect` is None,
    `none` or `unknown`; `retry_after_ms` asks for a delay of at least that many milliseconds. The same report again
    answers with the outcome as first answered. Refused, in this order: arguments; WORKLOAD_SECRET_MATERIAL in the
    error; WORKLOAD_NOT_FOUND; a deadline that passed (recorded, WORKLOAD_TIMED_OUT); the fence;
    WORKLOAD_TRANSITION_DENIED unless claimed. Section 6.
    """
    given = arguments.now(now)
    fence = arguments.fence_types(fence)
    arguments.identifier(kind, "kind")
    if not isinstance(error, str):
        raise invalid("error", "must be text")
    secrets.check_text(error, field="error")
    text = arguments.mend_error(error, conf.limits().max_error_chars)
    judged = _effect(effect)
    if retry_after_ms is not None and (
        isinstance(retry_after_ms, bool) or not isinstance(retry_after_ms, int) or retry_after_ms < 0
    ):
        raise invalid("retry_after_ms", "must be an integer that is not negative")

    def work(tx: Transaction) -> FailureOutcome:
        snapshot = lock_workload(tx, fence.workload_id)
        attempt = find_attempts(tx, [(snapshot.pk, fence.claim_id)]).get(snapshot.pk)
        replayed = rules.replayed_failure(attempt, fence, kind=kind, error=text, effect=judged)
        if replayed is not None:
            return replayed
        decision, outcome = rules.fail(
            snapshot,
            fence,
            tx.now,
            kind=kind,
            error=text,
            effect=judged,
            retry_after_ms=retry_after_ms,
            late_is_accepted=conf.limits().accept_late_reports,
            draw=draw(),
        )
        write(tx, [decision])
        if decision.refusal is not None:
            raise decision.refusal
        assert outcome is not None
        return outcome

    return transact(work, now=given)


def _effect(value: Effect | str | None) -> Effect | None:
    if value is None:
        return None
    if isinstance(value, str) and value in {e.value for e in Effect}:
        return Effect(value)
    raise invalid("effect", "must be none, unknown, or left out")
