"""Shrunk histories in which the authority and the model once differed, told as plain calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import at
from workloads import authority
from workloads.contract import AdmissionRequest, Timeouts
from workloads.errors import WorkloadError

REQUEST = AdmissionRequest(
    tenant_id="t",
    application_id="app",
    requested_by="alice",
    idempotency_key="k",
    definition_id="d",
    timeouts=Timeouts(queue_ms=60),
)


@pytest.mark.django_db
def test_the_queue_deadline_runs_from_becoming_ready_by_a_clock_set_back_behind_the_admission() -> None:
    name = authority.admit(REQUEST, now=at(0)).workload.workload_id
    authority.time_out(name, actor="olga", now=at(0))
    authority.rearm(name, actor="olga", reason="again", now=at(-40))
    with pytest.raises(WorkloadError) as refused:
        authority.claim(name, worker_id="w", capabilities=[], lease_ms=100, now=at(30))
    assert refused.value.code == "WORKLOAD_TIMED_OUT"
    assert refused.value.details == {"deadline": "queue", "deadline_at": "2041-05-06T07:08:09.143456Z"}


@pytest.mark.django_db
@pytest.mark.parametrize("back_ms", [0, 1, 40])
def test_a_heartbeat_by_a_clock_set_back_brings_the_deadline_of_the_next_forward(back_ms: int) -> None:
    """The pass looked for it where the heartbeat before had put it, so it was enforced that much too late."""
    request = replace(REQUEST, timeouts=Timeouts(heartbeat_ms=60))
    name = authority.admit(request, now=at(0)).workload.workload_id
    (claim,) = authority.claim_next(worker_id="w", capabilities=[], lease_ms=10_000, start=True, now=at(50))
    authority.heartbeat_many([(claim.fence, 10_000)], now=at(50 - back_ms))
    assert list(authority.verify(now=at(50))) == []
    due_ms = 50 - back_ms + 60
    assert authority.run_pass(now=at(due_ms - 1)).timed_out == []
    assert authority.run_pass(now=at(due_ms)).timed_out == [name]
