"""Claims: handing work out under a lease and a fence, and what its holder does until it reports. Section 5."""

from __future__ import annotations

import datetime as dt
import functools
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Exists, OuterRef, Q

from workloads import conf
from workloads.authority.dependencies import key_of
from workloads.authority.records import (
    Transaction,
    committed,
    draw,
    find_attempts,
    is_findable,
    lock_queued,
    lock_workload,
    lock_workloads,
    make_id,
    not_found,
    peek_queued,
    transact,
)
from workloads.authority.writes import insert, promote, write
from workloads.contract import CheckpointRecord, Claim, ExecutionContext, Fence
from workloads.errors import WORKLOAD_TOO_LARGE, WorkloadError, invalid
from workloads.fields import CanonicalText
from workloads.lifecycle import arguments, canonical, claims as rules, secrets
from workloads.lifecycle.decision import Decision
from workloads.lifecycle.snapshot import Snapshot, Standing
from workloads.models import Admitted, Checkpoint, ClaimRequest, Dependency, Lane, Workload

CLAIM: Final = "claim"
CLAIM_NEXT: Final = "claim_next"


def _lease(value: int, field: str) -> int:
    return arguments.integer(value, field, 1, conf.limits().max_lease_ms)


def claim(
    workload_id: str,
    *,
    worker_id: str,
    capabilities: Iterable[str],
    lease_ms: int,
    request_id: str | None = None,
    now: dt.datetime | None = None,
) -> Claim:
    """Claim this very workload for `lease_ms` milliseconds.

    Refused, in this order: arguments; WORKLOAD_NOT_FOUND; another use of `request_id` (WORKLOAD_INVALID); a deadline
    that passed (recorded, WORKLOAD_TIMED_OUT); WORKLOAD_NOT_READY; WORKLOAD_ATTEMPTS_EXHAUSTED (the workload is
    dead-lettered); WORKLOAD_CAPABILITY_DENIED. Repeated with the same `request_id`, it answers with the same claim while
    that is current. Section 5.
    """
    given = arguments.now(now)
    arguments.identifier(worker_id, "worker_id")
    able = arguments.identifiers(capabilities, "capabilities")
    _lease(lease_ms, "lease_ms")
    if request_id is not None:
        arguments.identifier(request_id, "request_id")

    def work(tx: Transaction) -> Claim:
        snapshot = lock_workload(tx, workload_id)
        request = None
        if request_id is not None:
            request = Request.begin(tx, worker_id, request_id, CLAIM, snapshot.workload_id)
        try:
            decision, answer = _judge(tx, snapshot, request)
        except WorkloadError:
            if request is not None:
                request.end(tx, [])
            raise
        if decision is not None:
            write(tx, [decision])
        if request is not None and request.is_new:
            request.end(tx, [] if decision is None or decision.refusal else [decision.after])
        if decision is not None and decision.refusal is not None:
            raise decision.refusal
        assert answer is not None
        return answer

    def _judge(
        tx: Transaction, snapshot: Snapshot, request: Request | None
    ) -> tuple[Decision | None, Claim | None]:
        if request is not None and not request.is_new:
            if request.holds(snapshot, tx.now):
                late = rules.deadlines.enforce(snapshot, tx.now, draw=draw())
                return (late, None) if late is not None else (None, snapshot.as_claim(tx.now))
            late = rules.deadlines.enforce(snapshot, tx.now, draw=draw())
            if late is not None:
                return late, None
            raise rules.not_ready(snapshot.state)
        refused = rules.judge_claim(
            snapshot, tx.now, capabilities=able, unmet=_unmet(tx, snapshot), draw=draw()
        )
        if refused is not None:
            return refused, None
        decision = rules.claim(
            snapshot,
            tx.now,
            worker_id=worker_id,
            lease_ms=lease_ms,
            claim_id=make_id(),
            attempt_id=make_id(),
        )
        return decision, decision.after.as_claim(tx.now)

    return transact(work, now=given)


