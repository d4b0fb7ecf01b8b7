"""A live server, and authorities on the other side of it."""

from __future__ import annotations

import pytest

from tests.api.server import server
from tests.api.tools import APPLICATION, TENANT, Caller, place
from tests.worker.tools import is_in_memory
from workloads.client import RemoteAuthority


@pytest.fixture(scope="package")
def _server(django_db_setup, django_db_blocker):
    if is_in_memory():
        pytest.skip("A database in memory has one process.")
    with server() as running:
        yield running


@pytest.fixture
def live(_server, transactional_db, monkeypatch):
    """Serve the tests' database."""
    # Nothing here goes through a proxy but the tests' own.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return _server


@pytest.fixture
def remote(live):
    """Return what makes an authority for a user with these roles, over the server or over another line to it."""
    opened = []

    def make(name, *roles, url=None, application=APPLICATION, **options):
        caller = Caller(name, place(*roles, tenant=TENANT, application=application, worker_prefix=f"{name}-"))
        token = caller.headers["authorization"].removeprefix("Bearer ")
        opened.append(RemoteAuthority(f"{url or live.url}/api", token, **options))
        return opened[-1]

    yield make
    for authority in opened:
        authority.close()
