"""Waiting: that a signal's handler can end, and how long before something is tried again."""

from __future__ import annotations

import queue
import random
import time
from typing import Any, Final

STEP_S: Final = 0.5
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 10.0


def wait_for_news(news: queue.SimpleQueue[Any], seconds: float | None) -> set[Any]:
    """Wait until something stands in the queue, at most so many seconds; take all of it, and return what it was.

    A SimpleQueue may be put to by a signal's handler in the middle of a get, which an Event does not allow. A signal
    that comes just before a get begins does not end it, so no get is long.
    """
    until = None if seconds is None else time.monotonic() + seconds
    while True:
        left = STEP_S if until is None else min(STEP_S, until - time.monotonic())
        try:
            found = {news.get(timeout=max(0.0, left))}
        except queue.Empty:
            if until is not None and time.monotonic() >= until:
                return set()
            continue
        while not news.empty():
            found.add(news.get())
        return found


def pause_s(turn: int) -> float:
    """Return how many seconds to wait before repetition `turn` (1, 2, 3…): doubling, bounded, spread by chance."""
    longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(turn - 1, 10))
    return longest * random.uniform(0.5, 1)
