"""Handing things to do to a worker's threads, and waking no more of them than are needed."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Handover(Generic[T]):
    """What threads take things from, in the order in which they were put there.

    One idle thread is woken at a time, the one that was busy last; if there is more than it takes, it wakes the next.
    So short work is done by a few threads that need not be woken for each, and where one soon waits for something
    else, the next one is up at once.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._things: deque[T] = deque()
        # What each idle thread waits for. The last is woken first.
        self._idle: list[threading.Lock] = []
        self._one_is_waking = False

    def put(self, thing: T) -> None:
        """Let one of the threads take this. May be called from any thread, though not from a signal's handler."""
        with self._guard:
            self._things.append(thing)
            self._wake()

    def get(self) -> T:
        """Take what was put first, waiting for it if there is nothing."""
        mine = None
        while True:
            with self._guard:
                if mine is not None:
                    self._one_is_waking = False
                if self._things:
                    thing = self._things.popleft()
                    self._wake()
                    return thing
                mine = threading.Lock()
                mine.acquire()
                self._idle.append(mine)
            try:
                mine.acquire()
            except BaseException:
                # From outside. Whoever was to be woken is woken in its place.
                with self._guard:
                    if mine in self._idle:
                        self._idle.remove(mine)
                    else:
                        self._one_is_waking = False
                    self._wake()
                raise

    def _wake(self) -> None:
        if self._things and self._idle and not self._one_is_waking:
            self._one_is_waking = True
            self._idle.pop().release()
