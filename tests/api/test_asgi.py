"""Bodies under ASGI: refused while they are read, with the contract's answer, on the interface's paths alone."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from django.core.handlers.asgi import ASGIHandler

from tests.api.live import Call, application
from tests.api.server import server
from tests.api.tools import Caller, admission, place
from workloads.api import asgi
from workloads.api.asgi import limit_body

pytestmark = pytest.mark.django_db(transaction=True)
PATH = "/api/v1/workloads/"
LIMIT = 1_000


@pytest.fixture
def requester(settings):
    settings.WORKLOADS = {**settings.WORKLOADS, "MAX_BODY_BYTES": LIMIT}
    return Caller("rita", place("requester"))


def refusal(size: int) -> dict[str, Any]:
    return {"field": "body", "limit": LIMIT, "size": size}


def test_a_body_that_says_it_is_too_large_is_refused_unread(requester):
    async def run() -> None:
        async with application() as app:
            headers = {**requester.headers, "content-length": str(LIMIT + 1)}
            call = Call(app, PATH, b"{", headers, more=True)
            answer = await call.answer()
            assert answer.status == 413 and answer.body["code"] == "WORKLOAD_TOO_LARGE"
            assert answer.body["details"] == refusal(LIMIT + 1)
            assert answer.headers["content-type"] == "application/json" and answer.headers["connection"] == "close"
            assert call.unread == 1

    asyncio.run(run())


def test_a_length_of_many_digits_is_a_length(requester):
    async def run() -> None:
        async with application() as app:
            answer = await Call(app, PATH, b"", {**requester.headers, "content-length": "9" * 5_000}).answer()
            assert answer.status == 413

    asyncio.run(run())


@pytest.mark.parametrize("declared", [None, "10"])
def test_a_body_that_says_nothing_or_lies_is_refused_as_soon_as_it_is_too_large(requester, declared):
    async def run() -> None:
        async with application() as app:
            headers = requester.headers if declared is None else {**requester.headers, "content-length": declared}
            call = Call(app, PATH, b"x" * 400, headers, more=True)
            for _ in range(9):
                call.give(b"x" * 400, more=True)
            answer = await call.answer()
            assert answer.status == 413 and answer.body["details"] == refusal(1_200)
            assert call.unread == 7

    asyncio.run(run())


def test_a_body_of_the_very_limit_is_read(requester):
    async def run() -> None:
        async with application() as app:
            body = admission(input="")
            body["input"] = "x" * (LIMIT - len(str(body).replace("'", '"')))
            call = Call(app, PATH, body, requester.headers)
            assert (await call.answer()).status == 201
            body["input"] += "x"
            assert (await Call(app, PATH, body, requester.headers).answer()).status == 413

    asyncio.run(run())


def test_other_paths_have_their_own_limits(requester):
    async def run() -> None:
        app = limit_body(ASGIHandler())
        answer = await Call(app, "/elsewhere/", b"x" * (LIMIT + 1), {"content-type": "text/plain"}).answer()
        assert answer.status == 404

    asyncio.run(run())


def test_an_answer_that_has_begun_is_not_begun_again():
    async def hasty(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive())["more_body"]:
            pass

    async def run() -> None:
        call = Call(limit_body(hasty), PATH, b"x" * 9_000_000, {}, more=True)
        with pytest.raises(asgi._TooLarge):
            await call.end()
        assert [message["type"] for message in call.said] == ["http.response.start"]

    asyncio.run(run())


def test_a_real_server_refuses_a_stream_that_is_too_large():
    requester = Caller("rita", place("requester"))
    sent = 0

    def stream() -> Any:
        nonlocal sent
        for _ in range(10_000):
            sent += 65_536
            yield b"x" * 65_536

    with server("asgi") as running:
        try:
            answer = httpx.post(
                f"{running.api}workloads/",
                content=stream(),
                headers={**requester.headers, "content-type": "application/json"},
                trust_env=False,
                timeout=30,
            )
        except httpx.WriteError:
            # The server has hung up while the rest was on its way.
            answer = None
        assert answer is None or answer.json()["code"] == "WORKLOAD_TOO_LARGE"
        # What lies in the sockets' buffers may have been sent besides.
        assert sent < 40_000_000
        after = httpx.post(
            f"{running.api}workloads/", json=admission(), headers=requester.headers, trust_env=False, timeout=30
        )
        assert after.status_code == 201
