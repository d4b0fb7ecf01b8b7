"""Reading: lists, their filters, orders and pages; histories; figures."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from workloads.testing.site import Site, unique


def listed(site: Site, **parameters: Any) -> dict[str, Any]:
    asked = {"tenant_id": site.tenant, "definition_id": site.definition, **parameters}
    page: dict[str, Any] = site.line.get("workloads/", **asked).ok(200)
    assert set(page) == {"next", "previous", "results"}
    return page


def ids(page: dict[str, Any]) -> list[str]:
    return [row["workload_id"] for row in page["results"]]


def follow(site: Site, link: str) -> dict[str, Any]:
    """Read the page that a link leads to, by the parameters in it: a proxy may have changed the rest."""
    query = {name: values if len(values) > 1 else values[0] for name, values in parse_qs(urlsplit(link).query).items()}
    page: dict[str, Any] = site.line.get("workloads/", **query).ok(200)
    return page


def test_pages_hold_each_row_once_both_ways(site: Site) -> None:
    admitted = [site.admit(priority=number % 2)["workload_id"] for number in range(7)]
    for ordering, expected in (
        ("created_at", admitted),
        ("-created_at", admitted[::-1]),
        ("priority", None),
        ("-priority", None),
    ):
        pages = [listed(site, ordering=ordering, page_size=3)]
        assert pages[0]["previous"] is None
        while pages[-1]["next"]:
            pages.append(follow(site, pages[-1]["next"]))
        assert [len(page["results"]) for page in pages] == [3, 3, 1]
        found = [id_ for page in pages for id_ in ids(page)]
        assert sorted(found) == sorted(admitted)
        if expected:
            assert found == expected
        else:
            priorities = [row["priority"] for page in pages for row in page["results"]]
            assert priorities == sorted(priorities, reverse=ordering.startswith("-"))
        back = follow(site, pages[2]["previous"])
        assert ids(back) == ids(pages[1]) and ids(follow(site, back["previous"])) == ids(pages[0])


def test_newest_comes_first(site: Site) -> None:
    admitted = [site.admit()["workload_id"] for _ in range(3)]
    assert ids(listed(site)) == admitted[::-1]


def test_a_list_leaves_the_input_out(site: Site) -> None:
    record = site.admit(input={"n": 1})
    (row,) = listed(site)["results"]
    assert "input" in record and row == {name: value for name, value in record.items() if name != "input"}


def test_filters_choose(site: Site) -> None:
    plain = site.admit(priority=1, environment="test")
    blocked = site.admit(dependencies=[{"workload_id": plain["workload_id"]}], definition_revision="2", priority=5)
    claim = site.running(priority=9)
    site.fail(claim, kind="bad_input", error="Nothing to print").ok(200)
    failed = claim["workload_id"]
    key = plain["idempotency_key"]
    everything = {plain["workload_id"], blocked["workload_id"], failed}
    for parameters, expected in (
        ({"state": "DEAD_LETTER"}, {failed}),
        ({"state": ["DEAD_LETTER", "READY"]}, everything),
        ({"state": "CANCELLED"}, set()),
        ({"environment": "test"}, {plain["workload_id"]}),
        ({"definition_revision": "2"}, {blocked["workload_id"]}),
        ({"idempotency_key": key}, {plain["workload_id"]}),
        ({"requested_by": site.user}, everything),
        ({"requested_by": unique()}, set()),
        ({"application_id": site.application}, everything),
        ({"priority_min": 5}, {blocked["workload_id"], failed}),
        ({"priority_max": 5}, {plain["workload_id"], blocked["workload_id"]}),
        ({"blocked": "true"}, {blocked["workload_id"]}),
        ({"blocked": "false"}, {plain["workload_id"], failed}),
        ({"failure_kind": "bad_input"}, {failed}),
        ({"failure": "nothing to", "created_after": plain["created_at"]}, {failed}),
        ({"created_after": plain["created_at"]}, everything),
        ({"created_before": plain["created_at"]}, set()),
        ({"finished_after": plain["created_at"]}, {failed}),
        ({"finished_before": plain["created_at"]}, set()),
        ({"next_attempt_before": "2899-01-01T00:00:00Z", "state": "READY"}, everything - {failed}),
        ({"ordering": "finished_at"}, {failed}),
    ):
        assert set(ids(listed(site, **parameters))) == expected, parameters
    running = site.running()
    assert ids(listed(site, worker_id=site.worker)) == [running["workload_id"]]


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"page_size": 501}, "page_size"),
        ({"page_size": 0}, "page_size"),
        ({"page_size": "x"}, "page_size"),
        ({"cursor": "x"}, "cursor"),
        ({"ordering": "input"}, "ordering"),
        ({"state": "DONE"}, "state"),
        ({"priority_min": "high"}, "priority_min"),
        ({"created_after": "yesterday"}, "created_after"),
        ({"created_after": "2026-01-01T00:00:00"}, "created_after"),
        ({"blocked": "maybe"}, "blocked"),
        ({"failure": "x"}, "failure"),
        ({"tenant_id": ""}, "tenant_id"),
        ({"tenant_id": "\0"}, "tenant_id"),
    ],
)
def test_a_parameter_that_can_not_be_read_is_named(site: Site, parameters: dict[str, Any], named: str) -> None:
    site.line.get("workloads/", **parameters).refused("WORKLOAD_INVALID", field=named)


def test_a_parameter_that_is_not_known_is_refused(site: Site) -> None:
    id_ = site.admit()["workload_id"]
    for path in ("workloads/", f"workloads/{id_}/", f"workloads/{id_}/events/", "stats/", f"workloads/{id_}/why/"):
        site.line.get(path, page=1, sort="x").refused("WORKLOAD_INVALID", fields=["page", "sort"])


def test_histories_come_in_pages_in_order(site: Site) -> None:
    claim = site.running()
    for number in range(5):
        site.say("checkpoints", claim, state=number).ok(200)
    path = f"workloads/{claim['workload_id']}/checkpoints/"
    first = site.line.get(path, page_size=2).ok(200)
    assert [row["state"] for row in first["results"]] == [0, 1] and first["previous"] is None
    cursor = parse_qs(urlsplit(first["next"]).query)["cursor"][0]
    second = site.line.get(path, page_size=2, cursor=cursor).ok(200)
    assert [row["state"] for row in second["results"]] == [2, 3]
    events = site.history(claim["workload_id"], "events")
    assert [event["sequence"] for event in events] == list(range(1, 10))
    assert site.history(claim["workload_id"], "result") == []
    # A cursor is its own list's.
    site.line.get("workloads/", cursor=cursor).refused("WORKLOAD_INVALID", field="cursor")


@pytest.mark.parametrize("of", ["", "events/", "attempts/", "checkpoints/", "result/", "why/"])
def test_what_does_not_exist_is_not_found(site: Site, of: str) -> None:
    for id_ in (unique("workload_"), "nothing", "%00", "%20", "a%3Fb"):
        site.line.get(f"workloads/{id_}/{of}").refused("WORKLOAD_NOT_FOUND")


def test_figures_count(site: Site) -> None:
    site.admit()
    claim = site.running()
    site.complete(claim).ok(200)
    stats = site.line.get("stats/", tenant_id=site.tenant, definition_id=site.definition).ok(200)
    counts = {state: found["count"] for state, found in stats["counts"].items() if found["count"]}
    assert counts == {"READY": 1, "SUCCEEDED": 1}
    assert stats["oldest_claimable_ms"] >= 0
    for span in ("minute", "hour"):
        assert stats["last"][span]["claims"] == stats["last"][span]["completions"] == {"count": 1, "more": False}


def test_health_says_little_to_strangers(site: Site, nobody: Any) -> None:
    told = nobody.get("health/")
    assert told.status in (200, 503) and told.body == {"ok": told.status == 200}
    assert set(site.line.get("health/").body["details"]) >= {"database", "migrations"}
