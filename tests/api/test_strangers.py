"""Who may what: every path, by every voice; and that the unseen can't be told from what does not exist."""

from __future__ import annotations

import pytest

from tests.api.routes import MISSING, OF_ONE, OPEN, POSTS, ROUTES, Route, body_for, shapes_of_queries
from tests.api.tools import Answer, claiming, refusal
from tests.api.world import CALLERS, HIDDEN, STRANGERS, admit, claim, dead, done, running
from workloads import authority
from workloads.api import filters, pages
from workloads.models import Workload

pytestmark = pytest.mark.django_db

READING = {"requester", "operator", "viewer"}
WORKING = {"worker"}
MAY = {
    "POST workloads": {"requester"},
    "POST batch": {"requester"},
    "GET workloads": READING,
    "GET workload": READING,
    "GET events": READING,
    "GET attempts": READING,
    "GET checkpoints": READING,
    "GET result": READING,
    "GET why": {"operator", "viewer"},
    "GET stats": {"operator", "viewer"},
    "POST cancel": {"requester", "operator"},
    "POST rearm": {"operator"},
    "POST time-out": {"operator"},
    "POST claims": WORKING,
    "POST claim": WORKING,
    "POST start": WORKING,
    "POST heartbeat": WORKING,
    "POST context": WORKING,
    "POST checkpoints": WORKING,
    "POST complete": WORKING,
    "POST fail": WORKING,
    "POST release": WORKING,
    "POST confirm-cancel": WORKING,
    "POST heartbeats": WORKING,
    "POST completions": WORKING,
}
MEMBERS = ("requester", "worker", "another worker", "operator", "viewer")


def test_the_table_has_every_path() -> None:
    assert {route.key for route in ROUTES} == MAY.keys() | OPEN


def standing(answer: Answer) -> str:
    """Return what an answer says of the caller's right."""
    said = answer.body
    if answer.status == 200 and "outcomes" in said:
        (outcome,) = said["outcomes"]
        code = outcome.get("error", {}).get("code")
    else:
        code = said.get("code")
    return {"UNAUTHENTICATED": "unknown", "FORBIDDEN": "forbidden", "WORKLOAD_NOT_FOUND": "unseen"}.get(code, "may")


@pytest.mark.parametrize("route", [r for r in ROUTES if r.key not in OPEN], ids=str)
def test_each_voice_may_what_the_table_says(route: Route) -> None:
    workload_id, fence = running()
    for name, caller in CALLERS.items():
        answer = caller().ask(route.method, route.url(workload_id), body_for(route, workload_id, fence))
        if name == "nobody":
            expected = "unknown"
        elif name in MEMBERS:
            role = "worker" if name == "another worker" else name
            expected = "may" if role in MAY[route.key] else "forbidden"
            if name == "another worker" and expected == "may":
                # The bodies name w-1.
                expected = "forbidden"
        elif name == "another requester" and not route.is_of_one:
            expected = "may" if "requester" in MAY[route.key] else "forbidden"
        elif route.key in ("POST workloads", "POST batch"):
            expected = "forbidden"
        elif route.key == "POST claims":
            expected = "may"
            assert answer.body == {"claims": []}
        elif route.key in ("GET workloads", "GET stats"):
            expected = "forbidden" if name == "without access" else "may"
            assert workload_id not in answer.text
        else:
            expected = "unseen"
        if "items" in (body_for(route) or {}) and name in MEMBERS and expected != "may":
            assert standing(answer) == "forbidden", (name, answer.text)
            continue
        if "items" in (body_for(route) or {}) and name == "another requester":
            expected = "unseen"
        assert standing(answer) == expected, (name, answer.status, answer.text)


@pytest.mark.parametrize("route", [r for r in ROUTES if r.key in OPEN], ids=str)
def test_what_is_open_is_open_to_nobody_too(route: Route) -> None:
    assert CALLERS["nobody"]().get(route.url()).status in (200, 503)


def test_a_superuser_without_access_is_a_stranger() -> None:
    workload_id, _ = running()
    caller = CALLERS["without access"]()
    caller.user.is_superuser = caller.user.is_staff = True
    caller.user.save()
    refusal(caller.get(f"workloads/{workload_id}/"), 404, "WORKLOAD_NOT_FOUND")
    refusal(caller.get("workloads/"), 403, "FORBIDDEN")


