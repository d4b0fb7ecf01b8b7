"""What the tests of the authority share: the site's limits, changed for one test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def limits(settings: Any) -> Callable[..., None]:
    """Set limits of the site, by name."""

    def change(**values: Any) -> None:
        settings.WORKLOADS = {**settings.WORKLOADS, **values}

    return change
