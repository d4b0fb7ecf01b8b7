"""What is stored of a scene, and what a call answered, without what differs each time."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tests.authority.builders import id_of
from tests.faults.verbs import Scene
from tests.support import at
from workloads import authority
from workloads.contract import Admission, Claim, FailureOutcome, PassReport, ResultRecord
from workloads.errors import WorkloadError
from workloads.models import Dependency as DependencyRow, Result, Workload


def verify() -> None:
    """Assert that all that is stored is right, as of an instant after everything that was decided."""
    assert list(authority.verify(now=at(20_000_000))) == []


def shape(scene: Scene) -> dict[str, Any]:
    """Return what is stored of a scene's work and its relatives, without what differs each time: ids and versions."""
    stored: dict[str, Any] = {}
    for suffix in ("", " parent", " child", " unknown"):
        key = f"{scene.key}{suffix}"
        workload = Workload.objects.filter(workload_id=id_of(key)).first()
        if workload is None:
            continue
        names = (
            "state attempt_count retry_count release_count operator_retries fencing_token next_attempt_at expires_at"
        )
        stored[suffix] = {
            "row": [getattr(workload, name) for name in names.split()],
            "events": list(workload.events.order_by("sequence").values_list("from_state", "to_state", "at", "actor")),
            "attempts": list(workload.attempts.order_by("number").values_list("number", "status", "started_at")),
            "checkpoints": list(workload.checkpoints.order_by("sequence").values_list("sequence", "key")),
            "results": Result.objects.filter(record=workload.pk).count(),
            "dependencies": sorted(DependencyRow.objects.filter(dependent=workload.pk).values_list("standing")),
        }
    return stored


def told(answer: Any) -> Any:
    """Return an answer without what differs each time: the ids that the authority makes, the key of the scene."""
    if isinstance(answer, WorkloadError):
        return answer.code
    if isinstance(answer, Admission):
        answer = answer.workload
    if isinstance(answer, Workload):
        return [answer.state, answer.next_attempt_at, answer.finished_at, answer.fencing_token]
    if isinstance(answer, Claim):
        return [answer.attempt_number, answer.worker_id, answer.fencing_token, answer.expires_at, answer.lease_left_ms]
    if isinstance(answer, ResultRecord):
        return [answer.output, answer.output_hash, answer.produced_by, answer.at]
    if isinstance(answer, FailureOutcome):
        return asdict(answer)
    if isinstance(answer, PassReport):
        return [len(answer.timed_out), len(answer.recovered), len(answer.unsatisfiable), answer.failed]
    if isinstance(answer, list):
        return [told(item) for item in answer]
    return [answer.sequence, answer.key, answer.state, answer.at]
