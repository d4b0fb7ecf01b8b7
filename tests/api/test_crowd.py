"""Two hundred workers that wait at once: who else asks is answered, work finds one of them, and a wait holds little."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.conf import settings
from django.db import connection

from tests.api.live import until
from tests.api.server import PROCESSES, Server, server
from tests.api.tools import Caller, claiming, fence, place
from tests.authority.builders import request
from workloads import authority, wakeups
from workloads.api.asgi import THREADS

pytestmark = [
    pytest.mark.long,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="two hundred callers are for PostgreSQL"),
]

POLLERS = 200
WARMING = 3
PROBES = 20
SERIES = 3
"""On a machine that others load too, one series without a hiccup tells what the server can do."""
HELD = WARMING + SERIES * PROBES
ROUNDS = 10
PATIENCE_S = 30


@dataclass
class Crowd:
    """Workers that ask for work again and again, as clients are to: at once after a wait, later when told so."""

    client: httpx.AsyncClient
    url: str
    seek_the_same: bool
    answers: list[int] = field(default_factory=list)
    answered: set[int] = field(default_factory=set)
    told_later: int = 0
    waiting: set[int] = field(default_factory=set)
    got: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)

    async def poll(self, number: int) -> None:
        body = claiming(worker_id=f"w-{number}", wait_ms=30_000, definitions=["wanted"])
        if not self.seek_the_same:
            body["definitions"].append(f"own-{number}")
        while True:
            self.waiting.add(number)
            answer = await self.client.post(f"{self.url}claims/", json=body)
            self.waiting.discard(number)
            self.answers.append(answer.status_code)
            self.answered.add(number)
            claims = answer.json()["claims"]
            for claim in claims:
                await self.got.put(claim)
            if not claims and "Retry-After" in answer.headers:
                self.told_later += 1
                await asyncio.sleep(int(answer.headers["Retry-After"]) * random.uniform(1, 1.5))


def quietly(work: Any) -> Any:
    """Do some work on the database in this thread, and leave no connection behind."""
    with closing(connection):
        return work()


def admit(key: str, definition_id: str) -> None:
    authority.admit(request(key, tenant_id="acme", application_id="invoices", definition_id=definition_id))


def sessions() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return cursor.fetchone()[0]


def threads_of(running: Server) -> list[int]:
    """Return how many threads each process that serves has."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            said = dict(line.split(":", 1) for line in status.read_text().splitlines())
            command = status.with_name("cmdline").read_bytes()
        except FileNotFoundError:
            continue
        if int(said["PPid"]) == running.child.pid and b"resource_tracker" not in command:
            found.append(int(said["Threads"]))
    return found


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def timed(asked: Any) -> float:
    started = time.monotonic()
    answer = await asked
    assert answer.status_code in (200, 503), answer.text
    return time.monotonic() - started


@contextmanager
def _figures(record_property: Any) -> Iterator[dict[str, Any]]:
    figures: dict[str, Any] = {}
    yield figures
    for name, value in figures.items():
        record_property(name, value)


@pytest.mark.parametrize(
    ("kind", "seek_the_same"),
    [("wsgi", True), ("asgi", True), ("asgi", False)],
    ids=["wsgi", "asgi", "asgi-each-for-something-else"],
)
def test_while_two_hundred_wait_everybody_else_is_answered(kind, seek_the_same, record_property, capsys):
    worker = Caller("wanda", place("worker"))
    for number in range(HELD):
        admit(f"probe-{number}", "probe")
    held = authority.claim_next(worker_id="w-probe", capabilities=[], lease_ms=600_000, limit=HELD, start=True)
    with _figures(record_property) as figures, server(kind) as running:
        try:
            asyncio.run(_ask(running, kind, seek_the_same, worker.headers, held, figures))
        except BaseException:
            print(running.last_words())  # noqa: T201 - figures for people
            raise
        before_end = time.monotonic()
    figures["server ended after"] = time.monotonic() - before_end
    with capsys.disabled():
        print("\n" + "\n".join(f"  {kind} {name}: {value}" for name, value in figures.items()))  # noqa: T201 - figures for people
    wakeups.stop()


async def _ask(
    running: Server, kind: str, seek_the_same: bool, headers: dict[str, str], held: Any, figures: dict[str, Any]
) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    options: dict[str, Any] = {"headers": headers, "timeout": 60, "trust_env": False}
    async with httpx.AsyncClient(limits=limits, **options) as many, httpx.AsyncClient(**options) as other:
        crowd = Crowd(many, running.api, seek_the_same)
        pollers = [asyncio.create_task(crowd.poll(number)) for number in range(POLLERS)]
        try:
            health, completions, woken = [], [], []
            if kind == "wsgi":
                # All at once at the very start is a queue before a few threads, whatever they do.
                await until(
                    lambda: len(crowd.answered) >= POLLERS - PROCESSES * settings.WORKLOADS["MAX_WAITING_REQUESTS"]
                )
            for number, claim in enumerate(held):
                health.append(await timed(other.get(f"{running.api}health/")))
                report = {**fence(_plain(claim)), "result_id": f"r-{number}", "output": None}
                url = f"{running.api}workloads/{claim.workload_id}/complete/"
                completions.append(await timed(other.post(url, json=report)))
                await asyncio.sleep(0.15)  # the pace of one who looks now and then
                if number == WARMING - 1 or (len(health) == PROBES and max(health + completions) >= 1):
                    # Each process loads on its first call what it loads once.
                    health, completions = [], []
                elif len(health) == PROBES:
                    break
            if kind == "asgi":
                assert len(crowd.waiting) == POLLERS and not crowd.answers
                figures["threads"] = threads_of(running)
                figures["sessions"] = await asyncio.to_thread(quietly, sessions)
            for number in range(ROUNDS):
                started = time.monotonic()
                await asyncio.to_thread(quietly, lambda n=number: admit(f"wanted-{n}", "wanted"))
                committed = time.monotonic()
                await asyncio.wait_for(crowd.got.get(), PATIENCE_S)
                woken.append(time.monotonic() - committed)
                assert committed - started < PATIENCE_S
            assert crowd.got.empty()
        finally:
            for poller in pollers:
                poller.cancel()
            ended = await asyncio.gather(*pollers, return_exceptions=True)
    assert {type(end) for end in ended} == {asyncio.CancelledError}, ended
    assert set(crowd.answers) <= {200}
    for name, values in (("health", health), ("completion", completions), ("admission to claim", woken)):
        if values:
            figures[name] = f"median {percentile(values, 0.5):.3f} s, p99 {percentile(values, 0.99):.3f} s"
    figures["told to come back"] = f"{crowd.told_later} of {len(crowd.answers)} answers"
    assert len(health) == PROBES, "no series of calls was answered within a second each"
    assert max(health) < 1 and max(completions) < 1, figures
    assert percentile(woken, 0.5) < 1, figures
    if kind == "asgi":
        assert crowd.told_later == 0
        # The lanes, the loop, the one that listens, and the one that speaks: none for each that waits.
        assert len(figures["threads"]) == PROCESSES and max(figures["threads"]) <= THREADS + 4
        assert figures["sessions"] <= PROCESSES * (THREADS + 2) + 2
    else:
        assert crowd.told_later > 0


def _plain(claim: Any) -> dict[str, Any]:
    return {name: getattr(claim, name) for name in ("claim_id", "worker_id", "fencing_token")}