def bodies(route: Route, fence: dict, *, is_short: bool) -> list:
    """Return bodies for a route, good and bad in several ways."""
    good = body_for(route, fence=fence)
    if good is None:
        return [None]
    found = [good, {}, good | {"unknown": 1}, [good], b"{"]
    if is_short:
        return found
    found += [good | {name: value} for name in good for value in (None, "\0", {"password": "hunter2"})]
    if "output" in good:
        found += [good | {"output": "x" * 300_000}, good | {"output": {"password": "hunter2"}}]
    return found


@pytest.mark.parametrize("route", OF_ONE, ids=str)
def test_the_unseen_is_answered_as_what_does_not_exist_is(route: Route) -> None:
    workload_id, fence = running()
    queries = [""] if route.method == "POST" else ["", "?cursor=rubbish", "?page_size=1", "?unknown=1"]
    for name in STRANGERS:
        caller = CALLERS[name]()
        for body in bodies(route, fence, is_short=name not in ("another tenant's", "another requester")):
            for query in queries:
                with shapes_of_queries() as seen:
                    unseen = caller.ask(route.method, route.url(workload_id) + query, body)
                with shapes_of_queries() as asked:
                    missing = caller.ask(route.method, route.url(MISSING) + query, body)
                assert unseen.same() == missing.same(), name
                assert seen == asked, name
                assert unseen.status in (400, 404, 413, 422) and fence["claim_id"] not in unseen.text
    assert authority.get(workload_id).version == 4


@pytest.mark.parametrize("route", [r for r in POSTS if r.name in ("heartbeats", "completions")], ids=str)
def test_a_batch_item_for_the_unseen_is_answered_as_one_for_what_does_not_exist(route: Route) -> None:
    workload_id, fence = running()
    for name in STRANGERS:
        caller = CALLERS[name]()
        (item,) = body_for(route, workload_id, fence)["items"]
        for good in (item, item | {"unknown": 1}, item | {"fencing_token": "1"}, item | {"extend_ms": 0}):
            answers, shapes = [], []
            for id_ in (workload_id, MISSING):
                with shapes_of_queries() as seen:
                    answers.append(caller.post(route.url(), {"items": [good | {"workload_id": id_}]}).same())
                shapes.append(seen)
            assert answers[0] == answers[1] and shapes[0] == shapes[1], name
            assert '"status":404' in answers[0][2] or '"status":400' in answers[0][2]
        both = caller.post(route.url(), {"items": [item, item | {"workload_id": MISSING}, item]}).outcomes
        assert both[0] == both[1] == both[2]
    assert authority.get(workload_id).version == 4


def hidden_values(workload_id: str) -> dict[str, str]:
    """Return, for each filter, a value that only rita's work has."""
    return HIDDEN | {
        "state": "DEAD_LETTER",
        "tenant_id": "acme",
        "application_id": "invoices",
        "requested_by": "rita",
        "worker_id": "w-1",
        "priority_min": "-5",
        "priority_max": "5",
        "created_after": "2001-01-01T00:00:00Z",
        "created_before": "2800-01-01T00:00:00Z",
        "finished_after": "2001-01-01T00:00:00Z",
        "finished_before": "2800-01-01T00:00:00Z",
        "next_attempt_before": "2800-01-01T00:00:00Z",
        "failure_kind": "hidden-kind",
        "blocked": "false",
        "failure": "hidden&state=DEAD_LETTER&created_after=2001-01-01T00:00:00Z",
    }


