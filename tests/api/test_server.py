"""The servers that the site is served by: each answers, and waits in as many threads as its settings say."""

from __future__ import annotations

import httpx
import pytest
from django.conf import settings

from tests.api.server import server

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_the_site_is_served(kind):
    with server(kind) as running:
        answer = httpx.get(f"{running.api}health/", trust_env=False)
        assert answer.json()["ok"] is (answer.status_code == 200)
        assert httpx.get(f"{running.api}workloads/", trust_env=False).json()["code"] == "UNAUTHENTICATED"
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{running.api}health/", trust_env=False, timeout=5)
    assert running.child.returncode == 0


def test_half_of_a_processs_threads_may_wait():
    assert settings.WORKLOADS["MAX_WAITING_REQUESTS"] == 2
