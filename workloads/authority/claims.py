"""Claims: handing work out under a lease and a fence. Section 5."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from workloads import conf
from workloads.authority import clock
from workloads.authority.dependencies import key_of
from workloads.authority.leases import ask_inputs, contexts
from workloads.authority.records import (
    Transaction,
    draw,
    lock_queued,
    lock_workload,
    lock_workloads,
    make_id,
    peek_queued,
    transact,
)
from workloads.authority.statements import Statements, insert, insert_new
from workloads.authority.writes import promote, write
from workloads.contract import Claim, ExecutionContext
from workloads.errors import WorkloadError, invalid
from workloads.lifecycle import arguments, claims as rules, deadlines
from workloads.lifecycle.decision import Decision
from workloads.lifecycle.snapshot import Snapshot, Standing
from workloads.models import ClaimRequest, Dependency, Lane, Workload

CLAIM: Final = "claim"
CLAIM_NEXT: Final = "claim_next"

Answer = TypeVar("Answer")
Ask = Callable[[Transaction, Sequence[Snapshot]], tuple[str, list[Any]]]
Answers = Callable[[Transaction, Sequence[Snapshot], Sequence[tuple[Any, ...]] | None], list[Answer]]


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
    dead-lettered); WORKLOAD_CAPABILITY_DENIED. Repeated with the same `request_id`, it answers with the same claim
    while that is current. Section 5.
    """
    return _claim(
        workload_id,
        _bare,
        worker_id=worker_id,
        capabilities=capabilities,
        lease_ms=lease_ms,
        request_id=request_id,
        now=now,
    )


def claim_with_context(workload_id: str, **asked: Any) -> ExecutionContext:
    """Claim as `claim` does, with its arguments; the claim is an ExecutionContext: one call is enough to begin."""
    return _claim(workload_id, contexts, **asked)


def _bare(tx: Transaction, held: Sequence[Snapshot], _: Any) -> list[Claim]:
    return [snapshot.as_claim(tx.now) for snapshot in held]


