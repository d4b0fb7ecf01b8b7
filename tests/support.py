"""What tests of every kind share."""

from __future__ import annotations

import datetime as dt

T0 = dt.datetime(2041, 5, 6, 7, 8, 9, 123456, tzinfo=dt.UTC)


def at(ms: int) -> dt.datetime:
    """Return the instant `ms` milliseconds after T0."""
    return T0 + dt.timedelta(milliseconds=ms)
