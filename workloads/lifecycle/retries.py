"""When a retry is due, and what follows a lost, late or failed attempt. Section 6, "Backoff", and section 8."""

from __future__ import annotations

from workloads.contract import Backoff, RetryPolicy, WorkloadState
from workloads.lifecycle.decision import Draft
from workloads.lifecycle.snapshot import MILLISECOND

DAY_MS = 86_400_000


def delay_ms(policy: RetryPolicy, retry_count: int, *, draw: float, retry_after_ms: int | None = None) -> int:
    """Return the milliseconds until the attempt that `retry_count` (1 for the first retry) stands for.

    `draw` is a random number of 0 to 1, by which jitter shortens the delay. `retry_after_ms` is the worker's wish: the
    larger of the two counts, the wish at most the larger of `max_delay_ms` and a day.
    """
    delay = policy.initial_delay_ms
    if policy.backoff == Backoff.EXPONENTIAL and delay:
        # The shift is bounded first: at a large retry count the power itself would not fit in memory.
        doublings = min(retry_count - 1, policy.max_delay_ms.bit_length())
        delay <<= doublings
    delay = min(delay, policy.max_delay_ms)
    if policy.jitter:
        delay -= int(delay * policy.jitter * draw)
    if retry_after_ms is not None:
        delay = max(delay, min(retry_after_ms, max(policy.max_delay_ms, DAY_MS)))
    return delay


def retry(draft: Draft, *, actor: str, draw: float, retry_after_ms: int | None = None) -> str:
    """Make the workload READY again after its backoff; return the decision."""
    retry_count = draft.after.retry_count + 1
    delay = delay_ms(draft.after.retry_policy, retry_count, draw=draw, retry_after_ms=retry_after_ms)
    draft.set(retry_count=retry_count, next_attempt_at=draft.now + delay * MILLISECOND)
    draft.move(WorkloadState.READY, actor=actor, decision="retry")
    return "retry"


def dead_letter(draft: Draft, decision: str, *, actor: str, **evidence: str) -> str:
    """Park the workload for an operator; return the decision."""
    draft.set(next_attempt_at=None)
    draft.move(WorkloadState.DEAD_LETTER, actor=actor, decision=decision, **evidence)
    return decision