def _claim(
    workload_id: str,
    answers: Answers[Answer],
    *,
    worker_id: str,
    capabilities: Iterable[str],
    lease_ms: int,
    request_id: str | None = None,
    now: dt.datetime | None = None,
) -> Answer:
    given = arguments.now(now)
    arguments.identifier(worker_id, "worker_id")
    able = arguments.identifiers(capabilities, "capabilities")
    arguments.integer(lease_ms, "lease_ms", 1, conf.limits().max_lease_ms)
    if request_id is not None:
        arguments.identifier(request_id, "request_id")

    def work(tx: Transaction) -> Answer:
        snapshot = lock_workload(tx, workload_id)
        request = None
        if request_id is not None:
            request = Request.begin(tx, worker_id, request_id, CLAIM, snapshot.workload_id)
        try:
            decision, after = _judge(tx, snapshot, request)
        except WorkloadError:
            if request is not None:
                request.forget(tx)
            raise
        if decision is not None:
            is_given = request is not None and decision.refusal is None
            write(tx, [decision], beside=request.remember([decision.after]) if request and is_given else None)
        if request is not None and (decision is None or decision.refusal is not None):
            request.forget(tx)
        if decision is not None and decision.refusal is not None:
            raise decision.refusal
        assert after is not None
        (answer,) = answers(tx, [after], None)
        return answer

    def _judge(tx: Transaction, snapshot: Snapshot, request: Request | None) -> tuple[Decision | None, Snapshot | None]:
        if request is not None and not request.is_new:
            late = deadlines.enforce(snapshot, tx.now, draw=draw())
            if late is not None:
                return late, None
            if request.holds(snapshot, tx.now):
                return None, snapshot
            raise rules.not_ready(snapshot.state)
        refused = rules.judge_claim(snapshot, tx.now, capabilities=able, unmet=_unmet(tx, snapshot), draw=draw())
        if refused is not None:
            return refused, None
        decision = rules.claim(
            snapshot, tx.now, worker_id=worker_id, lease_ms=lease_ms, claim_id=make_id(), attempt_id=make_id(tx.now)
        )
        return decision, decision.after

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
    granted: dict[int, str]

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
        rows = ClaimRequest.objects.using(tx.alias).select_for_update().filter(request_key=key)
        stored = None
        is_new = False
        while stored is None and not is_new:
            # Again, if the one that was there has been pruned meanwhile.
            if tx.connection.vendor == "mysql":
                insert(tx, ClaimRequest, [row], unless="request_key")
                stored = rows.first()
                is_new = stored is not None and stored.granted == nonce
            else:
                is_new = bool(insert_new(tx, ClaimRequest, [row], unless="request_key", answer=()))
                stored = None if is_new else rows.first()
        # The insert may have waited for the first call.
        tx.clock = None
        if stored is None or is_new:
            return cls(key=key, is_new=True, granted={})
        if (stored.verb, stored.workload_id) != (verb, workload_id):
            raise invalid("request_id", "was used for another request")
        return cls(key=key, is_new=False, granted=dict(stored.granted))

    def holds(self, snapshot: Snapshot, now: dt.datetime) -> bool:
        """Tell whether a claim that this request was given is the workload's claim still, its lease not over."""
        current = snapshot.claim
        return current is not None and self.granted.get(snapshot.pk) == current.claim_id and current.expires_at > now

    def remember(self, given: Sequence[Snapshot]) -> Callable[[Statements], None] | None:
        """Return what notes the claims that were given, with the rest that is written; None if it is noted already."""
        if not self.is_new:
            return None
        granted = [[s.pk, s.claim.claim_id] for s in given if s.claim is not None]
        return lambda statements: statements.update(ClaimRequest, ("granted",), ("request_key",), [(granted, self.key)])

    def forget(self, tx: Transaction) -> None:
        """Let a request that was given nothing be as if it had not been made: it may be repeated as a new one."""
        if self.is_new:
            ClaimRequest.objects.using(tx.alias).filter(request_key=self.key).delete()


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

    Highest priority first, then longest due, then oldest. `definitions` holds `"id"` or `"id@revision"`; None is any,
    an empty list none. With `start` the work is RUNNING at once. Work that another caller has locked, that is past a
    deadline or over its budget, is passed over: nobody waits, nobody gets the same work. Repeated with the same
    `request_id`, it answers with the claims that it was given, as far as they are current. Section 5.
    """
    return _claim_next(
        _bare,
        None,
        worker_id=worker_id,
        capabilities=capabilities,
        lease_ms=lease_ms,
        limit=limit,
        tenant_id=tenant_id,
        application_id=application_id,
        definitions=definitions,
        start=start,
        request_id=request_id,
        now=now,
    )


def claim_next_with_context(**asked: Any) -> list[ExecutionContext]:
    """Claim as `claim_next` does, with its arguments; each claim is an ExecutionContext."""
    return _claim_next(contexts, ask_inputs, **asked)


def _claim_next(
    answers: Answers[Answer],
    ask: Ask | None,
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
) -> list[Answer]:
    given = arguments.now(now)
    arguments.identifier(worker_id, "worker_id")
    able = arguments.identifiers(capabilities, "capabilities")
    arguments.integer(lease_ms, "lease_ms", 1, conf.limits().max_lease_ms)
    most = arguments.limit(limit)
    if tenant_id is not None:
        arguments.identifier(tenant_id, "tenant_id")
    if application_id is not None:
        arguments.identifier(application_id, "application_id")
    wanted = arguments.definitions(definitions)
    arguments.boolean(start, "start")
    if request_id is not None:
        arguments.identifier(request_id, "request_id")

    def work(tx: Transaction) -> list[Answer]:
        request = None
        if request_id is not None:
            request = Request.begin(tx, worker_id, request_id, CLAIM_NEXT)
            if not request.is_new:
                locked = lock_workloads(tx, pks=sorted(request.granted))
                order = {pk: place for place, pk in enumerate(request.granted)}
                held = [s for s in locked if request.holds(s, tx.now)]
                return answers(tx, sorted(held, key=lambda s: order[s.pk]), None)
        found = _pick(tx, _lanes(tx, able, tenant_id, application_id, wanted), most)
        _sort_again(tx)
        at = tx.now
        # The rows were locked one lane after the other: what holds for the claim is the instant that it gets.
        found = [snapshot for snapshot in found if rules.is_claimable(snapshot, at)]
        decisions = [
            rules.claim(
                snapshot,
                at,
                worker_id=worker_id,
                lease_ms=lease_ms,
                claim_id=make_id(),
                attempt_id=make_id(at),
                start=start,
            )
            for snapshot in found
        ]
        after = [decision.after for decision in decisions]
        if request is not None and not after:
            request.forget(tx)
        inputs = write(
            tx,
            decisions,
            ask=None if ask is None else ask(tx, after),
            beside=None if request is None else request.remember(after),
        )
        return answers(tx, after, inputs if ask is not None else None)

    return transact(work, now=given)


def matching_lanes(
    tx: Transaction,
    able: frozenset[str],
    tenant_id: str | None,
    application_id: str | None,
    definitions: Collection[str] | None,
    *,
    beside: str = "NULL",
) -> list[tuple[int, bool]]:
    """Return the lanes that such a worker may serve and that hold work, each with whether work has come due in it.

    The clock is read with them, unless it has been read before. `beside` is an expression that is evaluated with each.
    """
    if definitions is not None and not definitions:
        return []
    hot, lanes = Workload._meta.db_table, Lane._meta.db_table
    conditions, params = ["1 = 1"], []
    for column, value in (("tenant_id", tenant_id), ("application_id", application_id)):
        if value is not None:
            conditions.append(f"l.{column} = %s")
            params.append(value)
    if definitions is not None:
        named = []
        for definition in definitions:
            name, at, revision = definition.partition("@")
            named.append("l.definition_id = %s" + (" AND l.definition_revision = %s" if at else ""))
            params += [name, revision] if at else [name]
        conditions.append(f"({' OR '.join(named)})")
    # The first by the index of those that are queued or wait, not whether there is one: to answer that, PostgreSQL may
    # read all that are queued in any lane, and MariaDB all that wait in one.
    rows = tx.execute(
        "SELECT l.id, l.capabilities, "
        f"(SELECT w.priority FROM {hot} w WHERE w.queued_lane_id = l.id ORDER BY w.priority DESC LIMIT 1), "
        f"(SELECT w.next_attempt_at FROM {hot} w WHERE w.waiting_lane_id = l.id ORDER BY w.next_attempt_at LIMIT 1), "
        f"{beside}, {clock.sql(tx.connection.vendor)} FROM {lanes} l WHERE {' AND '.join(conditions)}",
        params,
    )
    if rows and tx.clock is None and tx.given is None:
        tx.clock = clock.from_db(rows[-1][-1])
    found = []
    for pk, capabilities, highest, earliest, *_ in rows:
        has_due = earliest is not None and clock.from_db(earliest) <= tx.now
        if (highest is not None or has_due) and frozenset(json.loads(capabilities)) <= able:
            found.append((pk, has_due))
    return found


def _lanes(
    tx: Transaction,
    able: frozenset[str],
    tenant_id: str | None,
    application_id: str | None,
    definitions: Collection[str] | None,
) -> list[int]:
    """Return the lanes to claim from; what has come due in them is moved into their queues first.

    On PostgreSQL queues are read in the order of their index from then on, to the end of the transaction or until
    `_sort_again`. The planner would sort a whole queue for one row where it thinks that there are few in it, as it does
    with a table that it has no statistics of, and after many admissions into a queue that was empty.
    """
    in_order = "set_config('enable_sort', 'off', true)" if tx.connection.vendor == "postgresql" else "NULL"
    lanes = matching_lanes(tx, able, tenant_id, application_id, definitions, beside=in_order)
    promote(tx, [pk for pk, has_due in lanes if has_due], tx.now)
    return [pk for pk, _ in lanes]


def _sort_again(tx: Transaction) -> None:
    """Let a caller's transaction sort again, as its session does by default: the setting was for the claim alone."""
    if not tx.is_own and tx.connection.vendor == "postgresql":
        tx.run("SET LOCAL enable_sort TO DEFAULT")