@pytest.mark.parametrize("name", [n for n in STRANGERS if n != "without access"])
def test_no_filter_no_ordering_and_no_figure_tells_of_the_unseen(name: str) -> None:
    caller = CALLERS[name]()
    values = hidden_values("")
    assert values.keys() == set(filters.NAMES)
    queries = ["", *(f"?{key}={value}" for key, value in values.items())]
    queries += [f"?ordering={order}&page_size=1" for order in pages.ORDERS]
    # Figures are dear, and one tenant's stranger is another application's to them.
    figures = [q for q in queries if "ordering" not in q] if name == "another application's" else [""]
    if name == "another requester":
        figures = []
    asked = [f"workloads/{q}" for q in queries] + [f"stats/{q}" for q in figures]

    def look() -> list:
        found = [caller.get(path) for path in asked]
        return [(a.status, {k: v for k, v in a.body.items() if k != "at"}) for a in found]

    empty = look()
    assert {status for status, _ in empty} == {200}
    running()
    done()
    dead()
    admit("waiting", not_before=None, dependencies=())
    assert look() == empty
    assert all(body.get("results", []) == [] for _, body in empty)


def test_filters_find_nobody_elses_work_beside_ones_own() -> None:
    rita, rob = CALLERS["requester"](), CALLERS["another requester"]()
    mine = admit("mine", requested_by="rob")
    others = [admit("hers"), admit("elsewhere", tenant_id="globex"), admit("there", application_id="payroll")]
    for query in ("", "?requested_by=rita", "?requested_by=rob", "?state=READY", "?ordering=priority"):
        found = [row["workload_id"] for row in rob.get(f"workloads/{query}").body["results"]]
        assert found == ([] if query == "?requested_by=rita" else [mine])
    assert [row["workload_id"] for row in rita.get("workloads/").body["results"]] == others[:1]
    operator = CALLERS["operator"]()
    assert {row["workload_id"] for row in operator.get("workloads/").body["results"]} == {mine, others[0]}
    assert operator.get("stats/").body["counts"]["READY"]["count"] == 2
    assert operator.get("workloads/?tenant_id=globex").body["results"] == []
    assert operator.get("stats/?tenant_id=globex").body["counts"]["READY"]["count"] == 0


def test_a_cursor_of_one_caller_shows_another_nothing() -> None:
    for key in ("one", "two", "three"):
        admit(key)
    link = CALLERS["operator"]().get("workloads/?page_size=1").body["next"]
    for name in ("another tenant's", "another requester"):
        assert CALLERS[name]().get(link).body["results"] == []
    refusal(CALLERS["without access"]().get(link), 403, "FORBIDDEN")


def test_claims_give_a_stranger_nothing_and_touch_nothing() -> None:
    workload_id = admit()
    for name in ("another tenant's", "the whole of another tenant's", "another application's", "a name alike"):
        caller = CALLERS[name]()
        for names in ({"tenant_id": "acme"}, {"tenant_id": "acme", "application_id": "invoices"}):
            # Before capabilities are looked at: these are more than it may present.
            body = claiming(**names, capabilities=["a", "b"])
            answer = caller.post("claims/", body)
            if name in ("another application's", "a name alike") and "application_id" not in names:
                assert refusal(answer, 403, "FORBIDDEN") == {"field": "capabilities"}
            else:
                assert answer.body == {"claims": []}, name
    assert Workload.objects.get(workload_id=workload_id).version == 1
    assert claim(workload_id).attempt_number == 1


def test_blockers_and_refusals_name_no_work_of_others() -> None:
    elsewhere = admit("of another tenant", tenant_id="globex")
    needs = [{"workload_id": elsewhere}]
    requester, operator, worker = (CALLERS[name]() for name in ("requester", "operator", "worker"))
    made = requester.post("workloads/", body_for(POSTS[0]) | {"dependencies": needs})
    unmade = requester.post(
        "workloads/", body_for(POSTS[0]) | {"idempotency_key": "k2", "dependencies": [{"workload_id": MISSING}]}
    )
    pages_ = []
    for answer, id_ in ((made, elsewhere), (unmade, MISSING)):
        path = f"workloads/{answer.body['workload_id']}/"
        why = operator.get(path + "why/").text
        refused = worker.post(path + "claim/", claiming()).text
        pages_.append((why.replace(id_, "?"), refused.replace(id_, "?")))
        assert "dependencies_unmet" in why and "WORKLOAD_NOT_READY" in refused
    assert pages_[0] == pages_[1]
    authority.cancel(elsewhere, actor="op")
    authority.run_pass()
    assert requester.get(f"workloads/{made.body['workload_id']}/").body["state"] == "READY"
