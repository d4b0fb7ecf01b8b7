"""Another connection's commit between any two statements of a verb: each ending once, and all that is stored right."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from django.db import connection

from tests.authority.builders import state_of
from tests.faults.disturbance import At, Beside, Watcher
from tests.faults.stored import verify
from tests.faults.verbs import CALLS, LATER, PASSES, VERBS, Call, Scene, Verb, outcome
from tests.support import at
from workloads import authority
from workloads.errors import WorkloadError
from workloads.models import Workload

pytestmark = pytest.mark.django_db(transaction=True)

VERB, OTHER = "v", "x"
QUICK = {"claim of a dependent"}
MOST_STATEMENTS = 80


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in VERBS]
)
def test_another_commit_at_each_place(name: str, watcher: Watcher) -> None:
    verb = VERBS[name]
    count = 0
    for against in verb.against:
        for place in range(MOST_STATEMENTS):
            if not _meet(verb, against, place, f"{against} {place}", watcher):
                break
            count += 1
        else:
            raise AssertionError("there are more statements than a verb may need")
    assert count >= 2 * len(verb.against)


def _meet(verb: Verb, against: str, place: int, key: str, watcher: Watcher) -> bool:
    """Let the verb meet another call at a place, and check what came of it; return whether there is such a place."""
    scene = verb.prepare(key)
    mine, other = CALLS[verb.call], CALLS[against]
    beside = Beside(lambda: outcome(lambda: other.do(scene, OTHER)), watcher)
    at_place = At(place, beside.start)
    with connection.execute_wrapper(at_place):
        answer = outcome(lambda: mine.do(scene, VERB))
    if at_place.has_acted:
        _check(scene, [(verb.call, mine, VERB, answer), (against, other, OTHER, beside.result())])
    verify()
    _clear()
    return at_place.has_acted


def _check(scene: Scene, calls: list[tuple[str, Call, str, Any]]) -> None:
    """Check that what was accepted is stored, once, and what was refused is not."""
    accepted: Counter[tuple[str, str]] = Counter()
    by_kind: dict[tuple[str, str], tuple[Call, str]] = {}
    for name, call, who, answer in calls:
        kind = "pass" if name in PASSES else name
        key = (kind, "" if call.is_shared or call.is_replayed else who)
        by_kind[key] = (call, who)
        accepted[key] += 0 if isinstance(answer, WorkloadError) else call.accepted(scene, answer)
        if isinstance(answer, WorkloadError) and answer.code == "WORKLOAD_TIMED_OUT":
            # A call that comes after a deadline decides it, as a pass would.
            accepted["pass", ""] += 1
        if name == "cancel" and not isinstance(answer, WorkloadError):
            assert state_of(scene.workload_id) == "CANCELLED"
    for key, (call, who) in by_kind.items():
        found = call.trace(scene, who)
        if call.is_replayed:
            assert found <= 1, key
            assert found == 1 or not accepted[key], key
        else:
            assert found == accepted[key], (key, calls)
    kept = Workload.objects.filter(workload_id=scene.workload_id).first()
    if kept is not None:
        assert kept.attempts.filter(status="SUCCEEDED").count() <= 1
        assert kept.fencing_token == kept.attempts.count()


def _clear() -> None:
    """Call off what the scene left, so that it does not meet the next one."""
    unfinished = Workload.objects.exclude(state__in=("SUCCEEDED", "CANCELLED"))
    for workload_id in unfinished.values_list("workload_id", flat=True):
        authority.cancel(workload_id, actor="end", force=True, now=max(LATER, at(11_000_000)))
