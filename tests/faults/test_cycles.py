"""Two admissions that together close a cycle: one is refused, wherever one is committed in the other."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from tests.authority.builders import id_of, request
from tests.faults.disturbance import At, Beside, Watcher
from tests.faults.stored import verify
from tests.faults.verbs import outcome
from tests.support import T0
from workloads import authority
from workloads.contract import Dependency
from workloads.errors import WorkloadError

pytestmark = pytest.mark.django_db(transaction=True)

MOST_STATEMENTS = 60


def admit(key: str, needs: str) -> Any:
    asked = request(key, dependencies=[Dependency(workload_id=id_of(needs))])
    return outcome(lambda: authority.admit(asked, now=T0))


@pytest.mark.parametrize("has_middle", [False, True])
def test_one_of_the_pair_is_refused_wherever_they_meet(has_middle: bool, watcher: Watcher) -> None:
    for place in range(MOST_STATEMENTS):
        a, b, middle = (f"{name} {place}" for name in ("a", "b", "middle"))
        if has_middle:
            admit(middle, a)
        beside = Beside(lambda b=b, needs=middle if has_middle else a: admit(b, needs), watcher)
        at_place = At(place, beside.start)
        with connection.execute_wrapper(at_place):
            mine = admit(a, b)
        if not at_place.has_acted:
            break
        refused = [answer for answer in (mine, beside.result()) if isinstance(answer, WorkloadError)]
        assert [refusal.code for refusal in refused] == ["WORKLOAD_INVALID"], place
        assert set(refused[0].details["cycle"]) >= {id_of(a), id_of(b)}
    else:
        raise AssertionError("there are more statements than an admission may need")
    assert place > (0 if connection.vendor == "sqlite" else 6)
    verify()
