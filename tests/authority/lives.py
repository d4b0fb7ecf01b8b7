"""Whole lives of workloads, lived through the verbs alone: a varied population to read, list, verify or export.

Each life takes a key and returns the workload's id. `live_all` lives them all; at `ALL_LIVED` nothing more is due but
what a life leaves due on purpose. A life's instants lie between T0 and then, and it moves no other life's workload,
except that `given_up` is lived by a pass, which parks any `unmeetable` one that stands already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.authority.builders import LEASE_MS, S, admit, bring, claim, id_of, running
from tests.support import at
from workloads import authority
from workloads.contract import Backoff, Dependency, Effect, Fence, RetryPolicy, Timeouts

ALL_LIVED = at(300_000)
FAR = at(30 * 86_400_000)
SHORT_MS = 1_000

Life = Callable[[str], str]
LIVES: dict[str, Life] = {}

QUICK = RetryPolicy(max_attempts=3, backoff=Backoff.FIXED, initial_delay_ms=1_000, retry_on={"flaky", "timeout"})


def life(function: Life) -> Life:
    """Count a function among the lives, under its name."""
    LIVES[function.__name__] = function
    return function


def live_all(prefix: str = "") -> dict[str, str]:
    """Live every life, and return the ids by the names of the lives."""
    return {name: live(f"{prefix}{name}") for name, live in LIVES.items()}


def begin(workload_id: str, now: Any, *, lease_ms: int = LEASE_MS, **changes: Any) -> Fence:
    """Claim and start work at one instant; return the fence."""
    fence = claim(workload_id, now=now, lease_ms=lease_ms, **changes).fence
    authority.start(fence, now=now)
    return fence


def fail(fence: Fence, now: Any, *, kind: str = "flaky", effect: Any = Effect.NONE) -> None:
    """Report a failure."""
    authority.fail(fence, kind=kind, error="it did not work", effect=effect, now=now)


def finish(fence: Fence, now: Any) -> None:
    """Report success."""
    output = {"done": True, "text": "é", "numbers": [1, 2.5, 10**20]}
    authority.complete(
        fence, result_id=f"result of {fence.workload_id}", output=output, artifacts=["a://b"], schema_version=2, now=now
    )


@life
def fresh(key: str) -> str:
    """READY, and due."""
    return admit(key, input={"amount": 10, "of": ["é", None, 1.5]}, trigger="cron", session_id="s", priority=3)


@life
def scheduled(key: str) -> str:
    """READY, beside its queue for a month."""
    return admit(key, not_before=FAR)


@life
def come_due(key: str) -> str:
    """READY; its hour has come, and nobody has moved it into its queue."""
    return admit(key, not_before=at(10_000))


@life
def claimed(key: str) -> str:
    """CLAIMED."""
    return bring(S.CLAIMED, key, capability_snapshot={"a", "b"}, connection_scopes={"crm"})[0]


@life
def started(key: str) -> str:
    """RUNNING, and its lease has been extended."""
    fence = running(key, timeouts=Timeouts(overall_ms=900_000, execution_ms=800_000, heartbeat_ms=700_000))
    authority.heartbeat(fence, extend_ms=LEASE_MS, now=at(5_000))
    return fence.workload_id


@life
def checkpointed(key: str) -> str:
    """CHECKPOINTED, twice."""
    fence = running(key)
    for step in (1, 2):
        authority.checkpoint(fence, {"step": step}, key=f"step {step}", now=at(3_000 + step))
    return fence.workload_id


@life
def cancelling(key: str) -> str:
    """CANCELLATION_REQUESTED."""
    return bring(S.CANCELLATION_REQUESTED, key)[0]


@life
def succeeded(key: str) -> str:
    """SUCCEEDED at the first attempt."""
    fence = running(key)
    finish(fence, at(4_000))
    return fence.workload_id


@life
def retried(key: str) -> str:
    """READY again after a failure, beside its queue until its backoff is over."""
    slow = RetryPolicy(initial_delay_ms=7_200_000, max_delay_ms=7_200_000, retry_on={"flaky"})
    fence = running(key, retry_policy=slow)
    fail(fence, at(4_000))
    return fence.workload_id


@life
def persistent(key: str) -> str:
    """SUCCEEDED at the third attempt, with checkpoints of all three, after a failure and a time-out."""
    timeouts = Timeouts(execution_ms=20_000)
    fence = running(key, retry_policy=QUICK, timeouts=timeouts)
    workload_id = fence.workload_id
    authority.checkpoint(fence, [1], now=at(3_000))
    fail(fence, at(4_000), effect=None)
    fence = begin(workload_id, at(10_000))
    authority.checkpoint(fence, [2], now=at(11_000))
    authority.enforce_deadlines(now=at(31_000))
    fence = begin(workload_id, at(40_000), worker_id="another")
    authority.checkpoint(fence, [3], now=at(41_000))
    finish(fence, at(42_000))
    return workload_id


@life
def dead_lettered(key: str) -> str:
    """DEAD_LETTER: a failure that is not retried."""
    fence = running(key)
    fail(fence, at(4_000), kind="bad_input", effect=None)
    return fence.workload_id


@life
def uncertain(key: str) -> str:
    """DEAD_LETTER: a failure with an unknown effect."""
    fence = running(key, retry_policy=QUICK)
    fail(fence, at(4_000), effect=Effect.UNKNOWN)
    return fence.workload_id


@life
def exhausted(key: str) -> str:
    """DEAD_LETTER: two attempts, and no third."""
    workload_id = admit(key, retry_policy=RetryPolicy(max_attempts=2, initial_delay_ms=0, retry_on={"flaky"}))
    fail(begin(workload_id, at(1_000)), at(2_000))
    fail(claim(workload_id, now=at(3_000)).fence, at(4_000), effect=None)
    return workload_id


@life
def released(key: str) -> str:
    """READY again, given back twice."""
    workload_id = admit(key)
    authority.release(claim(workload_id, now=at(1_000)).fence, reason="a deploy", now=at(2_000))
    authority.release(begin(workload_id, at(3_000)), now=at(4_000))
    return workload_id


@life
def released_out(key: str) -> str:
    """DEAD_LETTER: given back more often than is excused."""
    workload_id = admit(key, retry_policy=RetryPolicy(max_attempts=1))
    for turn in range(1, 22):
        authority.release(claim(workload_id, now=at(1_000 * turn)).fence, reason="unknown here", now=at(1_000 * turn))
    return workload_id


@life
def cancelled(key: str) -> str:
    """CANCELLED before anybody claimed it."""
    workload_id = admit(key)
    authority.cancel(workload_id, actor="op", reason="not wanted", now=at(1_000))
    return workload_id


@life
def confirmed(key: str) -> str:
    """CANCELLED by its worker, as asked."""
    workload_id, fence = bring(S.CANCELLATION_REQUESTED, key)
    authority.confirm_cancel(fence, now=at(5_000))
    return workload_id


@life
def forced(key: str) -> str:
    """CANCELLED over its worker's head."""
    return bring(S.CANCELLED, key)[0]


