"""The verbs of a workload's life, one step after another, for so many workloads at once: what costs are measured of."""

from __future__ import annotations

import datetime as dt
import itertools
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from workloads import authority
from workloads.contract import Admission, AdmissionRequest, Claim, CompletionReport, RetryPolicy
from workloads.models import Workload

DEFINITION = "bench.nothing"
LEASE_MS = 60_000
DAY_MS = 86_400_000
RUN = secrets.token_hex(4)
_numbers = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One call of the authority. `check` says, outside of what is measured, whether it did what it should."""

    name: str
    call: Callable[[], Any]
    check: Callable[[Any], bool]


def request(**changes: Any) -> AdmissionRequest:
    """Make a request that nobody has made yet."""
    number = next(_numbers)
    values: dict[str, Any] = {
        "tenant_id": "bench",
        "application_id": "bench",
        "requested_by": "bench",
        "idempotency_key": f"life {RUN} {number}",
        "definition_id": DEFINITION,
        "input": {"number": number},
        "retry_policy": RetryPolicy(max_attempts=3, initial_delay_ms=3_600_000, retry_on={"worker_failure"}),
    }
    return AdmissionRequest(**(values | changes))


def take(limit: int, *, now: dt.datetime | None = None, lease_ms: int = LEASE_MS) -> list[Claim]:
    """Claim and start so many."""
    return authority.claim_next(
        worker_id="bench",
        capabilities=(),
        lease_ms=lease_ms,
        limit=limit,
        definitions=[DEFINITION],
        start=True,
        request_id=f"request {RUN} {next(_numbers)}",
        now=now,
    )


def steps(size: int) -> Iterator[Step]:
    """Yield the steps of so many lives. Each must be called before the next is asked for.

    Of one workload alone by the verbs for one, where there are such. Whatever waits before is claimed first, so
    nothing may.
    """
    held: list[Claim] = []

    def keep(claims: list[Claim]) -> list[Claim]:
        held[:] = claims
        return claims

    requests = [request() for _ in range(size)]
    if size == 1:
        yield Step(name="admit", call=lambda: authority.admit(requests[0]), check=lambda got: got.created)
    else:
        yield Step(
            name="admit",
            call=lambda: authority.admit_many(requests),
            check=lambda got: all(isinstance(one, Admission) and one.created for one in got),
        )
    yield Step(name="claim and start", call=lambda: keep(take(size)), check=lambda got: len(got) == size)
    yield Step(
        name="heartbeat",
        call=lambda: authority.heartbeat_many([(claim.fence, LEASE_MS) for claim in held]),
        check=lambda got: all(isinstance(one, Claim) for one in got),
    )
    if size == 1:
        yield Step(
            name="complete",
            call=lambda: authority.complete(held[0].fence, result_id=held[0].attempt_id, output={"done": True}),
            check=lambda got: got is not None,
        )
    else:
        reports = [
            CompletionReport(fence=claim.fence, result_id=claim.attempt_id, output={"done": True}) for claim in held
        ]
        yield Step(
            name="complete",
            call=lambda: authority.complete_many(reports),
            check=lambda got: not any(isinstance(one, Exception) for one in got),
        )


def decision(size: int) -> Step:
    """Return a pass that gives so many workloads back, whose workers have been silent for an hour."""
    past = authority.read_clock() - dt.timedelta(hours=1)
    authority.admit_many([request() for _ in range(size)], now=past)
    left = size
    while left:
        left -= len(take(left, now=past, lease_ms=1_000))
    return Step(name="pass", call=authority.run_pass, check=lambda report: len(report.recovered) == size)


def postponement(size: int) -> Step:
    """Return a pass that finds so many workloads whose leases were renewed, and moves their `due_at` on."""
    past = authority.read_clock() - dt.timedelta(hours=1)
    authority.admit_many([request() for _ in range(size)], now=past)
    held: list[Claim] = []
    while len(held) < size:
        held += take(size - len(held), now=past, lease_ms=1_000)
    authority.heartbeat_many([(claim.fence, DAY_MS) for claim in held], now=past)
    before = stale()
    assert before >= size, before
    return Step(name="pass", call=authority.run_pass, check=lambda report: not report.recovered and not stale())


def stale() -> int:
    """Return of how many workloads `due_at` is over."""
    return Workload.objects.filter(due_at__lte=authority.read_clock()).count()
