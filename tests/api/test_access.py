"""What an Access row gives, beyond roles: places, prefixes, capabilities, payloads and a name; whose fence is whose."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.api.routes import FENCED, POSTS, Route, body_for
from tests.api.tools import Caller, admission, claiming, place, refusal
from tests.api.world import CALLERS, admit, claim, done, running
from workloads import authority
from workloads.api import answers
from workloads.lifecycle import canonical
from workloads.models import Workload

pytestmark = pytest.mark.django_db


@pytest.fixture
def worker() -> Caller:
    return CALLERS["worker"]()


@pytest.mark.parametrize("route", [r for r in POSTS if r.key in FENCED or "items" in (body_for(r) or {})], ids=str)
def test_a_worker_cannot_use_another_workers_fence_even_when_it_knows_it(route: Route) -> None:
    workload_id, fence = running()
    before = authority.get(workload_id)
    xena = CALLERS["another worker"]()

    def refused(claimed: dict) -> tuple:
        answer = xena.post(route.url(workload_id), body_for(route, workload_id, claimed))
        said = answer.outcomes[0]["error"] if answer.status == 200 else answer.body
        return said["code"], said["details"]

    assert refused(fence) == ("FORBIDDEN", {"field": "worker_id"})
    assert refused(fence | {"worker_id": ""})[0] == "FORBIDDEN"
    assert refused(fence | {"worker_id": "x-1"})[0] == "WORKLOAD_CLAIM_INVALID"
    assert refused(fence | {"worker_id": "x-1", "fencing_token": 2})[0] == "WORKLOAD_CLAIM_INVALID"
    after = authority.get(workload_id)
    assert answers.workload(after) == answers.workload(before)
    assert after.events.count() == before.events.count()


@pytest.mark.parametrize("verb", ["complete", "release", "confirm-cancel", "fail"])
def test_nor_its_fence_after_the_end(worker: Caller, verb: str) -> None:
    workload_id, fence = running()
    if verb == "confirm-cancel":
        authority.cancel(workload_id, actor="op")
    (route,) = [r for r in POSTS if r.name == verb]
    body = body_for(route, workload_id, fence)
    assert worker.post(route.url(workload_id), body).status == 200
    assert worker.post(route.url(workload_id), body).status == 200
    xena = CALLERS["another worker"]()
    refusal(xena.post(route.url(workload_id), body), 403, "FORBIDDEN")
    assert xena.post(route.url(workload_id), body | {"worker_id": "x-1"}).status == 409


def test_a_claim_is_made_under_the_users_prefix_and_capabilities_alone(worker: Caller) -> None:
    workload_id = admit(capability_snapshot=["a", "b"])
    for path in ("claims/", f"workloads/{workload_id}/claim/"):
        assert refusal(worker.post(path, claiming(worker_id="x-1")), 403, "FORBIDDEN") == {"field": "worker_id"}
        assert refusal(worker.post(path, claiming(worker_id="W-1")), 403, "FORBIDDEN") == {"field": "worker_id"}
        answer = worker.post(path, claiming(capabilities=["a", "b"]))
        assert refusal(answer, 403, "FORBIDDEN") == {"field": "capabilities"}
    assert worker.post("claims/", claiming(capabilities=["a"])).body == {"claims": []}
    missing = worker.post(f"workloads/{workload_id}/claim/", claiming(capabilities=["a"]))
    assert refusal(missing, 403, "WORKLOAD_CAPABILITY_DENIED") == {"missing": ["b"]}
    assert authority.get(workload_id).version == 1


def test_a_worker_of_several_places_names_the_one() -> None:
    both = Caller("bo", place("worker", capabilities={"a"}), place("worker", application="payroll"))
    assert refusal(both.post("claims/", claiming()), 400, "WORKLOAD_INVALID")["field"] == "application_id"
    named = both.post("claims/", claiming(tenant_id="acme"))
    assert refusal(named, 400, "WORKLOAD_INVALID")["field"] == "application_id"
    # Capabilities are judged by the one row that matches.
    body = claiming(capabilities=["a"])
    assert both.post("claims/", body | {"application_id": "invoices"}).body == {"claims": []}
    assert refusal(both.post("claims/", body | {"application_id": "payroll"}), 403, "FORBIDDEN") == {
        "field": "capabilities"
    }
    assert both.post("claims/", body | {"application_id": "elsewhere"}).body == {"claims": []}

    far = Caller("fay", place("worker"), place("worker", tenant="globex"))
    assert refusal(far.post("claims/", claiming()), 400, "WORKLOAD_INVALID")["field"] == "tenant_id"
    answer = far.post("claims/", claiming(application_id="invoices"))
    assert refusal(answer, 400, "WORKLOAD_INVALID")["field"] == "tenant_id"
    ours, theirs = admit(), admit(tenant_id="globex")
    for tenant, id_ in (("acme", ours), ("globex", theirs)):
        (got,) = far.post("claims/", claiming(tenant_id=tenant, limit=5)).body["claims"]
        assert got["workload_id"] == id_


def test_access_to_a_whole_tenant_need_not_name_an_application() -> None:
    whole = Caller("wes", place("worker", "operator", application=""))
    ids = {admit("one"), admit("two", application_id="payroll")}
    admit("three", tenant_id="globex")
    assert {row["workload_id"] for row in whole.get("workloads/").body["results"]} == ids
    assert len(whole.post("claims/", claiming(application_id="payroll", limit=5)).body["claims"]) == 1
    assert len(whole.post("claims/", claiming(limit=5)).body["claims"]) == 1


def test_the_row_of_an_application_goes_before_the_one_of_its_tenant() -> None:
    user = Caller(
        "ned",
        place("worker", application="", capabilities={"a"}, worker_prefix="wide-"),
        place("worker", capabilities={"b"}, worker_prefix="near-"),
    )
    near = {"application_id": "invoices", "capabilities": ["b"], "worker_id": "near-1"}
    wide = {"application_id": "payroll", "capabilities": ["a"], "worker_id": "wide-1"}
    assert user.post("claims/", claiming(**near)).status == user.post("claims/", claiming(**wide)).status == 200
    for body in (near | {"worker_id": "wide-1"}, near | {"capabilities": ["a"]}, wide | {"worker_id": "near-1"}):
        refusal(user.post("claims/", claiming(**body)), 403, "FORBIDDEN")
    assert refusal(user.post("claims/", claiming()), 400, "WORKLOAD_INVALID")["field"] == "application_id"
    id_ = admit()
    refusal(user.post(f"workloads/{id_}/claim/", claiming(worker_id="wide-1")), 403, "FORBIDDEN")
    assert user.post(f"workloads/{id_}/claim/", claiming(worker_id="near-1")).status == 200


def test_a_request_id_is_its_tenants_alone() -> None:
    ours = admit()
    first = Caller("fay", place("worker"))
    again = claiming(request_id="r-1")
    (got,) = first.post("claims/", again).body["claims"]
    assert got["workload_id"] == ours
    # The same worker and request id in another tenant: neither answered, nor refused, nor held up by ours.
    other = Caller("gus", place("worker", tenant="globex"))
    assert other.post("claims/", again).body == {"claims": []}
    theirs = admit(tenant_id="globex")
    (given,) = other.post("claims/", again).body["claims"]
    assert given["workload_id"] == theirs
    one = admit("second", tenant_id="globex")
    assert other.post(f"workloads/{one}/claim/", claiming(request_id="r-2")).status == 200
    mine = admit("third")
    assert first.post(f"workloads/{mine}/claim/", claiming(request_id="r-2")).status == 200


def test_a_replayed_request_answers_only_what_the_caller_may_see() -> None:
    ids = [admit("one"), admit("two", application_id="payroll")]
    whole = Caller("wes", place("worker", application=""))
    body = claiming(limit=5, request_id="r-1")
    claims = whole.post("claims/", body).body["claims"]
    assert sorted(claim["workload_id"] for claim in claims) == sorted(ids)
    near = Caller("ned", place("worker", application="payroll"))
    (claim,) = near.post("claims/", body).body["claims"]
    assert claim["workload_id"] == ids[1]
    near.user.workload_access.update(worker_prefix="n-")
    refusal(near.post("claims/", body), 403, "FORBIDDEN")


def test_work_is_asked_for_in_ones_own_name_and_place(worker: Caller) -> None:
    rita = CALLERS["requester"]()
    made = rita.post("workloads/", admission(requested_by="rita"))
    assert made.status == 201 and made.body["requested_by"] == "rita"
    assert rita.post("workloads/", admission(requested_by=None)).status == 200
    answer = rita.post("workloads/", admission(requested_by="rob"))
    assert refusal(answer, 403, "FORBIDDEN") == {"field": "requested_by"}
    for names in ({"tenant_id": "globex"}, {"tenant_id": "no-such"}, {"application_id": "payroll"}, {"tenant_id": "A"}):
        answer = rita.post("workloads/", admission(**names))
        assert refusal(answer, 403, "FORBIDDEN") is None
        (outcome,) = rita.post("workloads/batch/", {"workloads": [admission(**names)]}).outcomes
        assert outcome == {"status": 403, "error": answer.body}
    refusal(worker.post("workloads/", admission()), 403, "FORBIDDEN")
    assert Workload.objects.count() == 1


def test_a_grant_is_issued_from_the_access_row() -> None:
    able = Caller("abe", place("requester", capabilities={"a", "b"}))
    made = able.post("workloads/", admission(capability_snapshot=["b"]))
    assert made.status == 201 and made.body["grant"]
    answer = able.post("workloads/", admission("k-2", capability_snapshot=["b", "c"]))
    refusal(answer, 403, "WORKLOAD_GRANT_INVALID")
    (outcome,) = able.post("workloads/batch/", {"workloads": [admission("k-2", capability_snapshot=["c"])]}).outcomes
    assert (outcome["status"], outcome["error"]["code"]) == (403, "WORKLOAD_GRANT_INVALID")
    # A grant of one's own making is no field.
    answer = able.post("workloads/", admission("k-2", grant=made.body["grant"]))
    assert refusal(answer, 400, "WORKLOAD_INVALID") == {"fields": ["grant"]}
    # What an Access row has lost, a replay does not give.
    able.user.workload_access.update(capabilities=frozenset())
    refusal(able.post("workloads/", admission(capability_snapshot=["b"])), 403, "WORKLOAD_GRANT_INVALID")


def test_a_requester_of_a_whole_tenant_asks_in_all_of_its_applications() -> None:
    wide = Caller("wes", place("requester", application="", capabilities={"a"}), place("requester", capabilities={"b"}))
    for application, capability, status in (("payroll", "a", 201), ("payroll", "b", 403), ("invoices", "b", 201)):
        body = admission(application_id=application, capability_snapshot=[capability])
        assert wide.post("workloads/", body).status == status
    # The application's own row goes before the tenant's.
    refusal(wide.post("workloads/", admission("k-2", capability_snapshot=["a"])), 403, "WORKLOAD_GRANT_INVALID")
    assert len(wide.get("workloads/").body["results"]) == 2


PAYLOADS = {
    "": ("input",),
    "result/": ("output", "artifacts"),
    "checkpoints/": ("state",),
    "events/": (),
    "attempts/": (),
    "why/": (),
}


@pytest.mark.parametrize("path", PAYLOADS)
def test_a_viewer_reads_payloads_only_if_its_row_says_so(path: str) -> None:
    id_ = done()
    allowed = Caller("val", place("viewer", reads_payloads=True))
    for caller in (CALLERS["operator"](), CALLERS["requester"](), allowed):
        answer = caller.get(f"workloads/{id_}/{path}")
        if path == "why/" and caller.name == "rita":
            continue
        rows = answer.body.get("results", [answer.body])
        assert all(name in row for row in rows for name in PAYLOADS[path])
    viewer = CALLERS["viewer"]()
    with CaptureQueriesContext(connection) as captured:
        answer = viewer.get(f"workloads/{id_}/{path}")
    assert "of rita's" not in answer.text and not any(f'"{name}"' in answer.text for name in PAYLOADS[path])
    if path in ("result/", "checkpoints/"):
        quote = connection.ops.quote_name
        assert not any(quote(name) in q["sql"] for q in captured for name in PAYLOADS[path])


def test_a_payload_right_without_the_role_of_viewer_gives_nothing() -> None:
    id_ = done()
    refusal(Caller("wim", place("worker", reads_payloads=True)).get(f"workloads/{id_}/"), 403, "FORBIDDEN")
    # A requester that is a viewer too reads the payloads of its own.
    rob = Caller("rob", place("requester", "viewer"))
    assert "input" not in rob.get(f"workloads/{id_}/").body
    own = admit("own", requested_by="rob", input={"n": 1})
    assert rob.get(f"workloads/{own}/").body["input"] == {"n": 1}
    refusal(rob.post(f"workloads/{id_}/cancel/"), 403, "FORBIDDEN")
    assert rob.post(f"workloads/{own}/cancel/").body["input"] == {"n": 1}


def test_access_that_was_taken_away_is_gone_at_the_next_call(worker: Caller) -> None:
    workload_id, fence = running()
    path = f"workloads/{workload_id}/heartbeat/"
    assert worker.post(path, fence | {"extend_ms": 1_000}).status == 200
    worker.user.workload_access.all().delete()
    refusal(worker.post(path, fence | {"extend_ms": 1_000}), 404, "WORKLOAD_NOT_FOUND")


def test_a_cycle_names_no_work_that_the_caller_neither_sees_nor_named() -> None:
    rita, rob = CALLERS["requester"](), CALLERS["another requester"]()
    mine = canonical.workload_id("acme", "invoices", "rob", "mine")
    first = rita.post("workloads/", admission("first", dependencies=[{"workload_id": mine}])).body["workload_id"]
    second = rita.post("workloads/", admission("second", dependencies=[{"workload_id": first}])).body["workload_id"]
    asked = admission("mine", dependencies=[{"workload_id": second}])
    details = refusal(rob.post("workloads/", asked), 400, "WORKLOAD_INVALID")
    assert details == {"field": "dependencies", "cycle": [mine, second]}
    (outcome,) = rob.post("workloads/batch/", {"workloads": [asked]}).outcomes
    assert outcome["error"]["details"] == details
    rob.user.workload_access.update(is_viewer=True)
    assert refusal(rob.post("workloads/", asked), 400, "WORKLOAD_INVALID")["cycle"] == [mine, second, first]


def test_an_intervention_stands_in_the_callers_name() -> None:
    operator = CALLERS["operator"]()
    workload_id = admit()
    assert operator.post(f"workloads/{workload_id}/time-out/", {"reason": "late"}).status == 200
    (event,) = operator.get(f"workloads/{workload_id}/events/").body["results"][2:3]
    assert event["actor"] == "otto" and event["evidence"]["reason"] == "late"
    body = {"actor": "rita", "reason": "mended"}
    answer = operator.post(f"workloads/{workload_id}/rearm/", body)
    assert refusal(answer, 400, "WORKLOAD_INVALID") == {"fields": ["actor"]}


def test_a_claimed_workloads_holder_is_no_ones_else(worker: Caller) -> None:
    held = claim(admit())
    answer = worker.post(f"workloads/{held.workload_id}/claim/", claiming(worker_id="w-2"))
    assert refusal(answer, 409, "WORKLOAD_NOT_READY") == {"state": "CLAIMED"}
    assert held.claim_id not in answer.text