@life
def timed_out(key: str) -> str:
    """TIMED_OUT by hand, where it rests."""
    return bring(S.TIMED_OUT, key)[0]


@life
def expired(key: str) -> str:
    """DEAD_LETTER: its overall deadline passed while it waited."""
    workload_id = admit(key, timeouts=Timeouts(overall_ms=60_000, queue_ms=90_000))
    authority.enforce_deadlines(now=at(60_000))
    return workload_id


@life
def lost(key: str) -> str:
    """READY again: its worker died."""
    fence = running(key, lease_ms=SHORT_MS * 2)
    authority.recover_expired(now=at(5_000))
    return fence.workload_id


@life
def lost_cancelling(key: str) -> str:
    """CANCELLED: its worker died before it confirmed."""
    fence = running(key, lease_ms=SHORT_MS * 2)
    authority.cancel(fence.workload_id, actor="op", now=at(2_500))
    authority.recover_expired(now=at(5_000))
    return fence.workload_id


@life
def abandoned(key: str) -> str:
    """RUNNING; its lease is over, and no pass has seen it."""
    return running(key, lease_ms=SHORT_MS * 250).workload_id


@life
def rearmed(key: str) -> str:
    """SUCCEEDED after an operator gave it one more attempt."""
    workload_id, _ = bring(S.DEAD_LETTER, key)
    authority.rearm(workload_id, actor="op", reason="the input was mended", restart_overall=True, now=at(5_000))
    finish(begin(workload_id, at(6_000)), at(7_000))
    return workload_id


@life
def put_back(key: str) -> str:
    """CANCELLED after it had been parked, re-armed and timed out by hand."""
    workload_id, _ = bring(S.DEAD_LETTER, key)
    authority.rearm(workload_id, actor="op", reason="once more", now=at(5_000))
    authority.time_out(workload_id, actor="op", now=at(6_000))
    authority.cancel(workload_id, actor="op", now=at(7_000))
    return workload_id


def after(key: str, *required: tuple[str, str], **changes: Any) -> str:
    """Admit work that depends on the work of other keys."""
    dependencies = [Dependency(workload_id=id_of(other), required_state=S(state)) for other, state in required]
    return admit(key, dependencies=dependencies, **changes)


@life
def blocked(key: str) -> str:
    """READY, and waits for two others: one that is there, and one that nobody has admitted."""
    admit(f"{key} first")
    return after(key, (f"{key} first", S.SUCCEEDED), (f"{key} never", S.SUCCEEDED), timeouts=Timeouts(queue_ms=10**9))


@life
def unseen(key: str) -> str:
    """READY; what it waits for was admitted and done after it, and its due look at that has not been taken."""
    workload_id = after(key, (f"{key} later", S.SUCCEEDED))
    admit(f"{key} later", now=at(1_000))
    return workload_id


@life
def unblocked(key: str) -> str:
    """READY and due: what it waited for is done, as was asked."""
    done, fence = bring(S.RUNNING, f"{key} first")
    bring(S.DEAD_LETTER, f"{key} second")
    workload_id = after(key, (f"{key} first", S.SUCCEEDED), (f"{key} second", S.DEAD_LETTER), now=at(3_000))
    finish(fence, at(4_000))
    assert done == fence.workload_id
    return workload_id


@life
def blocked_again(key: str) -> str:
    """READY; what it depends on was parked as required, and has been re-armed."""
    first, _ = bring(S.DEAD_LETTER, f"{key} first")
    workload_id = after(key, (f"{key} first", S.DEAD_LETTER), now=at(5_000))
    authority.rearm(first, actor="op", reason="once more", now=at(6_000))
    return workload_id


@life
def given_up(key: str) -> str:
    """DEAD_LETTER: what it depends on was cancelled."""
    first = admit(f"{key} first")
    workload_id = after(key, (f"{key} first", S.SUCCEEDED))
    authority.cancel(first, actor="op", now=at(1_000))
    authority.dead_letter_unsatisfiable(now=at(2_000))
    return workload_id


@life
def unmeetable(key: str) -> str:
    """READY; what it depends on has ended otherwise, and no pass has seen it."""
    succeeded(f"{key} first")
    return after(key, (f"{key} first", S.CANCELLED), now=at(5_000))
