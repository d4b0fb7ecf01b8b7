"""Access in the admin: who may do what over HTTP."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client

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


@pytest.mark.parametrize("path", ["/admin/workloads/access/", "/admin/workloads/access/tokens/"])
def test_staff_without_the_permission_sees_neither(client, path):
    clerk = get_user_model().objects.create_user("clerk", is_staff=True)
    client.force_login(clerk)
    assert client.get(path).status_code == 403


def test_the_form_says_what_each_role_may_do(staff):
    text = staff.get(ADD).content.decode()
    for said in (
        "read and cancel what it admitted",
        "claim it with its input",
        "cancel, re-arm and time out",
        "It changes nothing",
        "Without a row a user may do nothing there",
    ):
        assert said in text, said


def test_the_list_reads_as_who_may_what_where(staff, user):
    wide = Access(user=user, tenant_id="acme", is_operator=True, capabilities=frozenset("abcdefg"))
    narrow = Access(user=user, tenant_id="beta", application_id="app", is_worker=True, worker_prefix="<b>w")
    own = Access(user=user, tenant_id="gamma", is_requester=True, reads_payloads=True)
    none = Access(user=user, tenant_id="delta", is_viewer=True)
    for row in (wide, narrow, own, none):
        row.save()
    cells = {
        row.tenant_id: [str(getattr(staff_admin(), name)(row)) for name in COLUMNS] for row in Access.objects.all()
    }
    assert cells["acme"] == ["acme<br>all applications", "operator", "a, b, c, d, e and 2 more", "–", "of all work"]
    assert cells["beta"][:3] == ["beta<br>app", "worker", "–"]
    assert "&lt;b&gt;w" in cells["beta"][3] and cells["beta"][4] == "of what it claims"
    assert cells["gamma"][4] == "of its own work"
    assert cells["delta"][4] == "no"
    text = staff.get("/admin/workloads/access/").content.decode()
    assert "a, b, c, d, e and 2 more" in text and "<b>w" not in text


COLUMNS = ("place", "roles", "shown_capabilities", "prefix", "payloads")


def staff_admin():
    return admin.site.get_model_admin(Access)


def test_who_may_only_look_sees_a_row_and_no_form(client, user):
    row = Access.objects.create(user=user, tenant_id="acme", is_viewer=True)
    clerk = get_user_model().objects.create_user("clerk", is_staff=True)
    clerk.user_permissions.add(Permission.objects.get(codename="view_access"))
    client.force_login(clerk)
    answer = client.get(f"/admin/workloads/access/{row.pk}/change/")
    assert answer.status_code == 200 and b'name="_save"' not in answer.content
    assert client.get("/admin/workloads/access/999/change/").status_code == 302


def test_the_list_is_narrowed_to_a_role(staff, user):
    Access.objects.create(user=user, tenant_id="acme", is_viewer=True)
    Access.objects.create(user=user, tenant_id="beta", is_worker=True)
    address = "/admin/workloads/access/?role="
    found = {
        role: [row.tenant_id for row in staff.get(f"{address}{role}").context["cl"].result_list]
        for role in ("viewer", "worker", "operator", "none")
    }
    assert found == {"viewer": ["acme"], "worker": ["beta"], "operator": [], "none": ["acme", "beta"]}
