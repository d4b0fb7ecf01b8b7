"""The interface under ASGI: bodies refused while they are read, few threads and connections, and waits that hold none.

    application = limit_body(wait_for_work(get_asgi_application()))

Both wrap Django's application, since what stands inside it comes too late: the body is spooled before any view, and a
request has a thread of its own from its beginning to its end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

from asgiref.sync import ThreadSensitiveContext
from django.db import close_old_connections, connections

from workloads import conf, wakeups
from workloads.api import errors, wire
from workloads.api.waiting import SCOPE_KEY, Ask, Found, Place, Wait, end_with_server

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]

BELOW: Final = "/api/"
THREADS: Final = 8
_OF_THE_BODY: Final = frozenset({b"content-length", b"content-encoding", b"retry-after"})


def limit_body(app: Application, *, below: str = BELOW) -> Application:
    """Refuse bodies of over MAX_BODY_BYTES while they are read, on the paths that begin with `below`.

    One that says its length is refused before any of it is read.
    """

    async def limited(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(below):
            return await app(scope, receive, send)
        limit = conf.limits().max_body_bytes
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared[:18]) > limit:
            return await _refuse(send, int(declared[:18]))
        size = 0
        is_answered = False

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise _TooLarge
            return message

        async def noted(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        try:
            await app(scope, counted, noted)
        except _TooLarge:
            if is_answered:
                raise
            await _refuse(send, size)

    return limited


class _TooLarge(Exception):
    """More of a body has come than is read."""


async def _refuse(send: Send, size: int) -> None:
    answer = errors.answer(wire.too_large(size), challenge=None)
    # The rest of the body is not read, so nothing else can follow it.
    await _send(send, answer.status_code, [(b"connection", b"close")], answer.data)


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], data: Any) -> None:
    body = wire.ExactJSONRenderer().render(data)
    if not any(name.lower() == b"content-type" for name, _ in headers):
        headers = [*headers, (b"content-type", wire.MEDIA_TYPE.encode())]
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


class Lanes:
    """The threads of one event loop on which requests run. Each keeps its database connection, as Django's own do not.

    Looking for work takes half of them at most: however many ask at once, they hold up nobody else.
    """

    def __init__(self, threads: int) -> None:
        self._all = [ThreadPoolExecutor(1, thread_name_prefix=f"workloads-lane-{number}") for number in range(threads)]
        self._free = deque(self._all)
        self._room = asyncio.Semaphore(threads)
        self._room_to_look = asyncio.Semaphore(max(1, threads // 2))

    @asynccontextmanager
    async def lane(self, *, looks_for_work: bool = False) -> AsyncIterator[ThreadPoolExecutor]:
        """Have one lane for a while."""
        async with self._room_to_look if looks_for_work else nullcontext(), self._room:
            # The one that was used last: in quiet times most of them need no connection.
            lane = self._free.pop()
            try:
                yield lane
            finally:
                self._free.append(lane)

    async def ask(self, ask: Ask) -> Found | None:
        """Put a question, as a request would, and return the answer."""
        async with self.lane(looks_for_work=True) as lane:
            asked: Future[Found | None] = lane.submit(_ask, ask)
            try:
                return await asyncio.wrap_future(asked)
            except asyncio.CancelledError:
                # What has begun ends in its own time; until then the lane is not free.
                with suppress(Exception):
                    await asyncio.shield(asyncio.wrap_future(asked))
                raise

    async def close(self) -> None:
        """End the threads and their connections."""
        loop = asyncio.get_running_loop()
        for lane in self._all:
            await loop.run_in_executor(lane, connections.close_all)
            lane.shutdown()


def _ask(ask: Ask) -> Found | None:
    # No request begins or ends here.
    close_old_connections()
    try:
        return ask()
    finally:
        close_old_connections()


class WaitForWork:
    """Django's application, on a few threads, with calls of `claims/` that wait on none of them."""

    def __init__(self, app: Application, *, below: str, threads: int) -> None:
        self._app = app
        self._below = below
        self._threads = threads
        self._lanes: WeakKeyDictionary[asyncio.AbstractEventLoop, Lanes] = WeakKeyDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        end_with_server()
        if scope["type"] != "http" or not scope["path"].startswith(self._below):
            await self._app(scope, receive, send)
            return
        place = Place()
        start: Message = {}

        async def kept(message: Message) -> None:
            if place.wait is None:
                await send(message)
            elif message["type"] == "http.response.start":
                start.update(message)

        lanes = self._lanes.get(asyncio.get_running_loop())
        if lanes is None:
            lanes = self._lanes[asyncio.get_running_loop()] = Lanes(self._threads)
        looks_for_work = scope["path"].endswith("/claims/")
        async with lanes.lane(looks_for_work=looks_for_work) as lane, ThreadSensitiveContext(executor=lane):
            await self._app(dict(scope) | {SCOPE_KEY: place}, receive, kept)
        if place.wait is not None and start:
            await _wait(place.wait, lanes, start, receive, send)

    async def close(self) -> None:
        """End the threads of this event loop and their connections."""
        lanes = self._lanes.pop(asyncio.get_running_loop(), None)
        if lanes is not None:
            await lanes.close()


def wait_for_work(app: Application, *, below: str = BELOW, threads: int = THREADS) -> WaitForWork:
    """Let `claims/` wait without holding a thread or a connection, and run what is below `below` on so many threads.

    Without it every such call is answered at once, and told when to come back.
    """
    return WaitForWork(app, below=below, threads=threads)


async def _wait(wait: Wait, lanes: Lanes, start: Message, receive: Receive, send: Send) -> None:
    """Answer once there is work or an end of waiting. Who has left meanwhile asks for nothing any more."""
    found = asyncio.ensure_future(wait.found(lanes.ask))
    left = asyncio.ensure_future(_leaving(receive))
    try:
        await asyncio.wait({found, left}, return_when=asyncio.FIRST_COMPLETED)
        if not found.done():
            return
        headers = [(name, value) for name, value in start["headers"] if name.lower() not in _OF_THE_BODY]
        try:
            got = found.result()
        except Exception as error:
            answer = errors.answer(error, challenge=None)
            again = answer.headers.get("Retry-After")
            headers += [(b"retry-after", again.encode())] if again else []
            await _send(send, answer.status_code, headers, answer.data)
        else:
            if got is None or wakeups.bell().is_over:
                headers.append((b"retry-after", b"1"))
            await _send(send, start["status"], headers, {"claims": got.claims if got is not None else []})
    finally:
        for pending in (found, left):
            pending.cancel()
        await asyncio.gather(found, left, return_exceptions=True)


async def _leaving(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
