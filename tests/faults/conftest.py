"""What the tests of faults share: a connection that watches what another waits for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection

from tests.faults.disturbance import Watcher


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    if connection.vendor == "sqlite" and "mode=memory" in str(connection.settings_dict["NAME"]):
        pytest.skip("A database in memory has one connection.")
    watcher = Watcher()
    yield watcher
    watcher.close()
