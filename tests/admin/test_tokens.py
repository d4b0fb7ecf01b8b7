"""Tokens in the admin: shown once and nowhere else, for those who have access, and revoked for good."""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone
from knox.models import AuthToken

from tests.api.tools import Caller, claiming
from workloads.admin import token_pages
from workloads.models import Access

pytestmark = pytest.mark.django_db

TOKENS = "/admin/workloads/access/tokens/"
ISSUE = f"{TOKENS}issue/"
NASTY = "<script>alert(1)</script>"


def with_access(name: str = "wanda", **fields: Any) -> Any:
    user = get_user_model().objects.create_user(name, **fields)
    Access.objects.create(user=user, tenant_id="acme", is_worker=True, worker_prefix=name)
    return user


def once(client: Client) -> str:
    return re.search(r'name="once" value="([^"]+)"', client.get(ISSUE).content.decode())[1]


def issue(client: Client, name: str = "wanda", days: Any = 30, **more: Any) -> Any:
    return client.post(ISSUE, {"user": name, "days": days, "once": once(client), **more})


def secret_in(answer: Any) -> str:
    return re.search(r"<code>(\w{64})</code>", answer.content.decode())[1]


def revoke_url(client: Client) -> str:
    return re.search(r'href="([^"]+/revoke/)"', client.get(TOKENS).content.decode())[1]


def test_a_token_is_shown_once_and_kept_nowhere(admin_client: Client, caplog: pytest.LogCaptureFixture) -> None:
    user = with_access()
    with caplog.at_level(logging.DEBUG):
        answer = issue(admin_client)
    secret = secret_in(answer)
    assert answer.status_code == 200
    assert {"no-store", "private", "max-age=0"} <= set(answer["Cache-Control"].replace(",", "").split())
    # Not in a message, a session, a cookie, an address, the log of the admin or of the server, or the row.
    text = answer.content.decode()
    assert text.count(secret) == 1
    assert secret not in str(answer.request) and secret not in str(answer.headers) + str(answer.cookies)
    assert not list(answer.context["messages"])
    assert all(secret not in str(session.get_decoded()) for session in Session.objects.all())
    assert secret not in caplog.text
    assert secret not in "".join(str(vars(entry)) for entry in LogEntry.objects.all())
    row = AuthToken.objects.get(user=user)
    assert secret not in "".join(str(value) for value in vars(row).values())
    for path in (TOKENS, ISSUE, "/admin/", "/admin/workloads/access/"):
        assert secret not in admin_client.get(path).content.decode()
    assert abs(row.expiry - timezone.now() - dt.timedelta(days=30)) < dt.timedelta(minutes=1)


def test_it_opens_what_its_users_access_opens_until_it_is_revoked(admin_client: Client) -> None:
    user = with_access("w")
    caller = Caller(None)
    caller.headers["authorization"] = f"Bearer {secret_in(issue(admin_client, 'w'))}"
    assert caller.post("claims/", claiming()).status == 200
    url = revoke_url(admin_client)
    page = admin_client.get(url).content.decode()
    assert "This can't be undone" in page or "This can&#x27;t be undone" in page
    assert AuthToken.objects.filter(user=user).count() == 1
    answer = admin_client.post(url, follow=True)
    assert answer.redirect_chain == [(TOKENS, 302)]
    assert ["revoked" in str(message) for message in answer.context["messages"]] == [True]
    assert caller.post("claims/", claiming()).status == 401
    assert admin_client.get(url).status_code == admin_client.post(url).status_code == 404
    said = [entry.change_message for entry in LogEntry.objects.order_by("pk")]
    assert ["issued" in said[0], "revoked" in said[1], len(said)] == [True, True, 2]
    assert {entry.object_id for entry in LogEntry.objects.all()} == {str(user.pk)}


def test_a_form_that_is_sent_again_makes_no_second_token(admin_client: Client) -> None:
    with_access()
    sent = {"user": "wanda", "days": 30, "once": once(admin_client)}
    secret_in(admin_client.post(ISSUE, sent))
    again = admin_client.post(ISSUE, sent)
    assert "No token was made" in again.content.decode()
    assert 'value="wanda"' in again.content.decode()
    for value in ("", "é", "x"):
        assert "No token was made" in admin_client.post(ISSUE, {**sent, "once": value}).content.decode()
    assert AuthToken.objects.count() == 1
    fresh = re.search(r'name="once" value="([^"]+)"', again.content.decode())[1]
    assert fresh != sent["once"]


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"name": "nobody"}, "user", "no active user"),
        ({"name": "gone"}, "user", "no active user"),
        ({"name": "idle"}, "user", "no access yet"),
        ({"name": ""}, "user", "required"),
        ({"days": 0}, "days", "greater than or equal to 1"),
        ({"days": 3651}, "days", "less than or equal to 3650"),
        ({"days": "x"}, "days", "whole number"),
    ],
)
def test_what_is_wrong_is_told_at_its_field(admin_client: Client, changes: Any, field: str, said: str) -> None:
    with_access()
    with_access("gone", is_active=False)
    get_user_model().objects.create_user("idle")
    answer = issue(admin_client, **changes)
    assert said in str(answer.context["form"].errors[field])
    assert not AuthToken.objects.exists()


def test_a_superusers_token_is_issued_by_a_superuser_alone(
    admin_client: Client, client_with: Callable[..., Client]
) -> None:
    with_access("root", is_superuser=True)
    clerk = client_with("add_authtoken")
    assert "Only a superuser" in str(issue(clerk, "root").context["form"].errors["user"])
    assert secret_in(issue(admin_client, "root"))


