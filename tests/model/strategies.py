"""What a random history is drawn from: requests, fences, reports and waits, and how often each comes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tests.model.records import identity
from tests.support import at
from workloads.contract import AdmissionRequest, Backoff, Dependency, Effect, RetryPolicy, Timeouts, WorkloadState

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


def mostly(usual: Sequence[Any], *rare: Any, weight: int = 4) -> st.SearchStrategy[Any]:
    """Return one of `usual`, seldom one of `rare`."""
    return st.sampled_from([*usual] * weight + [*rare])


policies = st.builds(
    RetryPolicy,
    max_attempts=mostly([2, 1, 3], 0),
    backoff=st.sampled_from(Backoff),
    initial_delay_ms=st.sampled_from([0, 10]),
    max_delay_ms=st.sampled_from([15, 5, 1000]),
    retry_on=st.sampled_from(
        [
            frozenset({"timeout", "transient_connection", "worker_failure", "broken"}),
            frozenset({"timeout", "transient_connection", "worker_failure"}),
            frozenset({"timeout", "broken"}),
            frozenset({"worker_failure"}),
        ]
    ),
)
timeouts = st.one_of(
    st.just(Timeouts()),
    st.builds(
        Timeouts,
        overall_ms=st.sampled_from([None, 200]),
        queue_ms=st.sampled_from([None, None, 60]),
        claim_ms=st.sampled_from([None, 20]),
        execution_ms=st.sampled_from([None, 50]),
        heartbeat_ms=st.sampled_from([None, 30]),
    ),
)
needed = st.sampled_from([WorkloadState.SUCCEEDED, WorkloadState.CANCELLED, WorkloadState.DEAD_LETTER])


def request_for(request: AdmissionRequest) -> st.SearchStrategy[AdmissionRequest]:
    """Return requests of one scope. Few values of each field, so that repeats are often the same and often not."""
    earlier = mostly(IDS[: REQUESTS.index(request)], *IDS, "nothing", weight=8)
    dependencies = st.lists(st.builds(Dependency, workload_id=earlier, required_state=needed), max_size=2)
    return st.builds(
        dataclasses.replace,
        st.just(request),
        definition_revision=mostly(["1"], "2"),
        input=mostly([{"n": 1}, {"n": 1.0}], [True]),
        capability_snapshot=mostly(CAPABILITIES[:1], *CAPABILITIES[1:]),
        connection_scopes=mostly([frozenset({"s3"})], frozenset()),
        priority=mostly([0], 1, -1),
        retry_policy=st.one_of(st.just(RetryPolicy()), policies),
        timeouts=timeouts,
        dependencies=st.one_of(st.just([]), st.just([]), dependencies),
        not_before=mostly([None], at(0), at(40), at(-40)),
        trigger=st.sampled_from(["", "cron"]),
    )


requests = st.sampled_from(REQUESTS).flatmap(request_for)
workers = st.sampled_from(WORKERS)
request_ids = st.sampled_from([None, "r", "R"])
leases = mostly([40, 100, MAX_LEASE_MS], 1, 0, MAX_LEASE_MS + 1)
able = mostly(CAPABILITIES[2:], *CAPABILITIES[:2])
numbers = st.integers(0, 11)
ways = mostly(["fit"], "held", "past", "past", "token+1", "token-1", "worker", "claim", "workload", "none", weight=16)
fences = st.tuples(ways, numbers)
names = st.tuples(mostly(["fit", "fit", "any"], "nothing"), numbers)
saved = st.sampled_from([{"page": 1}, {"page": 2}, {"page": 1.0}, None])
outputs = mostly([{"rows": 1}, {"rows": 1.0}], None)
reasons = mostly(["asked for"], "", " ")
versions = mostly(["none", "current"], "old")
limits = mostly([None, 1], 2, 0)
reports = st.tuples(fences, st.sampled_from(["r1", "r2", "r3", "r4"]), outputs, mostly([()], ("a",)))
flags = st.booleans()

# What may come next: how often, the name of the method below, and what it is given.
NEXT: list[tuple[int, str, dict[str, st.SearchStrategy[Any]]]] = [
    (2, "admit", {"request": requests, "is_old": flags}),
    (1, "admit_many", {"given": st.lists(requests, max_size=3)}),
    (
        3,
        "claim",
        {
            "name": names,
            "worker_id": workers,
            "capabilities": able,
            "lease_ms": leases,
            "request_id": request_ids,
        },
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
    (3, "heartbeat", {"given": st.lists(st.tuples(fences, leases), min_size=1, max_size=3), "alone": flags}),
    (1, "context", {"given": fences, "secret_references": mostly([(), ("s3",)], ("s4",), weight=2)}),
    (3, "checkpoint", {"given": fences, "state": saved, "key": st.sampled_from([None, "a", "b"])}),
    (2, "release", {"given": fences, "reason": reasons}),
    (2, "confirm_cancel", {"given": fences}),
    (
        3,
        "complete",
        {
            "given": st.lists(reports, min_size=1, max_size=3),
            "version": mostly([1], 2),
            "alone": flags,
        },
    ),
    (
        3,
        "fail",
        {
            "given": fences,
            "kind": st.sampled_from(["broken", "timeout", "transient_connection"]),
            "error": mostly(["it broke"], ""),
            "effect": mostly([None], Effect.NONE, Effect.UNKNOWN, weight=2),
            "retry_after_ms": mostly([None], 30, 10**12),
        },
    ),
    (3, "say_it_again", {"back": st.integers(1, 8)}),
    (2, "cancel", {"name": names, "reason": reasons, "version": versions, "force": flags}),
    (2, "rearm", {"name": names, "reason": reasons, "version": versions, "restart_overall": flags}),
    (1, "time_out", {"name": names, "reason": reasons, "version": versions}),
    (
        3,
        "look",
        {
            "verb": st.sampled_from(["run_pass", "enforce_deadlines", "recover_expired", "dead_letter_unsatisfiable"]),
            "limit": limits,
            "is_due": flags,
        },
    ),
    (4, "wait_for", {"number": numbers, "nudge": mostly([0], -1_000, -1, 1, weight=2)}),
    (1, "wait", {"count": mostly([1, 5, 20], -7, -40, weight=2)}),
    (1, "decide", {"accept_late": flags, "max_releases": st.sampled_from([1, 0, 2])}),
    (1, "amend", {"number": numbers}),
]
_CHOICES = [index for index, (weight, _, _) in enumerate(NEXT) for _ in range(weight)]


def _step(index: int) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    _, name, given = NEXT[index]
    return st.tuples(st.just(name), st.fixed_dictionaries(given))


steps = st.sampled_from(_CHOICES).flatmap(_step)
first_requests = st.tuples(*map(request_for, REQUESTS), st.integers(2, 6)).map(lambda drawn: [*drawn[: drawn[-1]]])
