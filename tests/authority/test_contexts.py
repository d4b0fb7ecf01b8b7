"""A claim that is asked for its context brings all that it takes to begin: no second call is needed. Section 5."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.authority.builders import CLAIMED_AT, admit, claim, events, refused
from tests.support import at
from workloads import authority
from workloads.contract import Claim, ExecutionContext
from workloads.models import Checkpoint

pytestmark = pytest.mark.django_db

ASKED: dict[str, Any] = {"worker_id": "w", "capabilities": {"c"}, "lease_ms": 600_000, "now": CLAIMED_AT}


def take(**changes: Any) -> list[Any]:
    """Claim whatever there is, with its context."""
    values: dict[str, Any] = {"worker_id": "w", "capabilities": {"c"}, "lease_ms": 600_000, "limit": 9}
    return list(authority.claim_next_with_context(now=CLAIMED_AT, **(values | changes)))


def admit_some(count: int = 2) -> list[str]:
    """Admit work that differs in all that a context tells."""
    return [
        admit(
            f"k{n}",
            input={"n": n},
            environment=f"e{n}",
            application_id=f"app {n}",
            capability_snapshot={"c"},
            connection_scopes={f"scope {n}"},
        )
        for n in range(count)
    ]


def test_checkpoints_come_in_their_order_wherever_their_rows_lie() -> None:
    (workload_id,) = admit_some(1)
    fence = claim(workload_id, capabilities={"c"}, now=at(100)).fence
    authority.start(fence, now=at(100))
    for step in range(4):
        authority.checkpoint(fence, {"step": step}, now=at(200))
    for step in (1, 0):
        # A row that is changed lies behind the others then, on PostgreSQL.
        with connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE {Checkpoint._meta.db_table} SET sequence = sequence WHERE sequence = %s", [step + 1]
            )
    assert [saved.state["step"] for saved in authority.context(fence, now=at(300)).checkpoints] == [0, 1, 2, 3]


def test_claims_bring_the_contexts_that_a_call_for_them_would_get() -> None:
    ids = admit_some()
    for workload_id in ids:
        fence = claim(workload_id, capabilities={"c"}, now=at(100)).fence
        authority.start(fence, now=at(100))
        for step in range(2):
            authority.checkpoint(fence, {"of": workload_id, "step": step}, key=f"s{step}", now=at(200))
        authority.release(fence, now=at(300))
    given = take()
    assert [context.workload_id for context in given] == ids
    assert [context.input for context in given] == [{"n": 0}, {"n": 1}]
    assert [context.environment for context in given] == ["e0", "e1"]
    assert [[saved.state["step"] for saved in context.checkpoints] for context in given] == [[0, 1], [0, 1]]
    assert [{saved.state["of"] for saved in context.checkpoints} for context in given] == [{ids[0]}, {ids[1]}]
    for context in given:
        assert isinstance(context, ExecutionContext)
        assert context.secret_references == frozenset()
        assert context == authority.context(context.fence, now=CLAIMED_AT)


def test_one_claim_brings_its_context_too() -> None:
    (workload_id,) = admit_some(1)
    given = authority.claim_with_context(workload_id, **ASKED)
    assert isinstance(given, ExecutionContext)
    assert given == authority.context(given.fence, now=CLAIMED_AT)
    assert type(claim(admit("plain"))) is Claim
    admit("another")
    (plain,) = authority.claim_next(worker_id="w", capabilities=[], lease_ms=1, now=CLAIMED_AT)
    assert type(plain) is Claim


def test_a_context_with_a_start_is_running() -> None:
    (workload_id,) = admit_some(1)
    (given,) = take(start=True)
    assert isinstance(given, ExecutionContext)
    assert events(workload_id)[-1].to_state == "RUNNING"


def test_unless_more_is_asked_for_one_is_claimed_and_is_not_running() -> None:
    first, second = admit_some()
    (given,) = authority.claim_next_with_context(**ASKED)
    assert given.workload_id == first
    assert [events(workload_id)[-1].to_state for workload_id in (first, second)] == ["CLAIMED", "READY"]


def test_a_repeat_brings_the_contexts_again_in_the_same_order() -> None:
    low, high = admit("low", capability_snapshot={"c"}), admit("high", priority=1, capability_snapshot={"c"})
    first = take(request_id="r")
    assert [context.workload_id for context in first] == [high, low]
    assert take(request_id="r") == first
    plain = authority.claim_next(worker_id="w", capabilities=[], lease_ms=1, request_id="r", now=CLAIMED_AT)
    assert [type(claim) for claim in plain] == [Claim, Claim]


def test_a_repeated_claim_brings_its_context_again() -> None:
    (workload_id,) = admit_some(1)
    first = authority.claim_with_context(workload_id, request_id="r", **ASKED)
    assert authority.claim_with_context(workload_id, request_id="r", **ASKED) == first
    assert type(claim(workload_id, request_id="r")) is Claim


def test_no_work_brings_no_context_and_asks_for_none() -> None:
    with CaptureQueriesContext(connection) as captured:
        assert take() == []
    assert not [query for query in captured.captured_queries if "checkpoint" in query["sql"]]


def test_the_contexts_of_many_take_the_statements_of_one() -> None:
    for key in "abcd":
        admit(key, input=key)
    with CaptureQueriesContext(connection) as many:
        assert len(take(limit=3)) == 3
    with CaptureQueriesContext(connection) as one:
        assert len(take(limit=1)) == 1
    assert len(many) == len(one)


def test_what_a_claim_does_not_take_is_no_argument_here() -> None:
    with pytest.raises(TypeError):
        authority.claim_next_with_context(**ASKED, wait=True)
    with pytest.raises(TypeError):
        authority.claim_with_context(admit(), **ASKED, limit=2)
    with refused("WORKLOAD_INVALID", {"field": "lease_ms"}):
        authority.claim_next_with_context(**(ASKED | {"lease_ms": 0}))