def test_the_list_tells_of_each_what_it_is_and_nothing_that_opens(admin_client: Client) -> None:
    user, other = with_access(), with_access(NASTY)
    over, secret = AuthToken.objects.create(user, expiry=dt.timedelta(days=-1))
    endless, _ = AuthToken.objects.create(other, expiry=None)
    text = admin_client.get(TOKENS).content.decode()
    assert f"{over.token_key[:8]}…" in text and f"{endless.token_key[:8]}…" in text
    assert over.token_key[:9] not in text and over.digest[:25] not in text and secret not in text
    assert ">over<" in text and ">holds<" in text and "for ever" in text
    assert NASTY not in text and "&lt;script&gt;" in text
    of_one = admin_client.get(f"{TOKENS}?user={user.pk}").content.decode()
    assert over.token_key[:8] in of_one and endless.token_key[:8] not in of_one
    for nobody in ("999999", "x", "9" * 40):
        assert "There are none." in admin_client.get(f"{TOKENS}?user={nobody}").content.decode()


def test_the_list_has_pages(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_pages, "A_PAGE", 2)
    user = with_access()
    rows = [AuthToken.objects.create(user)[0].token_key[:8] for _ in range(5)][::-1]
    seen, path = [], f"{TOKENS}?user={user.pk}"
    while path:
        answer = admin_client.get(path)
        seen.append([token["begins"][:8] for token in answer.context["tokens"]])
        path = answer.context["older_url"]
    assert seen == [rows[:2], rows[2:4], rows[4:]]
    assert answer.context["newer_url"] == f"{TOKENS}?user={user.pk}&page=1"
    assert admin_client.get(f"{TOKENS}?page=x").context["newer_url"] is None


def test_the_list_costs_the_same_however_many_there_are(
    admin_client: Client, django_assert_max_num_queries: Any
) -> None:
    for number in range(5):
        AuthToken.objects.create(with_access(f"user{number}"))
    with django_assert_max_num_queries(4):
        admin_client.get(TOKENS)


@pytest.mark.parametrize(
    ("rights", "may"),
    [
        ((), set()),
        (("view_access", "add_access", "view_workload"), set()),
        (("view_authtoken",), {"list"}),
        (("add_authtoken",), {"issue"}),
        (("view_authtoken", "delete_authtoken"), {"list", "revoke"}),
    ],
)
def test_each_page_needs_its_right(client_with: Callable[..., Client], rights: tuple[str, ...], may: set[str]) -> None:
    row, _ = AuthToken.objects.create(with_access())
    client = client_with(*rights)
    pages = {"list": TOKENS, "issue": ISSUE, "revoke": f"{TOKENS}{row.digest[:24]}/revoke/"}
    assert {name for name, path in pages.items() if client.get(path).status_code == 200} == may
    if "revoke" not in may:
        assert client.post(pages["revoke"]).status_code == 403
    assert AuthToken.objects.count() == 1
    if may == {"list"}:
        text = client.get(TOKENS).content.decode()
        assert "/revoke/" not in text and "Issue a token" not in text


def test_who_may_revoke_and_not_look_is_led_home(client_with: Callable[..., Client]) -> None:
    row, _ = AuthToken.objects.create(with_access())
    answer = client_with("delete_authtoken").post(f"{TOKENS}{row.digest[:24]}/revoke/")
    assert answer["Location"] == "/admin/"


def test_access_leads_to_tokens_for_those_who_may_see_them(
    admin_client: Client, client_with: Callable[..., Client]
) -> None:
    row = Access.objects.get(user=with_access())
    change = f"/admin/workloads/access/{row.pk}/change/"
    assert f'href="{TOKENS}"' in admin_client.get("/admin/workloads/access/").content.decode()
    assert f'href="{TOKENS}?user={row.user_id}"' in admin_client.get(change).content.decode()
    clerk = client_with("view_access")
    assert TOKENS not in clerk.get("/admin/workloads/access/").content.decode()
    assert TOKENS not in clerk.get(change).content.decode()
    assert f'value="{row.user.username}"' in admin_client.get(f"{ISSUE}?user={row.user_id}").content.decode()


@pytest.mark.parametrize("name", ["x", "0" * 24, "%" * 24, "0" * 128])
def test_a_token_that_is_none_is_not_found(admin_client: Client, name: str) -> None:
    AuthToken.objects.create(with_access())
    assert admin_client.get(f"{TOKENS}{name}/revoke/").status_code == 404


def test_knoxs_own_page_is_gone(admin_client: Client) -> None:
    assert not admin.site.is_registered(AuthToken)
    assert admin_client.get("/admin/knox/authtoken/add/").status_code == 404


def test_a_page_of_the_sites_own_for_tokens_stays() -> None:
    site = admin.AdminSite()
    site.register(AuthToken, admin.ModelAdmin)
    token_pages.replace_knoxs_page(site)
    assert site.is_registered(AuthToken)


def test_a_site_without_knox_has_no_pages_of_tokens(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_pages.apps, "is_installed", lambda name: False)
    token_pages.replace_knoxs_page(admin.site)
    access = admin.site.get_model_admin(Access)
    names = {pattern.name for pattern in access.get_urls()}
    assert "workloads_access_changelist" in names
    assert not {name for name in names if name and "tokens" in name}
    assert 'href="/admin/workloads/access/tokens/"' not in admin_client.get("/admin/workloads/access/").content.decode()
