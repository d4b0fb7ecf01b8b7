"""What a random history is drawn from: requests, fences, reports and waits, and how often each comes.

Hypothesis draws one number for each step, and the step is drawn with that number as the seed. Drawn value by value,
half of all steps repeat others of the same history, which Hypothesis takes for interesting.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tests.model.records import identity
from tests.support import at
from workloads.contract import AdmissionRequest, Backoff, Dependency, Effect, RetryPolicy, Timeouts, WorkloadState

Draw = Callable[[Random], Any]

# The last is of another tenant, so that nothing it is named by can see it.
SCOPES = [("t", "app", "alice", f"k{number}") for number in range(5)] + [("other", "app", "alice", "k0")]
REQUESTS = [
    AdmissionRequest(tenant_id=tenant, application_id=app, requested_by=by, idempotency_key=key, definition_id="d")
    for tenant, app, by, key in SCOPES
]
IDS = [identity(request) for request in REQUESTS]
WORKERS = ["w", "W", "w2"]
CAPABILITIES = [frozenset(), frozenset({"gpu"}), frozenset({"gpu", "net"})]
MAX_LEASE_MS = 500
EVERYTHING = frozenset({"timeout", "transient_connection", "worker_failure", "broken"})


def one(*values: Any) -> Draw:
    return lambda random: random.choice(values)


def mostly(usual: Sequence[Any], *rare: Any, weight: int = 4) -> Draw:
    """Draw one of `usual`, seldom one of `rare`: each is `weight` times as likely."""
    return one(*[*usual] * weight, *rare)


def either(*draws: Draw) -> Draw:
    return lambda random: random.choice(draws)(random)


def many(draw: Draw, least: int, most: int) -> Draw:
    return lambda random: [draw(random) for _ in range(random.randint(least, most))]


def both(*draws: Draw) -> Draw:
    return lambda random: tuple(draw(random) for draw in draws)


def build(made: Callable[..., Any], *args: Any, **draws: Draw) -> Draw:
    return lambda random: made(*args, **{name: draw(random) for name, draw in draws.items()})


policies = build(
    RetryPolicy,
    max_attempts=mostly([2, 1, 3], 0),
    backoff=one(*Backoff),
    initial_delay_ms=one(0, 10),
    max_delay_ms=one(15, 5, 1000),
    retry_on=one(EVERYTHING, RetryPolicy().retry_on, frozenset({"timeout", "broken"}), frozenset({"worker_failure"})),
)
timeouts = build(
    Timeouts,
    overall_ms=one(None, 200),
    queue_ms=one(None, None, 60),
    claim_ms=one(None, 20),
    execution_ms=one(None, 50),
    heartbeat_ms=one(None, 30, 15),
)
required = one(WorkloadState.SUCCEEDED, WorkloadState.CANCELLED, WorkloadState.DEAD_LETTER)


def request_for(request: AdmissionRequest) -> Draw:
    """Draw requests of one scope. Few values of each field, so that repeats are often the same and often not."""
    earlier = mostly(IDS[: REQUESTS.index(request)], *IDS, "nothing", weight=8)
    dependencies = many(build(Dependency, workload_id=earlier, required_state=required), 0, 2)
    return either(
        one(request),
        build(
            dataclasses.replace,
            request,
            definition_revision=mostly(["1"], "2"),
            input=mostly([{"n": 1}, {"n": 1.0}], [True]),
            capability_snapshot=mostly(CAPABILITIES[:1], *CAPABILITIES[1:]),
            connection_scopes=mostly([frozenset({"s3"})], frozenset()),
            priority=mostly([0], 1, -1),
            retry_policy=either(one(RetryPolicy()), policies),
            timeouts=either(one(Timeouts()), timeouts),
            dependencies=either(one([]), one([]), dependencies),
            not_before=mostly([None], at(0), at(40), at(-40)),
            trigger=one("", "cron"),
        ),
        build(dataclasses.replace, request, retry_policy=policies, timeouts=timeouts),
    )


def first_requests(random: Random) -> list[AdmissionRequest]:
    return [request_for(request)(random) for request in REQUESTS[: random.randint(2, 6)]]


requests = either(*map(request_for, REQUESTS))
workers = one(*WORKERS)
request_ids = one(None, "r", "R")
leases = mostly([40, 100, MAX_LEASE_MS], 1, 0, MAX_LEASE_MS + 1)
able = mostly(CAPABILITIES[2:], *CAPABILITIES[:2])
numbers = one(*range(12))
ways = mostly(["fit"], "held", *["past"] * 4, "token+1", "token-1", "worker", "claim", "workload", "none", weight=16)
fences = both(ways, numbers)
names = both(mostly(["fit", "fit", "any"], "nothing"), numbers)
reasons = mostly(["asked for"], "", " ")
versions = mostly(["none", "current"], "old")
limits = mostly([None, 1], 2, 0)
outputs = mostly([{"rows": 1}, {"rows": 1.0}], None)
reports = both(fences, one("r1", "r2", "r3", "r4"), outputs, mostly([()], ("a",)))
flags = one(False, True)

# What may come next: how often, the name of the method of `Histories`, and what it is given.
NEXT: list[tuple[int, str, dict[str, Draw]]] = [
    (2, "admit", {"request": requests, "is_old": flags}),
    (1, "admit_many", {"given": many(requests, 0, 3)}),
    (
        3,
        "claim",
        {"name": names, "worker_id": workers, "capabilities": able, "lease_ms": leases, "request_id": request_ids},
    ),
    (
        3,
        "claim_next",
        {
            "worker_id": workers,
            "capabilities": able,
            "lease_ms": leases,
            "limit": mostly([1, 2, 3], 0),
            "tenant_id": mostly([None], "t", "other"),
            "application_id": mostly([None], "app", "App"),
            "definitions": mostly([None], ["d"], ["d@1"], ["d@2", "x"], []),
            "start": flags,
            "request_id": request_ids,
        },
    ),
    (3, "start", {"given": fences}),
    (3, "heartbeat", {"given": many(both(fences, leases), 1, 3), "alone": flags}),
    (1, "context", {"given": fences, "secret_references": mostly([(), ("s3",)], ("s4",), weight=2)}),
    (
        3,
        "checkpoint",
        {"given": fences, "state": one({"page": 1}, {"page": 2}, {"page": 1.0}, None), "key": one(None, "a", "b")},
    ),
    (2, "release", {"given": fences, "reason": reasons}),
    (2, "confirm_cancel", {"given": fences}),
    (3, "complete", {"given": many(reports, 1, 3), "version": mostly([1], 2), "alone": flags}),
    (
        3,
        "fail",
        {
            "given": fences,
            "kind": one("broken", "timeout", "transient_connection"),
            "error": mostly(["it broke"], ""),
            "effect": mostly([None], Effect.NONE, Effect.UNKNOWN, weight=2),
            "retry_after_ms": mostly([None], 30, 10**12),
        },
    ),
    (4, "say_it_again", {"back": one(*range(1, 9)), "changes": flags, "number": numbers}),
    (2, "cancel", {"name": names, "reason": reasons, "version": versions, "force": flags}),
    (
        2,
        "rearm",
        {"name": names, "reason": reasons, "version": versions, "restart_overall": flags, "is_late": flags},
    ),
    (1, "time_out", {"name": names, "reason": reasons, "version": versions}),
    (
        3,
        "look",
        {
            "verb": one("run_pass", "enforce_deadlines", "recover_expired", "dead_letter_unsatisfiable"),
            "limit": limits,
            "is_due": flags,
        },
    ),
    (4, "wait_for", {"number": numbers, "nudge": mostly([0], -1_000, -1, 1, weight=2)}),
    (1, "wait", {"count": mostly([1, 5, 20], -7, -40, weight=2)}),
    (1, "decide", {"accept_late": flags, "max_releases": one(1, 0, 2)}),
    (1, "amend", {"number": numbers}),
]
WEIGHTS = [weight for weight, _, _ in NEXT]


def step(random: Random) -> tuple[int, str, dict[str, Any]]:
    """Return what comes next: after how many milliseconds, a method's name, and what it is given."""
    ((_, name, given),) = random.choices(NEXT, WEIGHTS)
    return random.choice([0, 0, 1, 7]), name, build(dict, **given)(random)
