"""What each call costs the database: a number of queries that grows neither with a batch nor with what is stored."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.api.routes import FENCE, MISSING, OPEN, ROUTES, Route, body_for
from tests.api.tools import Caller, admission, claiming, fence, place
from tests.api.world import ALL, admit, claim, running
from workloads import authority
from workloads.api import answers
from workloads.authority import registry
from workloads.contract import Dependency, Fence

pytestmark = pytest.mark.django_db

AUTHENTICATED = 3
"""The token and its user, the user's other tokens, its access."""


@pytest.fixture(autouse=True)
def noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker be noted with its first call alone, however slow the machine is."""
    monkeypatch.setattr(registry, "EVERY", dt.timedelta(hours=1))
    # Whatever another test has left there would be written some seconds from now.
    registry.memory.clear()


@pytest.fixture
def caller() -> Caller:
    return Caller("alma", place(*ALL))


def queries(ask: Callable[[], Any]) -> tuple[int, Any]:
    with CaptureQueriesContext(connection) as captured:
        answer = ask()
    # Savepoints are no questions; outside of a test there are none.
    asked = [q["sql"] for q in captured if not q["sql"].startswith(("SAVEPOINT", "RELEASE", "ROLLBACK"))]
    return len(asked), answer


def ready_for(route: Route, number: int, size: int) -> tuple[str, Any]:
    """Return a workload that this call changes, with `size` of everything that may grow, and the body."""
    key = f"{route} {number}"
    if route.name in ("workloads", "batch", "claims", "stats") or not route.is_of_one:
        body = body_for(route) or {}
        if route.key == "POST workloads":
            body["idempotency_key"] = key
            body["dependencies"] = [{"workload_id": f"workload_{n}"} for n in range(1, size + 1)]
        for item in body.get("workloads", ()):
            item["idempotency_key"] = key
        if route.name == "claims":
            for n in range(size):
                admit(f"{key} {n}")
            body["limit"] = size
        if "items" in body:
            workload_id, held = running(key)
            body["items"][0].update(held | {"workload_id": workload_id})
            if "result_id" in body["items"][0]:
                body["items"][0]["result_id"] = key
        return MISSING, body
    if route.name in ("claim", "why"):
        needs = [Dependency(workload_id=f"workload_{n}") for n in range(size)] if route.name == "why" else []
        return admit(key, dependencies=needs), body_for(route)
    workload_id, held = running(key)
    for n in range(size):
        authority.checkpoint(_fence(workload_id), n)
    body = body_for(route, workload_id, held)
    if route.name == "confirm-cancel":
        authority.cancel(workload_id, actor="op")
    if route.name == "rearm":
        authority.time_out(workload_id, actor="op")
    if body and "result_id" in body:
        body["result_id"] = key
    return workload_id, body


def _fence(workload_id: str) -> Any:
    row = authority.get(workload_id)
    return Fence(
        workload_id=workload_id, claim_id=row.claim_id, worker_id=row.worker_id, fencing_token=row.fencing_token
    )


@pytest.mark.parametrize("route", [r for r in ROUTES if r.key not in OPEN], ids=str)
def test_a_call_costs_the_same_however_much_there_is(caller: Caller, route: Route) -> None:
    admit("one before")
    counts = []
    # What is new the first time (a lane, a lock) is not counted.
    for number, size in enumerate((2, 2, 30)):
        workload_id, body = ready_for(route, number, size)
        count, answer = queries(lambda: caller.ask(route.method, route.url(workload_id), body))  # noqa: B023 - called at once
        assert answer.status in (200, 201), answer.text
        assert all(outcome["status"] in (200, 201) for outcome in answer.body.get("outcomes", ()))
        counts.append(count)
    assert counts[1] == counts[2] <= 40, counts


def items(size: int, name: str) -> list[dict[str, Any]]:
    """Return the items of a batch of running work."""
    found = []
    for number in range(size):
        held = claim(admit(f"{name} {size} {number}"))
        authority.start(held.fence)
        item = {"workload_id": held.workload_id, **fence(answers.claim(held))}
        found.append(
            item | ({"extend_ms": 1_000} if name == "heartbeats" else {"result_id": f"{size} {number}", "output": 1})
        )
    return found


BATCHES: dict[str, Callable[[int], tuple[str, dict[str, Any]]]] = {
    "admissions": lambda size: (
        "workloads/batch/",
        {"workloads": [admission(f"{size} {n}", input=n) for n in range(size)]},
    ),
    "admissions that are refused": lambda size: (
        "workloads/batch/",
        {"workloads": [admission(f"{size} {n}", tenant_id="globex") for n in range(size)]},
    ),
    "heartbeats": lambda size: ("heartbeats/", {"items": items(size, "heartbeats")}),
    "completions": lambda size: ("completions/", {"items": items(size, "completions")}),
    "heartbeats of others": lambda size: ("heartbeats/", {"items": foreign(items(size, "heartbeats"))}),
    "completions of others": lambda size: ("completions/", {"items": foreign(items(size, "completions"))}),
    "heartbeats for nothing": lambda size: ("heartbeats/", {"items": missing("heartbeats", size)}),
    "completions for nothing": lambda size: ("completions/", {"items": missing("completions", size)}),
    "claims": lambda size: ("claims/", claiming(limit=[admit(f"{size} {n}") for n in range(size)] and size)),
    "claims by request id": lambda size: (
        "claims/",
        claiming(limit=[admit(f"{size} {n}") for n in range(size)] and size, request_id=f"r-{size}"),
    ),
}


def foreign(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item | {"worker_id": "w-2"} for item in found]


def missing(name: str, size: int) -> list[dict[str, Any]]:
    own = {"extend_ms": 1_000} if name == "heartbeats" else {"result_id": "r-1", "output": 1}
    return [FENCE | own | {"workload_id": f"workload_{number // 2}"} for number in range(size)]


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_costs_the_same_whatever_its_size(caller: Caller, name: str) -> None:
    counts, repeated = {}, {}
    for size in (2, 1, 100):
        path, body = BATCHES[name](size)
        counts[size], answer = queries(lambda: caller.post(path, body))  # noqa: B023 - called at once
        assert answer.status == 200, answer.text
        assert len(answer.body.get("outcomes", answer.body.get("claims"))) == size
        repeated[size], _ = queries(lambda: caller.post(path, body))  # noqa: B023 - called at once
    assert counts[1] >= counts[100] - 2, counts
    assert counts[100] <= 30, counts
    if name != "claims":
        assert repeated[1] >= repeated[100] - 2, repeated


def test_a_page_costs_its_rows_alone(caller: Caller) -> None:
    for number in range(12):
        admit(f"k-{number}", dependencies=[Dependency(workload_id=f"w-{n}") for n in range(number)])
    costs = set()
    for size in (1, 5, 12):
        count, answer = queries(lambda: caller.get(f"workloads/?page_size={size}"))  # noqa: B023 - called at once
        assert len(answer.body["results"]) == size
        costs.add(count)
    assert costs == {AUTHENTICATED + 2}
