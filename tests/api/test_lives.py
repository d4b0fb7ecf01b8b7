"""Whole lives over HTTP: what each voice says, and what it is answered."""

from __future__ import annotations

import pytest
from django.db import connections
from django.test import override_settings

from tests.api.tools import Caller, admission, claiming, fence, place

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def requester():
    return Caller("rita", place("requester"))


@pytest.fixture
def worker():
    return Caller("wanda", place("worker", worker_prefix="w-"))


@pytest.fixture
def operator():
    return Caller("otto", place("operator"))


@pytest.fixture
def viewer():
    return Caller("vera", place("viewer"))


def test_a_life_in_two_requests(requester, worker, viewer):
    admitted = requester.post("workloads/", admission(input={"n": 12345678901234567890123}))
    assert admitted.status == 201, admitted.text
    workload_id = admitted.body["workload_id"]
    assert admitted.headers["Location"].endswith(f"/workloads/{workload_id}/")
    again = requester.post("workloads/", admission(input={"n": 12345678901234567890123}))
    assert again.status == 200
    claims = worker.post("claims/", claiming(start=True, definitions=["invoices.render"])).body["claims"]
    assert claims[0]["input"] == {"n": 12345678901234567890123}
    done = worker.post(f"workloads/{workload_id}/complete/", {**fence(claims[0]), "result_id": "r-1", "output": [1, 2]})
    assert done.status == 200, done.text
    record = viewer.get(f"workloads/{workload_id}/")
    assert record.body["state"] == "SUCCEEDED" and "input" not in record.body
    events = viewer.get(f"workloads/{workload_id}/events/").body["results"]
    assert [event["to_state"] for event in events] == ["CREATED", "READY", "CLAIMED", "RUNNING", "SUCCEEDED"]
    assert viewer.get(f"workloads/{workload_id}/result/").body["results"][0]["result_id"] == "r-1"
    assert viewer.get("workloads/?state=SUCCEEDED").body["results"][0]["workload_id"] == workload_id
    assert viewer.get("stats/").body["counts"]["SUCCEEDED"] == {"count": 1, "more": False}


class Behind:
    """A site whose reads go to a replica that has heard of nothing yet: not even of the tables."""

    def db_for_read(self, model, **_):
        return "replica" if model._meta.app_label == "workloads" else None

    def db_for_write(self, model, **_):
        return None


@pytest.fixture
def replica():
    empty = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    connections.settings["replica"] = connections.configure_settings({"default": {}, "replica": empty})["replica"]
    with override_settings(DATABASE_ROUTERS=[Behind()]):
        yield
    connections["replica"].close()
    del connections["replica"], connections.settings["replica"]


@pytest.mark.usefixtures("replica")
def test_everything_is_read_where_it_is_written(requester, worker, operator):
    first = requester.post("workloads/", admission()).body["workload_id"]
    needs = [{"workload_id": first}]
    assert requester.post("workloads/", admission("k-2", dependencies=needs)).body["dependencies"][0]
    (one,) = requester.post("workloads/batch/", {"workloads": [admission("k-3", dependencies=needs)]}).outcomes
    second = one["workload"]["workload_id"]
    (claim,) = worker.post("claims/", claiming(start=True)).body["claims"]
    for path in ("heartbeat/", "context/", "checkpoints/"):
        fields = {"heartbeat/": {"extend_ms": 1_000}, "checkpoints/": {"state": 1}}.get(path, {})
        assert worker.post(f"workloads/{first}/{path}", {**fence(claim), **fields}).status == 200
    item = {"workload_id": first, **fence(claim)}
    (beat,) = worker.post("heartbeats/", {"items": [item | {"extend_ms": 1_000}]}).outcomes
    assert beat["status"] == 200
    (done,) = worker.post("completions/", {"items": [item | {"result_id": "r", "output": 1}]}).outcomes
    assert done["status"] == 200
    for path in ("", "events/", "attempts/", "checkpoints/", "result/", "why/"):
        assert operator.get(f"workloads/{first}/{path}").status == 200
    claimed = worker.post(f"workloads/{second}/claim/", claiming())
    assert worker.post(f"workloads/{second}/release/", fence(claimed.body)).body["dependencies"]
    assert operator.post(f"workloads/{second}/cancel/").body["dependencies"]
    assert len(operator.get("workloads/").body["results"]) == 3
    assert operator.get("stats/").body["counts"]["CANCELLED"]["count"] == 1
    assert operator.get("health/").body["details"]["database"] == {"ok": True}
