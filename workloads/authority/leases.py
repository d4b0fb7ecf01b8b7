"""What the holder of a claim does until it reports: start, heartbeat, read, checkpoint, give back. Section 5."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from workloads import conf
from workloads.authority.columns import among
from workloads.authority.records import (
    Transaction,
    committed,
    draw,
    find_attempts,
    is_findable,
    lock_workload,
    lock_workloads,
    make_id,
    not_found,
    transact,
)
from workloads.authority.statements import insert
from workloads.authority.writes import write
from workloads.contract import CheckpointRecord, Claim, ExecutionContext, Fence
from workloads.errors import WORKLOAD_TOO_LARGE, WorkloadError, invalid
from workloads.fields import CanonicalText
from workloads.lifecycle import arguments, canonical, claims as rules, secrets
from workloads.lifecycle.decision import Decision
from workloads.lifecycle.snapshot import Snapshot
from workloads.models import Admitted, Checkpoint, Workload

Answer = TypeVar("Answer")


def _held(
    fence: Fence,
    now: dt.datetime | None,
    judge: Callable[[Transaction, Snapshot], Decision | None],
    answer: Callable[[Transaction, Snapshot], Answer],
) -> Answer:
    """Lock the fence's workload, judge, write, and answer from the snapshot after it."""

    def work(tx: Transaction) -> Answer:
        snapshot = lock_workload(tx, fence.workload_id)
        decision = judge(tx, snapshot)
        if decision is None:
            return answer(tx, snapshot)
        write(tx, [decision])
        if decision.refusal is not None:
            raise decision.refusal
        return answer(tx, decision.after)

    return transact(work, now=now)


def start(fence: Fence, *, now: dt.datetime | None = None) -> Claim:
    """Let claimed work run: RUNNING. Repeated by the claim that started it, nothing changes.

    Refused: arguments; WORKLOAD_NOT_FOUND; a deadline that passed (recorded, WORKLOAD_TIMED_OUT); the fence
    (WORKLOAD_CLAIM_INVALID, WORKLOAD_STALE_FENCE, WORKLOAD_LEASE_EXPIRED); WORKLOAD_TRANSITION_DENIED. Section 5.
    """
    given = arguments.now(now)
    fence = arguments.fence_types(fence)
    return _held(
        fence,
        given,
        lambda tx, snapshot: rules.start(snapshot, fence, tx.now, draw=draw()),
        lambda tx, after: after.as_claim(tx.now),
    )


def heartbeat(fence: Fence, *, extend_ms: int, now: dt.datetime | None = None) -> Claim:
    """Keep the lease for `extend_ms` milliseconds from now, or until it would have ended, if that is later.

    The Claim says whether cancellation was requested. Refused as `start`, in any held state. Section 5.
    """
    (outcome,) = heartbeat_many([(fence, extend_ms)], now=now)
    if isinstance(outcome, WorkloadError):
        raise outcome
    return outcome


def heartbeat_many(
    items: Iterable[tuple[Fence, int]], *, now: dt.datetime | None = None
) -> list[Claim | WorkloadError]:
    """Keep many leases in one transaction, each item (fence, extend_ms) as `heartbeat` would, in order.

    Returns a Claim or the refusal for each item; none depends on another. Section 5.
    """
    given = arguments.now(now)
    if isinstance(items, (str, bytes)) or not isinstance(items, Iterable):
        raise invalid("items", "must be a list of pairs of fence and extend_ms")
    prepared: list[tuple[Fence, int] | WorkloadError] = []
    for item in items:
        try:
            if not isinstance(item, (tuple, list)) or len(item) != 2:
                raise invalid("items", "each must be a pair of fence and extend_ms")
            prepared.append(
                (arguments.fence_types(item[0]), arguments.integer(item[1], "extend_ms", 1, conf.limits().max_lease_ms))
            )
        except WorkloadError as refusal:
            prepared.append(refusal)

    def work(tx: Transaction) -> list[Claim | WorkloadError]:
        ids = {p[0].workload_id for p in prepared if not isinstance(p, WorkloadError)}
        locked = lock_workloads(tx, workload_ids=sorted(i for i in ids if is_findable(i)))
        current = {s.workload_id: s for s in locked}
        decisions: list[Decision] = []
        outcomes: list[Claim | WorkloadError] = []
        for item in prepared:
            if isinstance(item, WorkloadError):
                outcomes.append(item)
                continue
            fence, extend_ms = item
            try:
                if fence.workload_id not in current:
                    raise not_found()
                decision = rules.heartbeat(current[fence.workload_id], fence, tx.now, extend_ms=extend_ms, draw=draw())
            except WorkloadError as refusal:
                outcomes.append(refusal)
                continue
            decisions.append(decision)
            current[fence.workload_id] = decision.after
            outcomes.append(decision.refusal or decision.after.as_claim(tx.now))
        write(tx, decisions)
        return outcomes

    return transact(work, now=given)


