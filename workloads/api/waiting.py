"""Waiting for work in an answer: by a thread where a server gives each request one, by none under ASGI."""

from __future__ import annotations

import asyncio
import math
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from django.core.handlers.asgi import ASGIRequest
from rest_framework.request import Request
from rest_framework.response import Response

from workloads import conf, wakeups

LOOK_AGAIN_S: Final = 1.0
"""How long those who wait go without looking for themselves: work comes due by time too, and no word is promised."""
LOOK_ONESELF_S: Final = 10.0
"""How long one who waits behind others goes without asking: its access may have ended, its request been answered."""
LOOKS_A_SECOND: Final = 20
"""The most that all who wait in a process together look for themselves: the more there are, the less often each."""
CALLS_A_SECOND: Final = 25
"""How often, together, those come back who were told to come back later."""
LATEST_S: Final = 10
COUNTED_S: Final = 15.0
MOST_COUNTED: Final = 10_000
SCOPE_KEY: Final = "workloads.waiting"


class Found(NamedTuple):
    """What a call of `claims/` got, and what it asked for: the same for all who would get the same."""

    claims: list[dict[str, Any]]
    sought: Hashable


Ask = Callable[[], "Found | None"]
Run = Callable[[Ask], Awaitable["Found | None"]]


def answer(request: Request, ask: Ask, *, seconds: float) -> Response:
    """Return the claims that `ask` gets, now or within so many seconds.

    `ask` returns None where waiting is of no use. A call that may not wait, since too many do, is told to come back.
    """
    bell = wakeups.bell()
    since = bell.count
    found = ask()
    if seconds <= 0 or (found is not None and found.claims):
        return _said(found)
    if found is None or bell.is_over:
        return _later(1)
    until = time.monotonic() + seconds
    place = getattr(request._request, "scope", {}).get(SCOPE_KEY)
    if isinstance(place, Place):
        place.wait = Wait(ask=ask, sought=found.sought, until=until, since=since)
        # Not what the caller is told: see `workloads.api.asgi`.
        return _later(1)
    with _slot(request) as may_wait:
        if not may_wait:
            given: Any = request.data
            return _later(_crowd.turn_away(given["worker_id"]))
        wakeups.listen()
        while not bell.is_over and (left := until - time.monotonic()) > 0:
            bell.wait(since, min(left, _pause_s(LOOK_AGAIN_S)))
            since = bell.count
            found = ask()
            if found is None or found.claims:
                break
    return _said(found) if found is not None and not bell.is_over else _later(1, found)


def _said(found: Found | None) -> Response:
    return Response({"claims": found.claims if found is not None else []})


def _later(seconds: int, found: Found | None = None) -> Response:
    response = _said(found)
    response["Retry-After"] = str(seconds)
    return response


def _pause_s(least: float, those_who_look: int = 1) -> float:
    """Return how long to go without looking, where so many do. Those who began together part."""
    return max(least, those_who_look / LOOKS_A_SECOND) * random.uniform(0.75, 1.25)


class Crowd:
    """How many callers were told of late to come back: the more there are, the later each is to come."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._since = time.monotonic()
        self._before = 0
        self._now: set[str] = set()

    def turn_away(self, who: str) -> int:
        """Count a caller, and return after how many seconds it is to come back."""
        with self._guard:
            age = time.monotonic() - self._since
            if age > COUNTED_S:
                self._before = len(self._now) if age < 2 * COUNTED_S else 0
                self._now, self._since = set(), self._since + age
            if len(self._now) < MOST_COUNTED:
                self._now.add(who)
            return min(LATEST_S, max(1, math.ceil(max(self._before, len(self._now)) / CALLS_A_SECOND)))


_crowd = Crowd()
_guard = threading.Lock()
_waiting = 0


@contextmanager
def _slot(request: Request) -> Iterator[bool]:
    """Take one of the threads that may wait, if one is left, and say whether it was."""
    global _waiting
    with _guard:
        # Under ASGI without the wrapper nobody knows how many threads there are.
        has_threads = bool(request.META.get("wsgi.multithread")) and not isinstance(request._request, ASGIRequest)
        may = has_threads and _waiting < conf.limits().max_waiting_requests
        _waiting += may
    try:
        yield may
    finally:
        with _guard:
            _waiting -= may


@dataclass(slots=True)
class Place:
    """Where a view leaves word, in the request's ASGI scope, that its call is to wait."""

    wait: Wait | None = None


@dataclass(slots=True)
class Round:
    """Calls that wait in one event loop for the same. The first in the row listens and looks, for all of them."""

    heard: int
    row: asyncio.Lock = field(default_factory=asyncio.Lock)
    members: int = 0


_rounds: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, Round]] = WeakKeyDictionary()
_NEVER: Final = -1


@dataclass(frozen=True, slots=True)
class Wait:
    """A call that waits in the event loop: what it asks, until when, and what it had heard when it last asked."""

    ask: Ask
    sought: Hashable
    until: float
    since: int

    async def found(self, run: Run) -> Found | None:
        """Return what there is to claim once there is something, or nothing at the end; None as `ask` does.

        `run` puts the question on some thread. However many wait for the same, one of them asks at a word; when it has
        been given something, the next one asks.
        """
        bell = wakeups.listen()
        with self._among() as round_:
            while (left := self.until - time.monotonic()) > 0 and not bell.is_over:
                try:
                    async with asyncio.timeout(min(left, _pause_s(LOOK_ONESELF_S, round_.members))):
                        await round_.row.acquire()
                except TimeoutError:
                    if time.monotonic() >= self.until:
                        break
                    found = await run(self.ask)
                    if found is None or found.claims:
                        return found
                    continue
                try:
                    return await self._lead(round_, bell, run)
                finally:
                    round_.row.release()
        return Found([], self.sought)

    async def _lead(self, round_: Round, bell: wakeups.Bell, run: Run) -> Found | None:
        found: Found | None = Found([], self.sought)
        while found is not None and not found.claims and (left := self.until - time.monotonic()) > 0:
            leaders = len(_rounds[asyncio.get_running_loop()])
            await bell.wait_async(round_.heard, min(left, _pause_s(LOOK_AGAIN_S, leaders)))
            if bell.is_over:
                break
            # Unless this look finds nothing, the next one in the row looks at once.
            count, round_.heard = bell.count, _NEVER
            found = await run(self.ask)
            if found is not None and not found.claims:
                round_.heard = count
        return found

    @contextmanager
    def _among(self) -> Iterator[Round]:
        rounds = _rounds.setdefault(asyncio.get_running_loop(), {})
        round_ = rounds.setdefault(self.sought, Round(heard=self.since))
        round_.members += 1
        try:
            yield round_
        finally:
            round_.members -= 1
            if not round_.members:
                del rounds[self.sought]


_is_ending_with_server = False


def end_with_server() -> None:
    """From now on, let nobody wait once this process is told to stop. Does something in the main thread alone.

    The server's own way of ending goes on as before; without this it would last as long as the longest wait.
    """
    global _is_ending_with_server
    if _is_ending_with_server or threading.current_thread() is not threading.main_thread():
        return
    _is_ending_with_server = True
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        if callable(before):
            signal.signal(number, _ending(before))


def _ending(before: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], Any]:
    def end(number: int, frame: FrameType | None) -> Any:
        # In a thread: the one that was interrupted may be about to wait.
        threading.Thread(target=wakeups.bell().end, daemon=True).start()
        return before(number, frame)

    return end
