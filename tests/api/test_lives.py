"""Whole lives over HTTP: what each voice says, and what it is answered."""

from __future__ import annotations

import pytest

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