def context(fence: Fence, *, secret_references: Iterable[str] = (), now: dt.datetime | None = None) -> ExecutionContext:
    """Return all that the holder needs to run: input, checkpoints of all attempts in order, scopes, lease.

    `secret_references` are the connection scopes whose secrets the worker wants to resolve; one that is not among the
    workload's is WORKLOAD_SCOPE_DENIED. Refused else as `start`, in any held state. Section 5.
    """
    given = arguments.now(now)
    fence = arguments.fence_types(fence)
    wanted = arguments.identifiers(secret_references, "secret_references")

    def answer(tx: Transaction, snapshot: Snapshot) -> ExecutionContext:
        return contexts(tx, [snapshot], secret_references=wanted)[0]

    return _held(
        fence,
        given,
        lambda tx, snapshot: rules.context(
            snapshot,
            fence,
            tx.now,
            secret_references=wanted,
            connection_scopes=snapshot.connection_scopes,
            draw=draw(),
        ),
        answer,
    )


def ask_inputs(tx: Transaction, held: Sequence[Snapshot]) -> tuple[str, list[Any]]:
    """Return the query for what `contexts` needs of what was admitted."""
    where, params = among(tx.connection, Admitted, "id", [snapshot.pk for snapshot in held], "a")
    return f"SELECT a.id, a.environment, a.input FROM {Admitted._meta.db_table} a WHERE {where}", params


def contexts(
    tx: Transaction,
    held: Sequence[Snapshot],
    inputs: Sequence[tuple[Any, ...]] | None = None,
    *,
    secret_references: frozenset[str] = frozenset(),
) -> list[ExecutionContext]:
    """Return the execution contexts of held workloads; `inputs` is what `ask_inputs` has found, if it was asked."""
    if not held:
        return []
    if inputs is None:
        inputs = tx.execute(*ask_inputs(tx, held))
    admitted = {pk: (environment, text) for pk, environment, text in inputs}
    saved: dict[int, list[CheckpointRecord]] = {}
    with_checkpoints = [snapshot.pk for snapshot in held if snapshot.checkpoint_count]
    if with_checkpoints:
        rows = Checkpoint.objects.using(tx.alias).filter(record__in=with_checkpoints)
        for row in rows.order_by("sequence"):
            saved.setdefault(row.record_id, []).append(_record(row))
    answers = []
    for snapshot in held:
        environment, text = admitted[snapshot.pk]
        answers.append(
            ExecutionContext(
                **snapshot.claim_values(tx.now),
                tenant_id=snapshot.tenant_id,
                application_id=snapshot.application_id,
                environment=environment,
                input=canonical.parse(text),
                checkpoints=tuple(saved.get(snapshot.pk, ())),
                capability_snapshot=snapshot.capability_snapshot,
                connection_scopes=snapshot.connection_scopes,
                secret_references=secret_references,
            )
        )
    return answers


def _record(row: Checkpoint) -> CheckpointRecord:
    return CheckpointRecord(
        sequence=row.sequence,
        checkpoint_id=row.checkpoint_id,
        attempt_id=row.attempt_id,
        key=row.key,
        state=row.state,
        at=row.at,
    )


