"""What the parameters of the list's address select, what is said of it, and what can't be read."""

from __future__ import annotations

import datetime as dt
from typing import Any
from urllib.parse import urlencode

import pytest
from django.http import QueryDict
from django.utils import timezone, translation

from tests.admin.conftest import admit, fail
from workloads import authority
from workloads.admin.criteria import NAMES, Criteria
from workloads.contract import Dependency
from workloads.models import Workload

NOW = dt.datetime(2041, 5, 6, 12, 0, tzinfo=dt.UTC)


def read(query: str, **options: Any) -> Criteria:
    return Criteria.read(QueryDict(query), **options)


def found(query: str, **options: Any) -> set[str]:
    criteria = read(query, **options)
    assert criteria.problems == {}
    return set(criteria.rows().values_list("idempotency_key", flat=True))


def at(value: str) -> dt.datetime:
    return dt.datetime.fromisoformat(value)


@pytest.fixture
def world(db: None) -> dict[str, Workload]:
    """Work of every kind that a filter tells apart."""
    made = {
        name: admit(name, **fields)
        for name, fields in {
            "ready": {},
            "later": {"not_before": timezone.now() + dt.timedelta(hours=1)},
            "dead": {"definition_id": "pay", "definition_revision": "2"},
            "odd": {"tenant_id": "other"},
            "held": {"application_id": "mail"},
            "running": {},
            "ended": {},
        }.items()
    }
    made["blocked"] = admit("blocked", dependencies=[Dependency(workload_id=made["ready"].workload_id)])
    fail(made["dead"], kind="disk", error="no space left on device")
    fail(made["odd"], kind="disk full", error="100% used")
    authority.time_out(made["ended"].workload_id, actor="a")
    for name in ("held", "running"):
        claim = authority.claim(made[name].workload_id, worker_id=f"w-{name}", capabilities=set(), lease_ms=60_000)
        if name == "running":
            authority.start(claim.fence)
    return {name: authority.get(workload.workload_id) for name, workload in made.items()}


EVERYTHING = {"ready", "later", "dead", "odd", "held", "running", "ended", "blocked"}
SELECTED = {
    "": EVERYTHING,
    "state=": EVERYTHING,
    "state=READY": {"ready", "later", "blocked"},
    "state=CLAIMED&state=RUNNING": {"held", "running"},
    "state=held": {"held", "running"},
    "state=parked": {"dead", "odd", "ended"},
    "state=parked&state=RUNNING": {"dead", "odd", "ended", "running"},
    "state=SUCCEEDED": set(),
    "definition=pay": {"dead"},
    "definition=pay%402": {"dead"},
    "definition=pay%403": set(),
    "definition=d&revision=1": EVERYTHING - {"dead"},
    "revision=2": {"dead"},
    "tenant=other": {"odd"},
    "tenant=Other": set(),
    "application=mail": {"held"},
    "worker=w-held": {"held"},
    "failure_kind=disk": {"dead"},
    "failure_kind=disk+full": {"odd"},
    "failure_kind=disk%25": set(),
    "failure_kind=timeout": {"ended"},
    "blocked=yes": {"blocked"},
    "due=now": {"ready"},
    "due=later": {"later"},
    "due_to=10m": set(),
    "due_to=0s": {"ready"},
    "due_from=0s": {"later"},
    "started_to=0s": {"running"},
    "started_to=1h": set(),
    "admitted_from=1h": EVERYTHING,
    "admitted_to=1h": set(),
    "finished_from=1h": {"dead", "odd", "ended"},
    "finished_from=1h&state=DEAD_LETTER": {"dead", "odd"},
    "finished_to=1h": set(),
    "q=dead": {"dead"},
    "q=+dead+": {"dead"},
    "q=dea": set(),
    "failure=SPACE&state=parked&finished_from=1h": {"dead"},
    "failure=100%25&state=parked&finished_from=1h": {"odd"},
    "failure=1%250&state=parked&finished_from=1h": set(),
    "failure=n_&state=parked&finished_from=1h": set(),
}


@pytest.mark.parametrize("query", SELECTED)
def test_each_parameter_selects_what_it_says(world: dict[str, Workload], query: str) -> None:
    assert found(query) == SELECTED[query]


def test_a_workload_is_found_by_its_id_and_by_the_claim_or_attempt_that_holds_it(world: dict[str, Workload]) -> None:
    assert found(f"q={world['later'].workload_id}") == {"later"}
    assert found(f"q={world['held'].claim_id}") == {"held"}
    assert found(f"q={world['running'].attempt_id}") == {"running"}
    assert found(f"q={'0' * 32}") == set()


