"""Access and tokens in the admin: who may do what, and a token that is shown once."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from knox.models import AuthToken

from tests.api.tools import Caller, claiming
from workloads.models import Access

pytestmark = pytest.mark.django_db

ADD = "/admin/workloads/access/add/"


@pytest.fixture
def staff(admin_client) -> Client:
    return admin_client


@pytest.fixture
def user():
    return get_user_model().objects.create_user("wanda")


def form(user, **fields):
    return {
        "user": user.pk,
        "tenant_id": "acme",
        "application_id": "invoices",
        "is_worker": "on",
        "worker_prefix": "w-",
        "capabilities": "gpu\n disk \n\n",
        **fields,
    }


def test_a_row_is_added_shown_and_changed(staff, user):
    assert staff.post(ADD, form(user)).status_code == 302
    row = Access.objects.get()
    assert (row.roles(), row.capabilities, row.application_id) == (["worker"], {"gpu", "disk"}, "invoices")
    page = staff.get(f"/admin/workloads/access/{row.pk}/change/").content.decode()
    assert "disk\ngpu" in page
    listed = staff.get("/admin/workloads/access/").content.decode()
    assert "worker" in listed and "invoices" in listed
    changed = form(user, application_id="", is_viewer="on")
    assert staff.post(f"/admin/workloads/access/{row.pk}/change/", changed).status_code == 302
    assert Access.objects.get().roles() == ["worker", "viewer"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tenant_id", " acme"),
        ("application_id", "in\tvoices"),
        ("worker_prefix", "w "),
        ("capabilities", "x" * 201),
        ("tenant_id", ""),
    ],
)
def test_names_that_no_work_can_have_are_refused_at_their_field(staff, user, field, value):
    answer = staff.post(ADD, form(user, **{field: value}))
    assert answer.status_code == 200 and field in answer.context["adminform"].form.errors
    assert not Access.objects.exists()


def test_a_role_is_needed_and_a_prefix_is_one_users_alone(staff, user):
    without = form(user)
    del without["is_worker"]
    assert staff.post(ADD, without).status_code == 200
    other = get_user_model().objects.create_user("walter")
    assert staff.post(ADD, form(user)).status_code == 302
    answer = staff.post(ADD, form(other, worker_prefix="w-1"))
    assert "worker_prefix" in answer.context["adminform"].form.errors
    assert Access.objects.count() == 1


def test_a_token_is_issued_and_shown_once(staff, user):
    Access.objects.create(user=user, tenant_id="acme", is_worker=True)
    given = {"user": user.pk, "expiry_0": "2030-01-01", "expiry_1": "00:00"}
    page = staff.post("/admin/knox/authtoken/add/", given, follow=True).content.decode()
    token = re.search(r"TOKEN (\w+)", page)[1]
    assert token not in staff.get("/admin/knox/authtoken/").content.decode()
    assert token not in "".join(str(value) for value in vars(AuthToken.objects.get()).values())
    caller = Caller(None)
    caller.headers["authorization"] = f"Bearer {token}"
    assert caller.post("claims/", claiming()).status == 200


@pytest.mark.parametrize("path", ["/admin/workloads/access/", "/admin/knox/authtoken/"])
def test_staff_without_the_permission_sees_neither(client, path):
    clerk = get_user_model().objects.create_user("clerk", is_staff=True)
    client.force_login(clerk)
    assert client.get(path).status_code == 403
