"""Calls of the site's ASGI application in this process, message by message, as a server would speak to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.db import connections

from workloads.api.asgi import limit_body, wait_for_work

PATIENCE_S = 20


class Call:
    """One request, sent at once; more of its body, or the caller's leaving, when the test says so."""

    def __init__(
        self, app: Any, path: str, body: Any, headers: dict[str, str], *, method: str = "POST", more: bool = False
    ) -> None:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {"host": "localhost", "content-type": "application/json", **headers}
        if not more:
            named = {"content-length": str(len(sent)), **named}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in named.items()],
            "client": ("127.0.0.1", 1),
            "server": ("localhost", 80),
        }
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.said: list[dict[str, Any]] = []
        self.give(sent, more=more)
        self._running = asyncio.ensure_future(app(scope, self._inbox.get, self._hear))

    async def _hear(self, message: dict[str, Any]) -> None:
        self.said.append(message)

    def give(self, body: bytes, *, more: bool = False) -> None:
        """Send more of the body."""
        self._inbox.put_nowait({"type": "http.request", "body": body, "more_body": more})

    @property
    def unread(self) -> int:
        """How many messages have been sent that nobody has read."""
        return self._inbox.qsize()

    def leave(self) -> None:
        """Hang up."""
        self._inbox.put_nowait({"type": "http.disconnect"})

    def cancel(self) -> None:
        """Let the server give the call up."""
        self._running.cancel()

    async def end(self) -> None:
        """Wait until the application is done with this call."""
        await asyncio.wait_for(self._running, PATIENCE_S)

    async def answer(self) -> Call:
        """Wait for the whole answer."""
        await self.end()
        return self

    @property
    def is_over(self) -> bool:
        return self._running.done()

    @property
    def status(self) -> int:
        return self.said[0]["status"]

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode().lower(): value.decode() for name, value in self.said[0]["headers"]}

    @property
    def body(self) -> Any:
        raw = b"".join(message.get("body", b"") for message in self.said[1:])
        assert int(self.headers["content-length"]) == len(raw)
        return json.loads(raw)


@asynccontextmanager
async def application() -> AsyncIterator[Any]:
    """Have the site's application; give its threads and connections up at the end."""
    waiting = wait_for_work(ASGIHandler(), threads=4)
    try:
        yield limit_body(waiting)
    finally:
        await waiting.close()


async def on_database(work: Callable[[], Any]) -> Any:
    """Do some work in a thread, and leave no connection behind."""

    def do() -> Any:
        try:
            return work()
        finally:
            connections.close_all()

    return await sync_to_async(do, thread_sensitive=False)()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so, as soon as the loop has done what makes it so."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.005)
