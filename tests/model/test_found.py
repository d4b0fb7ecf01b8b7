"""Shrunk histories in which the authority and the model once differed, told as plain calls."""

from __future__ import annotations

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
