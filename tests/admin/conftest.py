"""What the tests of the admin share: people with more and fewer rights, and workloads to look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client

from workloads import authority
from workloads.contract import AdmissionRequest
from workloads.models import Workload

LIST = "/admin/workloads/workload/"
REARM = f"{LIST}rearm/"


def page(workload: Workload) -> str:
    """Return the address of a workload's page."""
    return f"{LIST}{workload.pk}/change/"


def admit(key: str = "k", **changes: Any) -> Workload:
    """Return a workload, admitted under this key."""
    fields = {"tenant_id": "t", "application_id": "app", "requested_by": "u", "definition_id": "d", **changes}
    return authority.admit(AdmissionRequest(idempotency_key=key, **fields)).workload


def fail(workload: Workload, *, kind: str = "broken", error: str = "it broke", worker_id: str = "w") -> Workload:
    """Return the workload after an attempt that failed; of this kind, it is dead-lettered at once."""
    claim = authority.claim(
        workload.workload_id, worker_id=worker_id, capabilities=workload.capability_snapshot, lease_ms=60_000
    )
    authority.start(claim.fence)
    authority.fail(claim.fence, kind=kind, error=error)
    return authority.get(workload.workload_id)


@pytest.fixture
def client_with(db: None) -> Callable[..., Client]:
    """Return a client that is logged in as staff with just these permissions."""

    def log_in(*codenames: str, username: str = "olga") -> Client:
        user = get_user_model().objects.create_user(username, is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        client = Client()
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def viewer(client_with: Callable[..., Client]) -> Client:
    """Somebody who may look."""
    return client_with("view_workload", username="viola")


@pytest.fixture
def operator(client_with: Callable[..., Client]) -> Client:
    """Somebody who may look and re-arm."""
    return client_with("view_workload", "rearm_workload", username="olga")