def _unmet(tx: Transaction, snapshot: Snapshot) -> list[str]:
    if snapshot.dependency_standing is Standing.MET:
        return []
    rows = Dependency.objects.using(tx.alias).filter(dependent=snapshot.pk)
    return list(rows.exclude(standing=str(Standing.MET)).values_list("depends_on", flat=True))


@dataclass(slots=True)
class Request:
    """A claim call that named itself. Its row is unique: a repeat waits for the first, and then reads what that got."""

    key: Any
    is_new: bool
    granted: list[tuple[int, str]]

    @classmethod
    def begin(cls, tx: Transaction, worker_id: str, request_id: str, verb: str, workload_id: str = "") -> Request:
        """Take the request id, or find what the call that has it was given; another use is WORKLOAD_INVALID."""
        key = key_of(worker_id, request_id)
        nonce = make_id()
        row = {
            "request_key": key,
            "worker_id": worker_id,
            "request_id": request_id,
            "verb": verb,
            "workload_id": workload_id,
            "granted": nonce,
        }
        insert(tx, ClaimRequest, [row], unless="request_key")
        # The insert may have waited for the first call.
        tx.clock = None
        stored = ClaimRequest.objects.using(tx.alias).select_for_update().get(request_key=key)
        if stored.granted == nonce:
            return cls(key=key, is_new=True, granted=[])
        if (stored.verb, stored.workload_id) != (verb, workload_id):
            raise invalid("request_id", "was used for another request")
        return cls(key=key, is_new=False, granted=[(pk, claim_id) for pk, claim_id in stored.granted])

    def holds(self, snapshot: Snapshot, now: dt.datetime) -> bool:
        """Tell whether a claim that this request was given is the workload's claim still, its lease not over."""
        current = snapshot.claim
        return current is not None and (snapshot.pk, current.claim_id) in self.granted and current.expires_at > now

    def end(self, tx: Transaction, given: Sequence[Snapshot]) -> None:
        """Remember what was given; a request that was given nothing is forgotten, and may be repeated as a new one."""
        if not self.is_new:
            return
        row = ClaimRequest.objects.using(tx.alias).filter(request_key=self.key)
        if given:
            row.update(granted=[[s.pk, s.claim.claim_id] for s in given if s.claim is not None])
        else:
            row.delete()


def claim_next(
    *,
    worker_id: str,
    capabilities: Iterable[str],
    lease_ms: int,
    limit: int = 1,
    tenant_id: str | None = None,
    application_id: str | None = None,
    definitions: Iterable[str] | None = None,
    start: bool = False,
    request_id: str | None = None,
    now: dt.datetime | None = None,
) -> list[Claim]:
    """Claim up to `limit` workloads that this worker can run, each for `lease_ms` milliseconds.

    Highest priority first, then longest due, then oldest. `definitions` holds `"id"` or `"id@revision"`; None is any, an
    empty list none. With `start` the work is RUNNING at once. Work that another caller has locked, that is past a
    deadline or over its budget, is passed over: nobody waits, nobody gets the same work. Repeated with the same
    `request_id`, it answers with the claims that it was given, as far as they are current. Section 5.
    """
    given = arguments.now(now)
    arguments.identifier(worker_id, "worker_id")
    able = arguments.identifiers(capabilities, "capabilities")
    _lease(lease_ms, "lease_ms")
    arguments.limit(limit)
    if tenant_id is not None:
        arguments.identifier(tenant_id, "tenant_id")
    if application_id is not None:
        arguments.identifier(application_id, "application_id")
    wanted = arguments.definitions(definitions)
    arguments.boolean(start, "start")
    if request_id is not None:
        arguments.identifier(request_id, "request_id")

    def work(tx: Transaction) -> list[Claim]:
        request = None
        if request_id is not None:
            request = Request.begin(tx, worker_id, request_id, CLAIM_NEXT)
            if not request.is_new:
                locked = lock_workloads(tx, pks=sorted(pk for pk, _ in request.granted))
                order = {pk: place for place, (pk, _) in enumerate(request.granted)}
                held = [s for s in locked if request.holds(s, tx.now)]
                return [s.as_claim(tx.now) for s in sorted(held, key=lambda s: order[s.pk])]
        found = _pick(tx, _lanes(tx, able, tenant_id, application_id, wanted), limit)
        at = tx.now
        decisions = [
            rules.claim(
                snapshot,
                at,
                worker_id=worker_id,
                lease_ms=lease_ms,
                claim_id=make_id(),
                attempt_id=make_id(),
                start=start,
            )
            for snapshot in found
        ]
        write(tx, decisions)
        if request is not None:
            request.end(tx, [d.after for d in decisions])
        return [d.after.as_claim(at) for d in decisions]

    return transact(work, now=given)


