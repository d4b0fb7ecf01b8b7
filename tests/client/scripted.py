"""A server that answers what a test tells it to: httpx's own client before it, its own transport between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import httpx

from workloads.client import RemoteAuthority

Said = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


class Scripted(httpx.BaseTransport):
    """Answers one thing after another; the last one for ever."""

    def __init__(self, *answers: Said) -> None:
        self._answers: Sequence[Said] = answers
        self.asked: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        said = self._answers[min(len(self.asked), len(self._answers) - 1)]
        self.asked.append(request)
        if isinstance(said, Exception):
            raise said
        if isinstance(said, httpx.Response):
            # One that is given again must be read again.
            return httpx.Response(said.status_code, headers=said.headers, stream=httpx.ByteStream(said.read()))
        return said(request)


def far(*answers: Said, **options: Any) -> tuple[RemoteAuthority, Scripted]:
    """Return an authority whose server answers so, and that server."""
    server = Scripted(*answers)
    return RemoteAuthority("http://far/api", "t0ken", transport=server, **options), server


def json(status: int, said: Any, **headers: str) -> httpx.Response:
    """Return an answer in JSON."""
    return httpx.Response(status, json=said, headers={k.replace("_", "-"): v for k, v in headers.items()})


def raw(status: int, body: bytes, **headers: str) -> Callable[[httpx.Request], httpx.Response]:
    """Return what makes an answer of these very bytes."""
    named = {k.replace("_", "-"): v for k, v in headers.items()}
    return lambda _: httpx.Response(status, headers=named, stream=httpx.ByteStream(body))
