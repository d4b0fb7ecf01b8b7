"""Work that has become claimable is spoken of after its commit, once for a transaction, and never in vain."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction

from tests.authority.builders import request
from workloads import authority, wakeups
from workloads.contract import Backoff, Dependency, RetryPolicy
from workloads.errors import WorkloadError
from workloads.models import Workload
from workloads.signals import work_queued

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Every sending of the signal: whether it was sent inside a transaction."""
    heard: list[str] = []

    def hear(*, using: str, **kwargs: Any) -> None:
        heard.append("inside" if connection.in_atomic_block else "after")

    work_queued.connect(hear)
    yield heard
    work_queued.disconnect(hear)


class Undone(Exception):
    """Rolls a block back."""


@contextmanager
def undone() -> Iterator[None]:
    try:
        with transaction.atomic():
            yield
            raise Undone
    except Undone:
        pass


def in_an_hour() -> dt.datetime:
    return authority.read_clock() + dt.timedelta(hours=1)


def again_after(delay_ms: int) -> RetryPolicy:
    return RetryPolicy(
        max_attempts=3,
        backoff=Backoff.FIXED,
        initial_delay_ms=delay_ms,
        max_delay_ms=delay_ms,
        retry_on=frozenset({"transient", "worker_failure"}),
    )


def claim(**values: Any) -> Any:
    (found,) = authority.claim_next(worker_id="w", capabilities=[], lease_ms=60_000, start=True, **values)
    return found


def test_work_that_is_due_is_spoken_of_after_the_commit(said):
    authority.admit(request("a"))
    assert said == ["after"]
    authority.admit_many([request(str(number)) for number in range(20)])
    assert said == ["after"] * 2


def test_it_says_of_what_and_in_which_database():
    heard: list[tuple[Any, str]] = []

    def hear(*, sender: Any, using: str, **kwargs: Any) -> None:
        heard.append((sender, using))

    work_queued.connect(hear)
    try:
        authority.admit(request("a"))
    finally:
        work_queued.disconnect(hear)
    assert heard == [(Workload, "default")]


def test_nothing_is_said_of_what_nobody_can_claim(said):
    authority.admit(request("later", not_before=in_an_hour()))
    parent = authority.admit(request("parent", not_before=in_an_hour())).workload
    authority.admit(request("child", dependencies=[Dependency(workload_id=parent.workload_id)]))
    with pytest.raises(WorkloadError):
        authority.admit(request("refused", input={"password": "hunter2"}))
    assert said == []


def test_a_replay_says_nothing(said):
    authority.admit(request("a"))
    said.clear()
    assert not authority.admit(request("a")).created
    assert said == []


def test_what_is_rolled_back_is_never_spoken_of(said):
    with undone():
        authority.admit(request("a"))
    assert said == []
    with transaction.atomic(), undone():
        authority.admit(request("a"))
    assert said == []


def test_within_a_callers_transaction_it_is_said_once_at_its_commit(said):
    with transaction.atomic():
        authority.admit(request("a"))
        authority.admit(request("b"))
        with transaction.atomic():
            authority.admit(request("c"))
        assert said == []
    assert said == ["after"]


@pytest.mark.parametrize("last_is_kept", [True, False])
def test_a_block_that_is_rolled_back_takes_no_other_blocks_word_along(said, last_is_kept):
    with transaction.atomic():
        with undone():
            authority.admit(request("lost"))
        with transaction.atomic():
            authority.admit(request("kept"))
        with transaction.atomic() if last_is_kept else undone():
            authority.admit(request("last"))
    assert said == ["after"]


def test_the_word_of_a_block_within_blocks_lasts_as_long_as_what_it_stored(said):
    with transaction.atomic():
        with undone(), transaction.atomic():
            authority.admit(request("lost"))
        with transaction.atomic():
            with undone():
                authority.admit(request("lost too"))
            with transaction.atomic():
                authority.admit(request("kept"))
        with undone(), transaction.atomic():
            authority.admit(request("lost again"))
    assert said == ["after"]


def test_however_often_a_transaction_asks_one_word_waits(said):
    with transaction.atomic():
        for key in "abc":
            authority.admit(request(key))
            with transaction.atomic():
                authority.admit(request(key * 2))
        assert len(connection.run_on_commit) == 1


def test_the_next_transaction_speaks_for_itself(said):
    for key in "abc":
        with transaction.atomic():
            authority.admit(request(key))
            authority.admit(request(key * 2))
    assert said == ["after"] * 3


def test_a_receiver_that_fails_disturbs_nobody(said):
    def fail(**kwargs: Any) -> None:
        raise RuntimeError

    work_queued.connect(fail)
    count = wakeups.bell().count
    try:
        assert authority.admit(request("a")).created
    finally:
        work_queued.disconnect(fail)
    assert said == ["after"] and wakeups.bell().count > count


def test_retries_that_are_due_now_are_spoken_of_and_later_ones_are_not(said):
    for delay_ms, expected in ((0, ["after"]), (60_000, [])):
        policy = again_after(delay_ms)
        authority.admit(request(f"delay-{delay_ms}", retry_policy=policy, definition_id=f"d{delay_ms}"))
        found = claim(definitions=[f"d{delay_ms}"])
        said.clear()
        authority.fail(found.fence, kind="transient", error="again")
        assert said == expected


def test_what_is_given_back_rearmed_or_unblocked_is_spoken_of(said):
    parent = authority.admit(request("parent")).workload
    authority.admit(request("child", dependencies=[Dependency(workload_id=parent.workload_id)]))
    found = claim()
    said.clear()
    authority.heartbeat(found.fence, extend_ms=60_000)
    assert said == []
    authority.release(found.fence)
    assert said == ["after"]
    found = claim()
    said.clear()
    authority.fail(found.fence, kind="permanent", error="no")
    assert said == []
    authority.rearm(parent.workload_id, actor="o", reason="mended")
    assert said == ["after"]
    found = claim()
    said.clear()
    authority.complete(found.fence, result_id="r", output=None)
    assert said == ["after"]
    found = claim()
    said.clear()
    authority.complete(found.fence, result_id="r-2", output=None)
    assert said == []


def test_what_a_pass_gives_back_is_spoken_of(said):
    then = authority.read_clock() - dt.timedelta(minutes=10)
    authority.admit(request("lost", retry_policy=again_after(0)), now=then)
    claim(now=then)
    said.clear()
    assert len(authority.run_pass().recovered) == 1
    assert said == ["after"]


def test_who_moves_in_what_came_due_tells_those_that_it_leaves_it_to(said):
    now = authority.read_clock()
    later = now + dt.timedelta(seconds=10)
    authority.admit_many([request(key, not_before=later) for key in "abc"], now=now)
    assert said == []
    claim(now=later)
    assert said == ["after"]
