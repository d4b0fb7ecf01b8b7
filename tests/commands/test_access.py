"""`workloads_access` and `workloads_token`: who may do what over HTTP, and with which tokens."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from knox.models import AuthToken

from tests.api.tools import Caller, claiming
from workloads.models import Access

pytestmark = pytest.mark.django_db


def run(command, *arguments):
    out, err = StringIO(), StringIO()
    call_command(command, *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def access(*arguments):
    return run("workloads_access", *arguments)[0]


@pytest.fixture
def user():
    return get_user_model().objects.create_user("wanda")


def test_a_user_may_do_nothing_at_first(user):
    assert access("wanda") == "wanda may do nothing.\n"


def test_roles_are_given_changed_and_taken_away(user):
    given = ["--tenant", "acme", "--application", "invoices"]
    worker = ["--role", "worker", "--worker-prefix", "w-", "--capability", "gpu", "--capability", "disk"]
    said = access("wanda", *given, *worker)
    assert said == "acme/invoices: worker; capabilities disk, gpu; worker ids w-…\n"
    assert access("wanda", *given, "--role", "viewer", "--role", "operator") == "acme/invoices: operator, viewer\n"
    assert Access.objects.count() == 1
    assert json.loads(access("wanda", "--json")) == {
        "user": "wanda",
        "tenant_id": "acme",
        "application_id": "invoices",
        "roles": ["operator", "viewer"],
        "capabilities": [],
        "worker_prefix": "",
        "reads_payloads": False,
    }
    assert access("wanda", *given, "--remove") == "wanda may do nothing.\n"


def test_a_whole_tenant_needs_no_application(user):
    assert access("wanda", "--tenant", "acme", "--role", "viewer") == "acme/*: viewer\n"


def test_a_user_is_made_on_demand_without_a_password():
    with pytest.raises(CommandError) as refused:
        access("nobody", "--tenant", "acme", "--role", "viewer")
    assert refused.value.returncode == 2
    access("nobody", "--create-user", "--tenant", "acme", "--role", "viewer")
    assert not get_user_model().objects.get(username="nobody").has_usable_password()


@pytest.mark.parametrize(
    "wrong",
    [
        ["--tenant", "acme"],
        ["--tenant", " acme", "--role", "viewer"],
        ["--tenant", "acme", "--application", "a\n", "--role", "viewer"],
        ["--tenant", "acme", "--role", "worker", "--capability", ""],
        ["--tenant", "acme", "--role", "worker", "--worker-prefix", "w "],
        ["--role", "viewer"],
        ["--remove"],
    ],
)
def test_what_gives_nothing_or_names_nothing_is_refused(user, wrong):
    with pytest.raises(CommandError):
        access("wanda", *wrong)
    with pytest.raises(CommandError):
        access("walter", "--create-user", *wrong)
    assert not Access.objects.exists()
    assert not get_user_model().objects.filter(username="walter").exists()


@pytest.mark.parametrize(
    ("where", "prefix", "is_taken"),
    [
        ("invoices", "w-", True),
        ("invoices", "w-1", True),
        ("invoices", "", True),
        ("", "w-1.", True),
        ("reports", "w-", False),
        ("invoices", "x-", False),
    ],
)
def test_no_two_users_have_the_same_worker_ids(user, where, prefix, is_taken):
    access("wanda", "--tenant", "acme", "--application", "invoices", "--role", "worker", "--worker-prefix", "w-1")
    arguments = ["walter", "--create-user", "--tenant", "acme", "--role", "worker", "--worker-prefix", prefix]
    if is_taken:
        with pytest.raises(CommandError, match="prefix"):
            access(*arguments, "--application", where)
    else:
        access(*arguments, "--application", where)
    # In another tenant nobody is in the way.
    access("walter", "--create-user", "--tenant", "other", "--role", "worker", "--worker-prefix", "w-1")


def test_a_token_opens_what_access_allows_and_is_kept_as_a_hash(user):
    access("wanda", "--tenant", "acme", "--application", "invoices", "--role", "worker", "--worker-prefix", "w-")
    token, note = run("workloads_token", "wanda", "--days", "2")
    assert "not shown again" in note
    token = token.strip()
    row = AuthToken.objects.get()
    assert token not in "".join(str(value) for value in vars(row).values())
    caller = Caller(None)
    caller.headers["authorization"] = f"Bearer {token}"
    assert caller.post("claims/", claiming()).body == {"claims": []}
    listed, _ = run("workloads_token", "wanda", "--list")
    assert row.token_key in listed and token not in listed
    assert run("workloads_token", "wanda", "--revoke", token)[0] == "1 revoked.\n"
    assert caller.post("claims/", claiming()).code == "UNAUTHENTICATED"


def test_all_tokens_are_revoked_at_once(user):
    for _ in range(3):
        run("workloads_token", "wanda")
    assert run("workloads_token", "wanda", "--revoke-all")[0] == "3 revoked.\n"
    assert not AuthToken.objects.exists()


@pytest.mark.parametrize("wrong", [["--days", "0"], ["--days", "9999"], ["--revoke", "nothing"], ["--revoke", ""]])
def test_tokens_that_are_none_are_refused(user, wrong):
    with pytest.raises(CommandError):
        run("workloads_token", "wanda", *wrong)


def test_tokens_are_for_users_that_there_are():
    with pytest.raises(CommandError) as refused:
        run("workloads_token", "nobody")
    assert refused.value.returncode == 2


def test_without_knox_it_is_said_what_is_missing(user, settings):
    settings.INSTALLED_APPS = [name for name in settings.INSTALLED_APPS if name != "knox"]
    with pytest.raises(CommandError, match="knox"):
        run("workloads_token", "wanda")
