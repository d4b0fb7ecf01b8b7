"""Who the demonstration's people and programs are: staff with more and fewer rights, access, and tokens."""

from __future__ import annotations

import io
import secrets
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.core.management import call_command

STAFF: Final = ("admin", "operator", "viewer")
LOOKING: Final = ("view_workload", "view_seenworker")
RIGHTS: Final = {
    "viewer": LOOKING,
    "operator": (*LOOKING, "rearm_workload", "cancel_workload", "timeout_workload", "view_payload", "view_access"),
}


def make_staff() -> str:
    """Make a superuser, an operator and a viewer; return the password that they share."""
    users = get_user_model()._default_manager
    password = secrets.token_urlsafe(9)
    users.create_superuser("admin", password=password)
    for name, rights in RIGHTS.items():
        group = Group.objects.create(name=f"{name}s")
        group.permissions.set(Permission.objects.filter(codename__in=rights))
        users.create_user(name, password=password, is_staff=True).groups.add(group)
    return password


def make_programs(far: str) -> str:
    """Give programs access: the far worker, whose token is returned, a requester and a dashboard."""
    _grant(far, "files", "worker", "--capability", "files:read", "--worker-prefix", far)
    _grant("press", "feeds", "requester")
    _grant("dashboard", "", "viewer")
    _issue("press", 90)
    _issue("dashboard", 365)
    return _issue(far, 1)


def _grant(user: str, application: str, role: str, *more: str) -> None:
    given = ("--tenant", "demo", "--application", application, "--role", role)
    call_command("workloads_access", user, "--create-user", *given, *more, stdout=io.StringIO())


def _issue(user: str, days: int) -> str:
    said: Any = io.StringIO()
    call_command("workloads_token", user, "--days", str(days), stdout=said, stderr=io.StringIO())
    return str(said.getvalue()).strip()