@functools.lru_cache(maxsize=4096)
def _capabilities(text: str) -> frozenset[str]:
    return frozenset(json.loads(text))


def matching_lanes(
    alias: str,
    able: Collection[str],
    tenant_id: str | None,
    application_id: str | None,
    definitions: Collection[str] | None,
    now: dt.datetime,
) -> list[tuple[int, bool, bool]]:
    """Return the lanes that such a worker may serve and that hold work: key, has queued work, has work come due."""
    if definitions is not None and not definitions:
        return []
    lanes = Lane.objects.using(alias)
    if tenant_id is not None:
        lanes = lanes.filter(tenant_id=tenant_id)
    if application_id is not None:
        lanes = lanes.filter(application_id=application_id)
    if definitions is not None:
        named = Q()
        for definition in definitions:
            name, at, revision = definition.partition("@")
            named |= Q(definition_id=name, definition_revision=revision) if at else Q(definition_id=name)
        lanes = lanes.filter(named)
    queued = Workload.objects.using(alias).filter(queued_lane_id=OuterRef("pk"))
    due = Workload.objects.using(alias).filter(waiting_lane_id=OuterRef("pk"), next_attempt_at__lte=now)
    rows = lanes.annotate(has_queued=Exists(queued), has_due=Exists(due)).filter(
        Q(has_queued=True) | Q(has_due=True)
    )
    return [
        (pk, has_queued, has_due)
        for pk, capabilities, has_queued, has_due in rows.values_list("pk", "capabilities", "has_queued", "has_due")
        if capabilities <= able
    ]


def _lanes(
    tx: Transaction,
    able: Collection[str],
    tenant_id: str | None,
    application_id: str | None,
    definitions: Collection[str] | None,
) -> list[int]:
    """Return the lanes to claim from; what has come due in them is moved into their queues first."""
    lanes = matching_lanes(tx.alias, able, tenant_id, application_id, definitions, tx.now)
    promote(tx, [pk for pk, _, has_due in lanes if has_due], tx.now)
    return [pk for pk, _, _ in lanes]


def _pick(tx: Transaction, lanes: Sequence[int], limit: int) -> list[Snapshot]:
    """Lock up to `limit` claimable workloads of these lanes, and return them in the order of the contract.

    With several lanes, an unlocked look says how many to take from each; what others have locked meanwhile is passed
    over, and a lane that has no more for us is left.
    """
    open_lanes = list(lanes)
    taken: dict[int, Snapshot] = {}
    passed_over: set[int] = set()
    as_of = tx.now
    while open_lanes and len(taken) < limit:
        need = limit - len(taken)
        shares = _shares(tx, open_lanes, need, [*taken, *passed_over], as_of)
        if not shares:
            break
        for lane, share in shares.items():
            got = lock_queued(tx, lane, share, [*taken, *passed_over], as_of)
            for snapshot in got:
                if rules.is_claimable(snapshot, tx.now):
                    taken[snapshot.pk] = snapshot
                else:
                    passed_over.add(snapshot.pk)
            if len(got) < share:
                open_lanes.remove(lane)
    return sorted(taken.values(), key=lambda s: (-s.priority, s.next_attempt_at or as_of, s.pk))


