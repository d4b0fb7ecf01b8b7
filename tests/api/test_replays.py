"""A call whose answer was lost is made again: it gets the same answer, and does nothing twice. A refusal stays one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.routes import FENCED, body_for, walk
from tests.api.tools import Answer, Caller, admission, claiming, fence, place, refusal
from tests.api.world import admit, running
from workloads import authority
from workloads.models import Attempt, Checkpoint, Event, Result, Workload

pytestmark = pytest.mark.django_db

ROUTES = {route.name: route for route in walk() if route.method == "POST"}


@pytest.fixture
def worker() -> Caller:
    return Caller("wanda", place("worker", worker_prefix="w-"))


@pytest.fixture
def requester() -> Caller:
    return Caller("rita", place("requester"))


def recorded() -> tuple[Any, ...]:
    """Return all that is recorded, so that nothing more may be told apart."""
    tables = (Workload, Event, Attempt, Checkpoint, Result)
    return tuple(sorted(map(str, table.objects.values_list())) for table in tables)


def said(answer: Answer) -> Any:
    """Return what an answer says, but for what runs on by itself."""
    assert answer.status in (200, 201), answer.text
    found = answer.body
    for claim in [found, *found.get("claims", [])]:
        claim.pop("lease_left_ms", None)
    return found


def twice(caller: Caller, path: str, body: Any, **headers: str) -> tuple[Answer, Answer]:
    """Make a call, and make it again three times; look that this recorded nothing more."""
    first = caller.post(path, body, **headers)
    before = recorded()
    later = [caller.post(path, body, **headers) for _ in range(3)]
    assert recorded() == before
    assert len({(answer.status, str(said(answer))) for answer in later}) == 1
    return first, later[-1]


@pytest.mark.parametrize("key", ["in the body", "in the header", "in both"])
def test_an_admission_by_its_key(requester: Caller, key: str) -> None:
    body = admission(input={"n": 1.0}, retry_policy={"retry_on": ["b", "a"]}, dependencies=[{"workload_id": "x"}])
    headers = {} if key == "in the body" else {"idempotency-key": body["idempotency_key"]}
    if key == "in the header":
        del body["idempotency_key"]
    first, again = twice(requester, "workloads/", body, **headers)
    assert (first.status, again.status) == (201, 200)
    assert said(first) == said(again) and first.headers["Location"] == again.headers["Location"]
    assert requester.get(first.headers["Location"]).body == first.body
    same = body | {"input": {"n": 1}, "retry_policy": {"retry_on": ["a", "b", "a"]}, "trigger": "by hand"}
    assert said(requester.post("workloads/", same, **headers)) == said(first)


def test_an_admission_whatever_has_happened_since(requester: Caller, worker: Caller) -> None:
    made = requester.post("workloads/", admission())
    (claim,) = worker.post("claims/", claiming(start=True)).body["claims"]
    path = f"workloads/{made.body['workload_id']}/complete/"
    worker.post(path, fence(claim) | {"result_id": "r", "output": 1})
    first, again = twice(requester, "workloads/", admission())
    assert said(first) == said(again) and again.status == 200 and again.body["state"] == "SUCCEEDED"


def test_a_batch_of_admissions(requester: Caller) -> None:
    body = {
        "workloads": [admission("k-1"), admission("k-2", priority="x"), admission("k-1"), admission("k-1", priority=1)]
    }
    first, again = twice(requester, "workloads/batch/", body)
    assert [o["status"] for o in first.outcomes] == [201, 400, 200, 422]
    assert [o["status"] for o in again.outcomes] == [200, 400, 200, 422]
    assert [o.get("workload") for o in first.outcomes] == [o.get("workload") for o in again.outcomes]
    assert first.outcomes[1] == again.outcomes[1] and first.outcomes[3] == again.outcomes[3]


@pytest.mark.parametrize("start", [False, True])
def test_claims_by_their_request_id(worker: Caller, start: bool) -> None:
    ids = [admit(f"k-{n}", input={"n": n}) for n in range(4)]
    body = claiming(limit=3, start=start, request_id="r-1")
    first, again = twice(worker, "claims/", body)
    assert [claim["workload_id"] for claim in first.body["claims"]] == ids[:3]
    assert said(first) == said(again)
    # Another limit, start or lease is answered as the first.
    other = worker.post("claims/", body | {"limit": 1, "start": not start, "lease_ms": 1})
    assert said(other) == said(first)
    # As far as they are current: what has ended is not answered, and nothing is added.
    ended = first.body["claims"][0]
    assert worker.post(f"workloads/{ended['workload_id']}/release/", fence(ended)).status == 200
    later = worker.post("claims/", body)
    assert [claim["workload_id"] for claim in later.body["claims"]] == ids[1:3]


def test_a_request_that_was_given_nothing_may_be_made_anew(worker: Caller) -> None:
    body = claiming(request_id="r-1")
    assert worker.post("claims/", body).body == {"claims": []}
    workload_id = admit()
    (claim,) = worker.post("claims/", body).body["claims"]
    assert claim["workload_id"] == workload_id


def test_without_a_request_id_a_repeat_claims_more(worker: Caller) -> None:
    ids = {admit(f"k-{n}") for n in range(2)}
    assert {worker.post("claims/", claiming()).body["claims"][0]["workload_id"] for _ in ids} == ids


def test_a_claim_of_one_by_its_request_id(worker: Caller) -> None:
    workload_id = admit()
    path = f"workloads/{workload_id}/claim/"
    first, again = twice(worker, path, claiming(request_id="r-1"))
    assert said(first) == said(again)
    for another in (claiming(request_id="r-2"), claiming()):
        assert refusal(worker.post(path, another), 409, "WORKLOAD_NOT_READY") == {"state": "CLAIMED"}
    # Another use of the id.
    other = f"workloads/{admit('other')}/claim/"
    assert refusal(worker.post(other, claiming(request_id="r-1")), 400, "WORKLOAD_INVALID") == {"field": "request_id"}
    answer = worker.post("claims/", claiming(request_id="r-1"))
    assert refusal(answer, 400, "WORKLOAD_INVALID") == {"field": "request_id"}
    worker.post(f"workloads/{workload_id}/release/", fence(first.body))
    refusal(worker.post(path, claiming(request_id="r-1")), 409, "WORKLOAD_NOT_READY")


def test_a_start_by_its_fence(worker: Caller) -> None:
    admit()
    (claim,) = worker.post("claims/", claiming()).body["claims"]
    path = f"workloads/{claim['workload_id']}/start/"
    first, again = twice(worker, path, fence(claim))
    assert said(first) == said(again)
    authority.cancel(claim["workload_id"], actor="op")
    assert said(worker.post(path, fence(claim))) == said(first) | {"cancellation_requested": True}


@pytest.mark.parametrize("name", ["complete", "fail", "release", "context", "checkpoints"])
def test_a_report_by_what_it_says(worker: Caller, name: str) -> None:
    workload_id, held = running()
    route = ROUTES[name]
    body = body_for(route, workload_id, held)
    path = route.url(workload_id)
    first, again = twice(worker, path, body)
    assert said(first) == said(again)
    if name in ("context", "checkpoints"):
        return
    # Another attempt runs by now, or an operator has been here.
    authority.run_pass()
    if name == "complete":
        assert said(worker.post(path, body)) == said(first)
        answer = worker.post(path, body | {"output": {"ok": False}})
        refusal(answer, 409, "WORKLOAD_RESULT_CONFLICT")
        (outcome,) = worker.post("completions/", {"items": [body | {"workload_id": workload_id}]}).outcomes
        assert outcome == {"status": 200, "result": first.body}
    else:
        authority.cancel(workload_id, actor="op")
        later = worker.post(path, body)
        if name == "fail":
            assert said(later) == said(first)
            refusal(worker.post(path, body | {"error": "another"}), 409, "WORKLOAD_CLAIM_INVALID")
        else:
            assert later.status == 200 and later.body["state"] == "CANCELLED"


def test_a_checkpoint_without_a_key_is_another_one(worker: Caller) -> None:
    workload_id, held = running()
    path = f"workloads/{workload_id}/checkpoints/"
    sequences = [worker.post(path, held | {"state": 1}).body["sequence"] for _ in range(2)]
    assert sequences == [2, 3]
    keyed = [worker.post(path, held | {"state": {"n": n}, "key": "k"}) for n in (1.0, 1)]
    assert keyed[0].body == keyed[1].body
    refusal(worker.post(path, held | {"state": 2, "key": "k"}), 409, "WORKLOAD_CHECKPOINT_CONFLICT")


def test_a_confirmed_cancellation_by_its_fence(worker: Caller) -> None:
    workload_id, held = running()
    path = f"workloads/{workload_id}/confirm-cancel/"
    refusal(worker.post(path, held), 409, "WORKLOAD_TRANSITION_DENIED")
    authority.cancel(workload_id, actor="op")
    first, again = twice(worker, path, held)
    assert said(first) == said(again) and first.body["state"] == "CANCELLED"


def test_a_heartbeat_extends_again(worker: Caller) -> None:
    workload_id, held = running()
    path = f"workloads/{workload_id}/heartbeat/"
    versions, ends = [], []
    for _ in range(3):
        answer = worker.post(path, held | {"extend_ms": 3_600_000})
        assert answer.status == 200 and 3_590_000 < answer.body["lease_left_ms"] <= 3_600_000
        versions.append(authority.get(workload_id).version)
        ends.append(answer.body["expires_at"])
    assert versions == [5, 6, 7] and ends == sorted(ends)
    # Never shorter than it was.
    assert worker.post(path, held | {"extend_ms": 1}).body["expires_at"] == ends[-1]
    (outcome,) = worker.post("heartbeats/", {"items": [held | {"workload_id": workload_id, "extend_ms": 1}]}).outcomes
    assert outcome["status"] == 200 and outcome["claim"]["expires_at"] == ends[-1]


def test_a_cancellation_repeated_is_no_change(requester: Caller) -> None:
    workload_id, _ = running()
    first, again = twice(requester, f"workloads/{workload_id}/cancel/", {"reason": "not wanted"})
    assert said(first) == said(again) and first.body["state"] == "CANCELLATION_REQUESTED"


@pytest.mark.parametrize("name", sorted(key.split()[1] for key in FENCED))
def test_a_refusal_repeated_is_a_refusal(worker: Caller, name: str) -> None:
    workload_id, held = running()
    route = ROUTES[name]
    body = body_for(route, workload_id, held)
    before = recorded()
    for bad in (body | {"claim_id": "another"}, body | {"fencing_token": 0}, body | {"fencing_token": 2}):
        answers = [worker.post(route.url(workload_id), bad) for _ in range(2)]
        assert answers[0].same() == answers[1].same()
        assert answers[0].code in ("WORKLOAD_CLAIM_INVALID", "WORKLOAD_STALE_FENCE")
        assert answers[0].status == 409
    assert recorded() == before


def test_every_post_of_a_worker_or_requester_is_repeated_here() -> None:
    repeated = {"workloads", "batch", "claims", "claim", "start", "heartbeat", "heartbeats", "context", "checkpoints"}
    repeated |= {"complete", "completions", "fail", "release", "confirm-cancel", "cancel"}
    assert ROUTES.keys() - repeated == {"rearm", "time-out"}
