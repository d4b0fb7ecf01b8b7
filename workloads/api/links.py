"""How the answer of one operation leads to the next: the links of the OpenAPI schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

_READS: Final = ("read", "events", "attempts", "checkpoints", "result", "why")
_ACTS: Final = ("cancel", "rearm", "timeOut")
_REPORTS: Final = ("start", "heartbeat", "context", "checkpoint", "complete", "fail", "release", "confirmCancel")
_FENCE: Final = ("claim_id", "worker_id", "fencing_token")

# (operation, status): where in its body the workload stands, and whether it holds a fence.
_SOURCES: Final[Mapping[str, tuple[tuple[str, ...], str, bool]]] = {
    "admit": (("201", "200"), "", False),
    "list": (("200",), "/results/0", False),
    "claimNext": (("200",), "/claims/0", True),
    "claim": (("200",), "", True),
}


def of_operation(name: str, id_of: Callable[[str], str]) -> dict[str, dict[str, Any]]:
    """Return, by status, the links from an operation's answers; `id_of` gives an operation's id in the schema."""
    if name not in _SOURCES:
        return {}
    statuses, at, holds_a_fence = _SOURCES[name]
    workload = f"$response.body#{at}/workload_id"
    found: dict[str, Any] = {}
    targets = _REPORTS if holds_a_fence else (*_READS, *_ACTS, "claim")
    for target in targets:
        link: dict[str, Any] = {"operationId": id_of(target), "parameters": {"workload_id": workload}}
        if holds_a_fence:
            link["requestBody"] = {field: f"$response.body#{at}/{field}" for field in _FENCE}
        found[target] = link
    if holds_a_fence:
        item = {"workload_id": workload, **{field: f"$response.body#{at}/{field}" for field in _FENCE}}
        own: dict[str, dict[str, Any]] = {
            "heartbeats": {"extend_ms": 60_000},
            "completions": {"result_id": f"$response.body#{at}/claim_id", "output": None},
        }
        for batch, fields in own.items():
            found[batch] = {"operationId": id_of(batch), "requestBody": {"items": [{**item, **fields}]}}
    return dict.fromkeys(statuses, found)