def _shares(
    tx: Transaction, lanes: Sequence[int], need: int, without: Collection[int], as_of: dt.datetime
) -> dict[int, int]:
    """Return how many of the next `need` workloads in the contract's order stand in each lane."""
    if len(lanes) == 1:
        return {lanes[0]: need}
    shares: dict[int, int] = {}
    for _, _, _, lane in sorted(peek_queued(tx, lanes, need, without, as_of))[:need]:
        shares[lane] = shares.get(lane, 0) + 1
    return shares


# What the holder does


def _held(
    fence: Fence,
    now: dt.datetime | None,
    judge: Callable[[Transaction, Snapshot], Decision | None],
    answer: Callable[[Transaction, Snapshot], Any],
) -> Any:
    """Lock the fence's workload, judge, write, and answer from the snapshot after it."""

    def work(tx: Transaction) -> Any:
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
            prepared.append((arguments.fence_types(item[0]), _lease(item[1], "extend_ms")))
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
                decision = rules.heartbeat(
                    current[fence.workload_id], fence, tx.now, extend_ms=extend_ms, draw=draw()
                )
            except WorkloadError as refusal:
                outcomes.append(refusal)
                continue
            decisions.append(decision)
            current[fence.workload_id] = decision.after
            outcomes.append(decision.refusal or decision.after.as_claim(tx.now))
        write(tx, decisions)
        return outcomes

    return transact(work, now=given)


def context(
    fence: Fence, *, secret_references: Iterable[str] = (), now: dt.datetime | None = None
) -> ExecutionContext:
    """Return all that the holder needs to run: input, checkpoints of all attempts in order, scopes, lease.

    `secret_references` are the connection scopes whose secrets the worker wants to resolve; one that is not among the
    workload's is WORKLOAD_SCOPE_DENIED. Refused else as `start`, in any held state. Section 5.
    """
    given = arguments.now(now)
    fence = arguments.fence_types(fence)
    wanted = arguments.identifiers(secret_references, "secret_references")

    def answer(tx: Transaction, snapshot: Snapshot) -> ExecutionContext:
        return contexts(tx, [snapshot], wanted)[0]

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


def contexts(
    tx: Transaction, held: Sequence[Snapshot], secret_references: frozenset[str] = frozenset()
) -> list[ExecutionContext]:
    """Return the execution contexts of held workloads, two queries for all of them."""
    pks = [snapshot.pk for snapshot in held]
    read = Admitted.objects.using(tx.alias).filter(id__in=pks).values_list("id", "environment", "input")
    admitted = {pk: (environment, value) for pk, environment, value in read}
    saved: dict[int, list[CheckpointRecord]] = {}
    for row in Checkpoint.objects.using(tx.alias).filter(record__in=pks).order_by("record", "sequence"):
        saved.setdefault(row.record_id, []).append(_record(row))
    answers = []
    for snapshot in held:
        claim = snapshot.as_claim(tx.now)
        environment, value = admitted[snapshot.pk]
        answers.append(
            ExecutionContext(
                **{name: getattr(claim, name) for name in Claim.__dataclass_fields__},
                tenant_id=snapshot.tenant_id,
                application_id=snapshot.application_id,
                environment=environment,
                input=value,
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


def checkpoint(
    fence: Fence, state: Any, *, key: str | None = None, now: dt.datetime | None = None
) -> CheckpointRecord:
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
        row = {
            "record_id": snapshot.pk,
            "sequence": decision.after.checkpoint_count,
            "checkpoint_id": made,
            "attempt_id": snapshot.claim.attempt_id,
            "key": key,
            "state": CanonicalText(text),
            "at": tx.now,
        }
        insert(tx, Checkpoint, [row])
        return CheckpointRecord(
            sequence=row["sequence"],
            checkpoint_id=made,
            attempt_id=row["attempt_id"],
            key=key,
            state=canonical.parse(text),
            at=tx.now,
        )

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