def _pick(tx: Transaction, lanes: Sequence[int], limit: int) -> list[Snapshot]:
    """Lock up to `limit` claimable workloads of these lanes, and return them in the order of the contract.

    With several lanes, an unlocked look says how many to take from each; what others have locked meanwhile is passed
    over, but never for work of a lower priority than what waits in another lane.
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
        for share in shares:
            got, spoilt = lock_queued(tx, share.lane, share.size, [*taken, *passed_over], as_of, share.floor)
            passed_over.update(spoilt)
            for snapshot in got:
                if rules.is_claimable(snapshot, tx.now):
                    taken[snapshot.pk] = snapshot
                else:
                    passed_over.add(snapshot.pk)
            if len(got) + len(spoilt) == share.size:
                continue
            if share.floor is None:
                open_lanes.remove(share.lane)
            else:
                passed_over.update(share.seen - taken.keys())
    return sorted(taken.values(), key=lambda s: (-s.priority, s.next_attempt_at or as_of, s.pk))


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """How many of the next workloads stand in a lane, which these are, and the best priority that other lanes have
    beside theirs: what is lower has to wait for that.
    """

    lane: int
    size: int
    seen: frozenset[int]
    floor: int | None


def _shares(
    tx: Transaction, lanes: Sequence[int], need: int, without: Collection[int], as_of: dt.datetime
) -> list[Share]:
    """Return the lanes in which the next `need` workloads in the contract's order stand."""
    if len(lanes) == 1:
        return [Share(lane=lanes[0], size=need, seen=frozenset(), floor=None)]
    heads = sorted(peek_queued(tx, lanes, need, without, as_of))
    seen: dict[int, set[int]] = {}
    for _, _, pk, lane in heads[:need]:
        seen.setdefault(lane, set()).add(pk)
    rest: dict[int, int] = {}
    for rank, _, _, lane in heads[need:]:
        rest.setdefault(lane, -rank)
    return [
        Share(
            lane=lane,
            size=len(pks),
            seen=frozenset(pks),
            floor=max((priority for other, priority in rest.items() if other != lane), default=None),
        )
        for lane, pks in seen.items()
    ]
