"""The connection ends before any statement of a verb, or its COMMIT is obeyed and nobody told: the call is repeated.

The same call on a new connection then answers as it would have, and nothing is doubled. On SQLite, which has no
connection to end, the statement fails instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import Error, connection, connections, transaction

from tests.faults.disturbance import At, Watcher, answer_lost
from tests.faults.stored import shape, told, verify
from tests.faults.verbs import CALLS, PASSES, VERBS, Scene, outcome
from tests.support import T0
from workloads import authority
from workloads.contract import CheckpointRecord, Claim, ResultRecord
from workloads.models import Attempt, Checkpoint, Result

pytestmark = pytest.mark.django_db(transaction=True)

WHO = "v"
QUICK = {"claim", "complete"}
MOST_STATEMENTS = 80
CASES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in VERBS]


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    watcher = Watcher()
    yield watcher
    watcher.close()


class Case:
    """One verb: called once undisturbed, to know what it answers and what it leaves."""

    def __init__(self, name: str, watcher: Watcher) -> None:
        self.verb = VERBS[name]
        self.watcher = watcher
        if connection.vendor == "sqlite" and self.verb.call in PASSES:
            pytest.skip("SQLite has no connection to end, and a statement that fails is a row's fault.")
        # The first pass of all makes a row that later ones find: one statement more.
        authority.run_pass(now=T0)
        scene = self.fresh("undisturbed")
        counting = At(-1, lambda: None, before=True)
        with connection.execute_wrapper(counting):
            self.wanted = self.call(scene)
        self.statements = counting.statements
        self.left = shape(scene)

    def fresh(self, key: str) -> Scene:
        return self.verb.prepare(key)

    def call(self, scene: Scene) -> Any:
        return outcome(lambda: CALLS[self.verb.call].do(scene, WHO))

    def call_and_be_cut(self, scene: Scene) -> None:
        """Call, and get nothing but the database's own error; then take up a new connection."""
        with pytest.raises(Error):
            self.call(scene)
        connections["default"].close()


@pytest.mark.parametrize("name", CASES)
def test_cut_before_each_statement(name: str, watcher: Watcher) -> None:
    case = Case(name, watcher)
    assert case.statements >= 2
    for place in range(1, case.statements + 1):
        scene = case.fresh(f"cut {place}")
        before = shape(scene)
        at_place = At(place, watcher.cut, before=True)
        with connection.execute_wrapper(at_place):
            case.call_and_be_cut(scene)
        assert at_place.has_acted
        if case.verb.again != "nothing":
            assert shape(scene) == before
        answer = case.call(scene)
        if case.verb.again != "nothing":
            assert told(answer) == told(case.wanted)
        assert shape(scene) == case.left
    verify()


@pytest.mark.parametrize("name", CASES)
def test_cut_after_the_commit(name: str, watcher: Watcher) -> None:
    case = Case(name, watcher)
    scene = case.fresh("lost")
    with answer_lost(watcher):
        case.call_and_be_cut(scene)
    if case.verb.again != "nothing":
        assert shape(scene) == case.left
    answer = case.call(scene)
    if case.verb.again == "same":
        assert told(answer) == told(case.wanted)
        _is_the_stored_one(answer)
    elif case.verb.again != "nothing":
        assert told(answer) == f"WORKLOAD_{case.verb.again}"
    assert shape(scene) == case.left
    verify()


def _is_the_stored_one(answer: Any) -> None:
    """Assert that an answer names what is stored, not something like it."""
    for item in answer if isinstance(answer, list) else [answer]:
        if isinstance(item, Claim):
            attempt = Attempt.objects.get(attempt_id=item.attempt_id)
            assert (attempt.claim_id, attempt.fencing_token) == (item.claim_id, item.fencing_token)
            assert attempt.record.claim_id == item.claim_id
        elif isinstance(item, CheckpointRecord):
            assert Checkpoint.objects.get(checkpoint_id=item.checkpoint_id).sequence == item.sequence
        elif isinstance(item, ResultRecord):
            assert Result.objects.get(result_id=item.result_id).attempt_id == item.attempt_id


@pytest.mark.parametrize("name", ["complete", "fail", "release", "checkpoint", "claim", "admit"])
def test_a_caller_that_goes_on_in_its_own_transaction_loses_all_of_it(name: str, watcher: Watcher) -> None:
    case = Case(name, watcher)
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no connection to end.")
    scene = case.fresh("joined")
    before = shape(scene)

    def act() -> None:
        with transaction.atomic():
            case.call(scene)
            watcher.cut()
            Group.objects.create(name="effect")

    with pytest.raises(Error):
        act()
    connections["default"].close()
    assert shape(scene) == before
    assert not Group.objects.exists()
    assert told(case.call(scene)) == told(case.wanted)
    assert shape(scene) == case.left
    verify()