def checkpoint(fence: Fence, state: Any, *, key: str | None = None, now: dt.datetime | None = None) -> CheckpointRecord:
    """Save progress, a JSON value, for this attempt and later ones: CHECKPOINTED.

    With a `key` the call may be repeated: the same state under a key that this attempt has used answers the stored
    record, another is WORKLOAD_CHECKPOINT_CONFLICT. WORKLOAD_TOO_LARGE past the site's size or number of checkpoints;
    WORKLOAD_SECRET_MATERIAL for secrets in it. Refused else as `start`. Section 5.
    """
    given = arguments.now(now)
    fence = arguments.fence_types(fence)
    text = canonical.canonical(state, field="state")
    size, limits = canonical.measure(text), conf.limits()
    if size > limits.max_checkpoint_bytes:
        raise WorkloadError(
            WORKLOAD_TOO_LARGE,
            "The checkpoint is too large.",
            {"field": "state", "limit": limits.max_checkpoint_bytes, "size": size},
        )
    secrets.check_patterns(state, field="state")
    if key is not None:
        arguments.identifier(key, "key")

    def work(tx: Transaction) -> CheckpointRecord:
        snapshot = lock_workload(tx, fence.workload_id)
        secrets.check_keys(state, field="state", scopes=snapshot.connection_scopes)
        known = None
        if key is not None and snapshot.claim is not None:
            rows = Checkpoint.objects.using(tx.alias).filter(record=snapshot.pk, key=key)
            known = rows.filter(attempt_id=snapshot.claim.attempt_id).first()
        made = make_id()
        decision = rules.checkpoint(
            snapshot,
            fence,
            tx.now,
            checkpoint_id=made,
            known=None if known is None else canonical.canonical(known.state, field="state"),
            state_text=text,
            limit=limits.max_checkpoints,
            draw=draw(),
        )
        if decision is None:
            assert known is not None
            return _record(known)
        write(tx, [decision])
        if decision.refusal is not None:
            raise decision.refusal
        assert snapshot.claim is not None
        record = CheckpointRecord(
            sequence=decision.after.checkpoint_count,
            checkpoint_id=made,
            attempt_id=snapshot.claim.attempt_id,
            key=key,
            state=canonical.parse(text),
            at=decision.now,
        )
        row = {name: getattr(record, name) for name in CheckpointRecord.__dataclass_fields__}
        insert(tx, Checkpoint, [row | {"record_id": snapshot.pk, "state": CanonicalText(text)}])
        return record

    return transact(work, now=given)


def release(fence: Fence, *, reason: str = "", now: dt.datetime | None = None) -> Workload:
    """Give the work back, having caused no effect that a later attempt may not repeat: READY, due at once.

    Not counted against the budget up to the site's MAX_RELEASES; past that, and with the budget used up, DEAD_LETTER.
    Repeated by the fence of the attempt that it ended: the workload as it then stands. Refused else as `start`.
    Section 5.
    """
    given = arguments.now(now)
    fence = arguments.fence_types(fence)
    arguments.reason(reason)
    secrets.check_text(reason, field="reason")

    def judge(tx: Transaction, snapshot: Snapshot) -> Decision | None:
        return rules.release(
            snapshot,
            fence,
            tx.now,
            attempt=find_attempts(tx, [(snapshot.pk, fence.claim_id)]).get(snapshot.pk),
            reason=reason,
            max_releases=conf.limits().max_releases,
            draw=draw(),
        )

    return _held(fence, given, judge, committed)


def confirm_cancel(fence: Fence, *, now: dt.datetime | None = None) -> Workload:
    """End work whose cancellation was requested: CANCELLED.

    Repeated by the fence of the attempt that it ended: the workload as it then stands. Refused: arguments;
    WORKLOAD_NOT_FOUND; the fence; WORKLOAD_TRANSITION_DENIED in any other state. Section 5.
    """
    given = arguments.now(now)
    fence = arguments.fence_types(fence)

    def judge(tx: Transaction, snapshot: Snapshot) -> Decision | None:
        return rules.confirm_cancel(
            snapshot,
            fence,
            tx.now,
            attempt=find_attempts(tx, [(snapshot.pk, fence.claim_id)]).get(snapshot.pk),
            late_is_accepted=conf.limits().accept_late_reports,
        )

    return _held(fence, given, judge, committed)
