"""Grants: signed statements that an admission may come with. Section 4, "A grant"."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.core import signing

from tests.authority.builders import admit, id_of, refused, request, write_raw
from tests.support import T0, at
from workloads import authority
from workloads.models import Workload

pytestmark = pytest.mark.django_db


def issue(**changes: Any) -> str:
    values: dict[str, Any] = {
        "subject": "user",
        "tenant_id": "t",
        "application_id": "app",
        "capabilities": ["a", "b"],
        "issued_at": T0,
        "expires_at": at(1_000),
    }
    return authority.issue_grant(**(values | changes))


def test_a_grant_that_covers_the_request_lets_it_in_and_is_kept_as_signed() -> None:
    grant = issue()
    admitted = authority.admit(request(grant=grant, capability_snapshot={"a"}), now=at(1))
    assert admitted.created
    assert authority.get(id_of()).grant == grant


@pytest.mark.parametrize("capabilities", [(), {"a"}, {"a", "b"}])
def test_it_covers_its_capabilities_and_fewer(capabilities: Any) -> None:
    assert authority.admit(request(grant=issue(), capability_snapshot=capabilities), now=at(1)).created


@pytest.mark.parametrize("now", [T0, at(999)])
def test_it_holds_from_its_issue_until_just_before_its_end(now: dt.datetime) -> None:
    assert authority.admit(request(grant=issue()), now=now).created


def not_valid(grant: Any, reason: str, *, now: Any = T0, **changes: Any) -> None:
    with refused("WORKLOAD_GRANT_INVALID", {"reason": reason}):
        authority.admit(request(grant=grant, **changes), now=now)
    assert not Workload.objects.exists()


@pytest.mark.parametrize("now", [T0 - dt.timedelta(microseconds=1), at(1_000), at(5_000)])
def test_it_does_not_hold_before_or_after(now: dt.datetime) -> None:
    not_valid(issue(), "time", now=now)


@pytest.mark.parametrize(
    "change",
    [
        {"subject": "User"},
        {"tenant_id": "u"},
        {"application_id": "other"},
    ],
)
def test_it_names_this_requester_tenant_and_application(change: dict[str, Any]) -> None:
    not_valid(issue(**change), "scope")


@pytest.mark.parametrize("capabilities", [{"c"}, {"a", "b", "c"}, {"A"}])
def test_it_must_cover_every_capability(capabilities: Any) -> None:
    not_valid(issue(), "capabilities", capability_snapshot=capabilities)


@pytest.mark.parametrize(
    "spoil", [lambda g: "", lambda g: g[:-1], lambda g: "x" + g, lambda g: "nonsense", lambda g: "a\0\udc00"]
)
def test_what_does_not_verify_is_refused(spoil: Any) -> None:
    not_valid(spoil(issue()), "signature")


@pytest.mark.parametrize("statement", [[], 5, None, {"subject": "user"}, {"capabilities": 3}])
def test_what_is_signed_by_another_part_of_the_site_is_no_grant(statement: Any) -> None:
    not_valid(signing.dumps(statement), "signature")
    not_valid(signing.dumps(statement, salt="workloads.grant"), "signature")


def test_keys_rotate_with_the_sites_fallbacks(settings: Any) -> None:
    grant = issue()
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "the new key"
    assert authority.admit(request(grant=grant), now=T0).created
    settings.SECRET_KEY_FALLBACKS = []
    with refused("WORKLOAD_GRANT_INVALID"):
        authority.admit(request("other", grant=grant), now=T0)


def test_it_is_verified_before_any_replay_is_answered() -> None:
    authority.admit(request(), now=T0)
    for changes in ({}, {"priority": 3}):
        with refused("WORKLOAD_GRANT_INVALID"):
            authority.admit(request(grant=issue(), **changes), now=at(1_000))


def test_arguments_come_before_the_grant() -> None:
    with refused("WORKLOAD_INVALID"):
        authority.admit(request(grant="nonsense", priority=2**31), now=T0)
    with refused("WORKLOAD_SECRET_MATERIAL"):
        authority.admit(request(grant="nonsense", input={"password": "x"}), now=T0)


def test_in_a_batch_it_refuses_its_item_alone() -> None:
    refusal, admission = authority.admit_many([request("a", grant="x"), request("b", grant=issue())], now=T0)
    assert refusal.code == "WORKLOAD_GRANT_INVALID"  # type: ignore[union-attr]
    assert admission.created  # type: ignore[union-attr]


def test_issue_and_admission_go_by_the_databases_clock() -> None:
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=5)
    assert authority.admit(request(grant=issue(issued_at=None, expires_at=soon))).created
    past = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=5)
    with refused("WORKLOAD_INVALID"):
        issue(issued_at=None, expires_at=past)
    with refused("WORKLOAD_GRANT_INVALID"):
        authority.admit(request("other", grant=issue(issued_at=past - dt.timedelta(minutes=5), expires_at=past)))


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("subject", ""),
        ("tenant_id", " t"),
        ("application_id", None),
        ("capabilities", "a"),
        ("capabilities", [" "]),
        ("capabilities", [str(n) for n in range(101)]),
        ("expires_at", dt.datetime(2041, 6, 1)),
        ("expires_at", T0),
        ("issued_at", "now"),
    ],
)
def test_its_own_arguments_are_checked(field: str, bad: Any) -> None:
    with refused("WORKLOAD_INVALID") as caught:
        issue(**{field: bad})
    assert caught.value.details is not None
    assert caught.value.details["field"] == field


def test_a_grant_is_read_without_its_signature(settings: Any) -> None:
    grant = issue()
    workload_id = authority.admit(request(grant=grant, capability_snapshot={"a"}), now=at(1)).workload.workload_id
    standing = authority.read_grant(workload_id, now=at(999))
    assert standing is not None and standing.statement is not None
    assert (standing.verifies, standing.holds, standing.fault) == (True, True, None)
    stated = standing.statement
    assert (stated.subject, stated.tenant_id, stated.application_id) == ("user", "t", "app")
    assert stated.capabilities == {"a", "b"}
    assert (stated.issued_at, stated.expires_at) == (T0, at(1_000))
    assert grant not in repr(standing) and grant.rpartition(":")[2] not in repr(standing)
    later = authority.read_grant(workload_id, now=at(1_000))
    assert later is not None and later.verifies and later.holds is False
    settings.SECRET_KEY = "the new key"
    assert authority.read_grant(workload_id, now=at(1)) == type(standing)(verifies=False)


def test_a_read_grant_says_what_it_does_not_cover() -> None:
    workload_id = admit(grant=issue(), capability_snapshot={"a"}, now=at(1))
    write_raw("admitted", workload_id, capability_snapshot='["a","c"]')
    standing = authority.read_grant(workload_id, now=at(1))
    assert standing is not None and standing.fault == "capabilities"
    write_raw("admitted", workload_id, requested_by="somebody")
    standing = authority.read_grant(workload_id, now=at(1))
    assert standing is not None and standing.fault == "scope"


def test_a_grant_that_holds_by_the_databases_clock_is_told_so() -> None:
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=5)
    workload_id = admit(grant=issue(issued_at=None, expires_at=soon), now=None)
    standing = authority.read_grant(workload_id)
    assert standing is not None and standing.holds


def test_work_without_a_grant_has_none_to_read() -> None:
    assert authority.read_grant(admit()) is None
    for nothing in ("workload_nothing", "", None):
        with refused("WORKLOAD_NOT_FOUND"):
            authority.read_grant(nothing)  # type: ignore[arg-type]
