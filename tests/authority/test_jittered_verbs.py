"""Every call that may end an attempt draws for the delay of the next: none answers with the longest of them always."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from tests.authority.builders import ENDED_AT, WORKER_CALLS, admit, claim, refused, running
from tests.support import at
from workloads import authority
from workloads.authority import claims, leases, recovery, reports
from workloads.contract import Backoff, Fence, RetryPolicy, Timeouts

pytestmark = pytest.mark.django_db

RETRIED = frozenset({"timeout", "worker_failure", "odd"})
HALVED = RetryPolicy(
    backoff=Backoff.FIXED, initial_delay_ms=10_000, max_delay_ms=10_000, jitter=1.0, retry_on=RETRIED, max_attempts=9
)
LATE = at(60_000)


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every draw be a half: the delay is 5 s then."""
    for module in (claims, leases, recovery, reports):
        monkeypatch.setattr(module, "draw", lambda: 0.5)


def assert_delayed(workload_id: str, since: dt.datetime) -> None:
    workload = authority.get(workload_id)
    assert workload.state == "READY"
    assert workload.next_attempt_at == since + dt.timedelta(seconds=5)


@pytest.mark.parametrize("name", [name for name in WORKER_CALLS if name != "confirm_cancel"])
def test_a_call_that_comes_too_late(name: str) -> None:
    fence = running(retry_policy=HALVED, timeouts=Timeouts(execution_ms=1_000))
    with refused("WORKLOAD_TIMED_OUT"):
        WORKER_CALLS[name](fence, LATE)
    assert_delayed(fence.workload_id, LATE)


def test_a_claim_that_is_repeated_too_late() -> None:
    workload_id = admit(retry_policy=HALVED, timeouts=Timeouts(claim_ms=1_000))
    claim(workload_id, request_id="one")
    with refused("WORKLOAD_TIMED_OUT"):
        claim(workload_id, request_id="one", now=LATE)
    assert_delayed(workload_id, LATE)


def test_a_failure() -> None:
    fence = running(retry_policy=HALVED)
    authority.fail(fence, kind="odd", error="", now=ENDED_AT)
    assert_delayed(fence.workload_id, ENDED_AT)


SWEEPS: dict[str, Callable[[Any], Any]] = {
    "enforce_deadlines": lambda now: authority.enforce_deadlines(now=now),
    "recover_expired": lambda now: authority.recover_expired(now=now),
    "run_pass": lambda now: authority.run_pass(now=now),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep(name: str) -> None:
    fences: list[Fence] = []
    if name != "recover_expired":
        fences.append(running("late", retry_policy=HALVED, timeouts=Timeouts(execution_ms=1_000)))
    if name != "enforce_deadlines":
        fences.append(running("lost", retry_policy=HALVED, lease_ms=2_000))
    SWEEPS[name](LATE)
    for fence in fences:
        assert_delayed(fence.workload_id, LATE)
