"""One result id, reported for two workloads at once: it is one's, and the other is told, wherever they meet."""

from __future__ import annotations

import pytest
from django.db import connection

from tests.authority.builders import request
from tests.faults.disturbance import At, Beside, Watcher
from tests.faults.stored import verify
from tests.faults.verbs import outcome
from workloads import authority
from workloads.errors import WorkloadError
from workloads.models import Result, Workload

pytestmark = pytest.mark.django_db(transaction=True)

MOST_STATEMENTS = 60


def test_it_is_one_workloads_wherever_two_completions_meet(watcher: Watcher) -> None:
    for place in range(MOST_STATEMENTS):
        authority.admit_many([request(f"{name} {place}") for name in "ab"])
        one, other = authority.claim_next(worker_id="w", capabilities=(), lease_ms=600_000, limit=2, start=True)
        same = f"result {place}"
        beside = Beside(lambda: outcome(lambda: authority.complete(other.fence, result_id=same, output=2)), watcher)  # noqa: B023 - called in this turn
        at_place = At(place, beside.start)
        with connection.execute_wrapper(at_place):
            mine = outcome(lambda: authority.complete(one.fence, result_id=same, output=1))  # noqa: B023 - called at once
        if not at_place.has_acted:
            break
        answers = [mine, beside.result()]
        refused = [answer for answer in answers if isinstance(answer, WorkloadError)]
        assert [refusal.code for refusal in refused] == ["WORKLOAD_RESULT_DUPLICATE"], place
        assert Result.objects.filter(result_id=same).count() == 1
        ids = (one.workload_id, other.workload_id)
        states = set(Workload.objects.filter(workload_id__in=ids).values_list("state", flat=True))
        assert states == {"SUCCEEDED", "RUNNING"}
        loser = (one, other)[answers.index(refused[0])]
        authority.complete(loser.fence, result_id=f"{same} too", output=3)
    else:
        raise AssertionError("there are more statements than a completion may need")
    assert place > (0 if connection.vendor == "sqlite" else 3)
    verify()