@pytest.mark.django_db
def test_an_idempotency_key_may_look_like_a_claims_id() -> None:
    admit("0123456789abcdef" * 2)
    assert found(f"q={'0123456789abcdef' * 2}") == {"0123456789abcdef" * 2}


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("state", "state=READY&state=ready"),
        ("tenant", "tenant=a&tenant=b"),
        ("tenant", "tenant=%00"),
        ("tenant", f"tenant={'x' * 201}"),
        ("definition", "definition=a%0Ab"),
        ("revision", "definition=a%40%07"),
        ("blocked", "blocked=no"),
        ("due", "due=soon"),
        ("q", "q=%00"),
        ("q", f"q={'x' * 300}"),
        ("failure", "failure=words"),
        ("failure", "failure=words&state=parked"),
        ("failure", "failure=words&finished_from=24h"),
        ("failure", "failure=words&failure_kind=a&finished_from=24h"),
        ("failure", f"failure={'x' * 201}&state=parked&finished_from=24h"),
        ("failure", "failure=%00&state=parked&finished_from=24h"),
        ("finished_from", "finished_from=yesterday"),
        ("finished_from", "finished_from=24"),
        ("finished_from", "finished_from=-24h"),
        ("finished_from", "finished_from=99999d"),
        ("finished_to", "finished_to=2026-02-30"),
        ("finished_to", "finished_to=0001-01-01"),
        ("finished_to", "finished_to=9999-12-31"),
        ("finished_to", "finished_to=9999-12-31T23:59:59-12:00"),
        ("input__contains", "input__contains=a"),
        ("State", "State=READY"),
    ],
)
def test_what_cannot_be_read_is_said_and_selects_nothing(db: None, name: str, query: str) -> None:
    admit()
    criteria = read(query)
    assert list(criteria.problems) == [name]
    assert all(criteria.problems.values())
    assert list(criteria.rows()) == []
    # Kept for later, it is still not read: it must not select more then.
    assert list(read(criteria.query).problems) == [name]
    assert list(criteria.pinned().problems) == [name]
    assert name not in criteria.sentences()


@pytest.mark.parametrize("query", [query for query in SELECTED if "%40" not in query])
def test_the_query_read_again_is_the_same_selection(db: None, query: str) -> None:
    first = read(query, now=NOW)
    again = read(first.query, now=NOW)
    assert again == first
    assert again.query == first.query


def test_the_query_has_one_order_and_leaves_out_what_is_empty_or_the_pages_own(db: None) -> None:
    assert read("tenant=b&state=RUNNING&application=&q=+a+&state=READY&at=x&p=3").query == (
        "q=a&state=RUNNING&state=READY&tenant=b"
    )
    assert read("definition=pay%402").query == "definition=pay&revision=2"


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("90s", "2041-05-06T11:58:30Z", "2041-05-06T11:58:30Z"),
        ("10m", "2041-05-06T11:50Z", "2041-05-06T11:50Z"),
        ("24h", "2041-05-05T12:00Z", "2041-05-05T12:00Z"),
        ("7d", "2041-04-29T12:00Z", "2041-04-29T12:00Z"),
        ("2041-05-01", "2041-04-30T22:00Z", "2041-05-01T22:00Z"),
        ("2041-05-01T10:00", "2041-05-01T08:00Z", "2041-05-01T08:00Z"),
        ("2041-05-01 10:00", "2041-05-01T08:00Z", "2041-05-01T08:00Z"),
        ("2041-05-01T10:00:00Z", "2041-05-01T10:00Z", "2041-05-01T10:00Z"),
        ("2041-05-01T10:00:00+05:00", "2041-05-01T05:00Z", "2041-05-01T05:00Z"),
        ("2041-05-01T10:00:00 05:00", "2041-05-01T05:00Z", "2041-05-01T05:00Z"),
    ],
)
def test_times_are_read_in_the_zone_of_the_reader(text: str, start: str, end: str) -> None:
    with timezone.override("Europe/Berlin"):
        criteria = read(urlencode({"admitted_from": text, "admitted_to": text}), now=NOW)
    assert criteria.values == {"admitted_from": at(start), "admitted_to": at(end)}


def test_pinned_it_selects_later_what_it_selects_now() -> None:
    pinned = read("finished_from=24h&due=later&state=READY&q=a", now=NOW).pinned()
    later = read(pinned.query, now=NOW + dt.timedelta(days=3))
    assert later.values["finished_from"] == at("2041-05-05T12:00Z")
    assert later.values["due_from"] == NOW
    assert later.values["state"] == ("READY",)
    assert read("due=now", now=NOW).pinned().values == {"due_to": NOW}
    # Beside a time of its own, "now" adds nothing that has an end.
    assert read("due=now&due_to=10m", now=NOW).pinned().values == {"due": "now", "due_to": at("2041-05-06T11:50Z")}


def test_each_condition_is_said_in_a_sentence() -> None:
    every = "&".join(f"{name}={value}" for name, value in SAID.items())
    with translation.override("en"), timezone.override("Europe/Berlin"):
        criteria = read(every, now=NOW)
        assert criteria.problems == {}
        assert set(criteria.sentences()) == set(NAMES)
        assert len(criteria.said) == len(NAMES)
        text = "\n".join(criteria.said)
        assert "The state is FAILED, TIMED_OUT or DEAD_LETTER." in text
        assert "The definition is “pay & <b>”." in text
        assert "It finished, or was parked, no earlier than 24 hours ago (2041-05-05 14:00:00+02:00)." in text
        assert "It finished, or was parked, before 2041-05-07 00:00:00+02:00." in text
        assert "1 second ago" in "".join(read("due_to=1s").said)
        assert "1 minute ago" in "".join(read("due_to=1m").said)
        assert "2 days ago" in "".join(read("due_to=2d").said)


SAID = {
    **dict.fromkeys(("q", "revision", "tenant", "application", "worker", "failure_kind", "failure"), "x"),
    "definition": "pay+%26+<b>",
    "state": "parked",
    "blocked": "yes",
    "due": "now",
    **{f"{name}_{end}": "24h" for name in ("admitted", "finished", "due", "started") for end in ("from", "to")},
    "finished_to": "2041-05-06",
}
