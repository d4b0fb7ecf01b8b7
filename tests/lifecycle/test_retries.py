"""When a retry is due: section 6, "Backoff"."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given, strategies as st

from tests.lifecycle.builders import MS, NOW, check, fence_of, make, policy, text
from tests.lifecycle.verbs import over
from workloads.contract import Backoff, RetryPolicy, WorkloadState
from workloads.lifecycle import recovery, reports
from workloads.lifecycle.retries import delay_ms

S = WorkloadState
DAY_MS = 24 * 60 * 60 * 1000
CENTURY_MS = 3_155_760_000_000
GROWING = RetryPolicy(initial_delay_ms=1000, max_delay_ms=60_000)
STEADY = RetryPolicy(backoff=Backoff.FIXED, initial_delay_ms=1000, max_delay_ms=60_000)

durations = st.integers(0, CENTURY_MS)
counts = st.integers(1, 2**31)
draws = st.floats(0, 1)
shares = st.floats(0, 1)
backoffs = st.sampled_from(Backoff)


@pytest.mark.parametrize(
    ("retry_count", "delay"),
    [(1, 1000), (2, 2000), (3, 4000), (4, 8000), (5, 16_000), (6, 32_000), (7, 60_000), (8, 60_000), (100, 60_000)],
)
def test_exponential(retry_count: int, delay: int) -> None:
    assert delay_ms(GROWING, retry_count, draw=0) == delay


@pytest.mark.parametrize("retry_count", [1, 2, 3, 31, 2**31])
def test_fixed(retry_count: int) -> None:
    assert delay_ms(STEADY, retry_count, draw=0) == 1000


@pytest.mark.parametrize("backoff", list(Backoff))
def test_the_cap_holds_for_the_first_delay_too(backoff: Backoff) -> None:
    capped = RetryPolicy(backoff=backoff, initial_delay_ms=5000, max_delay_ms=10)
    assert delay_ms(capped, 1, draw=0) == 10
    assert delay_ms(RetryPolicy(backoff=backoff, initial_delay_ms=5000, max_delay_ms=0), 9, draw=0) == 0
    assert delay_ms(RetryPolicy(backoff=backoff, initial_delay_ms=0, max_delay_ms=9), 2**31, draw=0) == 0


@pytest.mark.parametrize("retry_count", [2**15, 2**31 - 1, 2**31, 2**63, 10**30])
@pytest.mark.parametrize("initial_ms", [1, 1000, CENTURY_MS])
def test_no_overflow_at_any_count(retry_count: int, initial_ms: int) -> None:
    bounded = RetryPolicy(initial_delay_ms=initial_ms, max_delay_ms=CENTURY_MS)
    assert delay_ms(bounded, retry_count, draw=0) == CENTURY_MS


@given(backoff=backoffs, initial=durations, most=durations, retry_count=st.integers(1, 200))
def test_the_delay_is_the_formula(backoff: Backoff, initial: int, most: int, retry_count: int) -> None:
    plain = RetryPolicy(backoff=backoff, initial_delay_ms=initial, max_delay_ms=most)
    factor = 2 ** (retry_count - 1) if backoff is Backoff.EXPONENTIAL else 1
    assert delay_ms(plain, retry_count, draw=0.5) == min(initial * factor, most)


@given(backoff=backoffs, initial=durations, most=durations, retry_count=counts, jitter=shares, draw=draws)
def test_jitter_shortens_by_at_most_its_share(
    backoff: Backoff, initial: int, most: int, retry_count: int, jitter: float, draw: float
) -> None:
    steady = RetryPolicy(backoff=backoff, initial_delay_ms=initial, max_delay_ms=most)
    jittered = RetryPolicy(backoff=backoff, initial_delay_ms=initial, max_delay_ms=most, jitter=jitter)
    whole = delay_ms(steady, retry_count, draw=draw)
    short = delay_ms(jittered, retry_count, draw=draw)
    assert type(short) is int
    assert 0 <= short <= whole
    # Floats have 53 bits: at a century's length they are exact to less than a millisecond.
    assert short >= whole - whole * jitter - 1
    assert delay_ms(jittered, retry_count, draw=0) == whole


def test_full_jitter_reaches_both_ends() -> None:
    full = RetryPolicy(initial_delay_ms=1000, max_delay_ms=60_000, jitter=1.0)
    assert (delay_ms(full, 1, draw=0), delay_ms(full, 1, draw=0.25), delay_ms(full, 1, draw=1)) == (1000, 750, 0)
    half = RetryPolicy(initial_delay_ms=1000, max_delay_ms=60_000, jitter=0.5)
    assert (delay_ms(half, 2, draw=0), delay_ms(half, 2, draw=1)) == (2000, 1000)


@pytest.mark.parametrize(
    ("wish", "delay"),
    [(0, 1000), (1, 1000), (999, 1000), (1001, 1001), (60_001, 60_001), (DAY_MS, DAY_MS), (DAY_MS + 1, DAY_MS)],
)
def test_the_larger_of_backoff_and_wish(wish: int, delay: int) -> None:
    assert delay_ms(GROWING, 1, draw=0, retry_after_ms=wish) == delay


@pytest.mark.parametrize("wish", [2**31, 2**63, 10**40])
def test_a_wish_is_capped_by_a_day_or_a_longer_maximum(wish: int) -> None:
    assert delay_ms(GROWING, 1, draw=0, retry_after_ms=wish) == DAY_MS
    patient = RetryPolicy(initial_delay_ms=1, max_delay_ms=2 * DAY_MS)
    assert delay_ms(patient, 1, draw=0, retry_after_ms=10**40) == 2 * DAY_MS
    assert delay_ms(patient, 1, draw=0, retry_after_ms=DAY_MS + 5) == DAY_MS + 5


def test_jitter_does_not_shorten_a_wish() -> None:
    full = RetryPolicy(initial_delay_ms=1000, max_delay_ms=60_000, jitter=1.0)
    assert delay_ms(full, 1, draw=1, retry_after_ms=700) == 700
    assert delay_ms(full, 1, draw=0, retry_after_ms=700) == 1000


@given(initial=durations, most=durations, retry_count=counts, wish=st.integers(0, 10**20), jitter=shares, draw=draws)
def test_a_wish_never_makes_it_sooner(
    initial: int, most: int, retry_count: int, wish: int, jitter: float, draw: float
) -> None:
    given_policy = RetryPolicy(initial_delay_ms=initial, max_delay_ms=most, jitter=jitter)
    alone = delay_ms(given_policy, retry_count, draw=draw)
    together = delay_ms(given_policy, retry_count, draw=draw, retry_after_ms=wish)
    assert together == max(alone, min(wish, max(most, DAY_MS)))


@pytest.mark.parametrize("retry_count", [0, 1, 5, 2**31 - 2])
def test_the_count_grows_by_one_and_names_the_delay(retry_count: int) -> None:
    held = make(S.RUNNING, retry_count=retry_count, retry_policy=policy("worker_failure"))
    later = NOW + dt.timedelta(hours=1)
    decision = recovery.recover(held, later, draw=0)
    assert decision is not None
    check(decision)
    delay = min(1000 * 2 ** min(retry_count, 10), 60_000)
    assert decision.after.retry_count == retry_count + 1
    assert decision.after.next_attempt_at == later + delay * MS
    assert decision.events[-1].evidence == {"decision": "retry", "next_attempt_at": text(later + delay * MS)}


def test_a_retry_that_is_due_at_once_says_no_instant() -> None:
    held = make(S.RUNNING, retry_policy=policy("worker_failure", initial_delay_ms=0))
    decision = recovery.recover(held, NOW + dt.timedelta(hours=1), draw=0)
    assert decision is not None
    assert decision.events[-1].evidence == {"decision": "retry"}


def test_the_longest_delay_from_the_last_year_is_still_an_instant() -> None:
    end = dt.datetime(2899, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    slow = policy("worker_failure", initial_delay_ms=CENTURY_MS, max_delay_ms=CENTURY_MS)
    decision = recovery.recover(make(S.RUNNING, retry_policy=slow), end, draw=0)
    assert decision is not None
    assert decision.after.next_attempt_at == end + CENTURY_MS * MS


@pytest.mark.parametrize(("draw", "delay"), [(0.0, 1000), (0.25, 750)])
def test_after_a_failure_and_after_a_lost_worker_the_delay_is_the_one_drawn(draw: float, delay: int) -> None:
    again = policy("worker_failure", "broken", jitter=1.0, initial_delay_ms=1000)
    held = make(S.RUNNING, retry_policy=again)
    failed, _ = reports.fail(
        held,
        fence_of(held),
        NOW,
        kind="broken",
        error="",
        effect=None,
        retry_after_ms=None,
        late_is_accepted=False,
        draw=draw,
    )
    lost = recovery.recover(over(held), NOW, draw=draw)
    for decision in (failed, lost):
        assert decision is not None
        check(decision)
        assert decision.after.next_attempt_at == NOW + delay * MS
