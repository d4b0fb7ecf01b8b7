"""Races between real processes, each followed by `workloads_verify`. Sections 4, 5, 6 and 8."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from tests.races.calls import request
from tests.races.processes import race, racers
from workloads import authority
from workloads.contract import Claim
from workloads.lifecycle.canonical import workload_id as id_of
from workloads.models import Workload

CALLS = "tests.races.calls"

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def verified() -> Iterator[None]:
    if connection.vendor == "sqlite" and "mode=memory" in str(connection.settings_dict["NAME"]):
        pytest.skip("A database in memory has one process: the races run on a file.")
    yield
    call_command("workloads_verify", stdout=StringIO())


def call(name: str, *args: Any) -> tuple[Any, ...]:
    return (f"{CALLS}.{name}", *args)


def an_id(key: str) -> str:
    return id_of("t", "race", "u", key)


def fence(claim: Claim) -> dict[str, Any]:
    return dataclasses.asdict(claim.fence)


def test_of_equal_admissions_one_is_created_and_the_rest_replay() -> None:
    answers = race([call("admit", "k", {"input": {"a": 1, "b": 2}})] * 6)
    assert sorted(answers) == [False] * 5 + [True]
    assert Workload.objects.count() == 1


def test_of_conflicting_admissions_one_is_created_and_the_rest_are_refused() -> None:
    answers = race([call("admit", "k", {"priority": n}) for n in range(6)])
    assert answers.count(True) == 1
    assert answers.count(["IDEMPOTENCY_KEY_REUSED", {"fields": ["priority"]}]) == 5


def test_a_loser_whose_winner_rolls_back_creates() -> None:
    with racers([call("admit_then_roll_back", "k"), call("admit", "k", {})]) as (winner, loser):
        winner.say()
        assert winner.hear() is True
        loser.say()
        winner.say()
        assert winner.hear() == "rolled back"
        assert loser.hear() is True


def test_a_pair_that_would_close_a_cycle_is_half_refused() -> None:
    answers = race(
        [
            call("admit", "a", {"dependencies": [an_id("b")]}),
            call("admit", "b", {"dependencies": [an_id("a")]}),
        ]
    )
    refused = [answer for answer in answers if answer is not True]
    assert len(refused) == 1
    code, details = refused[0]
    assert code == "WORKLOAD_INVALID"
    assert set(details["cycle"]) == {an_id("a"), an_id("b")}


@pytest.mark.parametrize("lanes", [1, 7])
def test_eight_claimers_get_each_of_two_thousand_once(lanes: int) -> None:
    requests = [request(f"k{n}", definition_id=f"d{n % lanes}", priority=n % 3) for n in range(2_000)]
    authority.admit_many(requests)
    got = race([call("drain", f"w{n}", 10) for n in range(8)])
    everything = [workload_id for each in got for workload_id in each]
    assert len(everything) == len(set(everything)) == 2_000


def test_exactly_one_ending_is_recorded() -> None:
    for turn in range(5):
        workload_id = authority.admit(request(f"k{turn}")).workload.workload_id
        (claim,) = authority.claim_next(worker_id="w", capabilities=(), lease_ms=60_000, start=True)
        answers = race(
            [
                call("complete", fence(claim), f"r{turn}"),
                call("fail", fence(claim)),
                call("cancel", workload_id),
                call("complete", fence(claim), f"other{turn}"),
            ]
        )
        ends = authority.get(workload_id).attempts.get().status
        winners = [a for a in answers[:2] + answers[3:] if not isinstance(a, list)]
        if ends in {"SUCCEEDED", "FAILED"}:
            assert len(winners) == 1
        else:
            assert ends == "CANCELLED"
            assert winners == []


def test_two_passes_decide_each_once() -> None:
    authority.admit_many([request(f"k{n}") for n in range(300)])
    authority.claim_next(worker_id="w", capabilities=(), lease_ms=1, limit=300)
    answers = race([call("run_pass")] * 3)
    recovered = [workload_id for answer in answers for workload_id in answer[1]]
    recovered += authority.recover_expired()
    assert len(recovered) == len(set(recovered)) == 300


def test_a_repeated_request_gets_the_same_claims() -> None:
    authority.admit_many([request(f"k{n}") for n in range(20)])
    answers = race([call("claim_next", "w", "r1", 5)] * 4)
    assert all(answer == answers[0] for answer in answers)
    assert len(answers[0]) == 5
    one = an_id("single")
    authority.admit(request("single"))
    answers = race([call("claim", one, "w", "r2")] * 4)
    assert len(set(answers)) == 1


def test_batches_in_opposite_orders_do_not_deadlock() -> None:
    keys = [f"k{n}" for n in range(100)]
    answers = race([call("admit_many", keys, {}), call("admit_many", keys[::-1], {})] * 2)
    assert sum(answer.count(True) for answer in answers) == 100
    claims = authority.claim_next(worker_id="w", capabilities=(), lease_ms=600_000, limit=100, start=True)
    fences = [fence(claim) for claim in claims]
    answers = race([call("complete_many", fences, "a"), call("complete_many", fences[::-1], "b")])
    assert sum(answer.count("ok") for answer in answers) == 100


def test_a_rearm_of_a_dependency_races_the_claim_of_its_dependent() -> None:
    from workloads.contract import Dependency

    for turn in range(4):
        parent = authority.admit(request(f"p{turn}")).workload.workload_id
        wanted = [Dependency(workload_id=parent, required_state="DEAD_LETTER")]  # type: ignore[arg-type]
        child_request = dataclasses.replace(request(f"c{turn}"), dependencies=wanted)
        claim = authority.claim(parent, worker_id="w", capabilities=(), lease_ms=60_000)
        authority.fail(claim.fence, kind="broken", error="")
        child = authority.admit(child_request).workload.workload_id
        state, claimed = race([call("rearm", parent), call("claim", child, "w")])
        assert state == "READY"
        if isinstance(claimed, list):
            assert claimed == ["WORKLOAD_NOT_READY", {"state": "READY", "dependencies": [parent]}]
