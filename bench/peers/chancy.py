"""Chancy: asynchronous, with results sent to the database in batches."""

from __future__ import annotations

import asyncio
from typing import Any

from peers.base import Clone, Jobs, Peer, beat


async def nothing(*, number: int) -> None:
    """Do nothing, and be counted."""
    beat()


class ChancyPeer(Peer):
    title = "chancy"
    requirements = ("chancy==0.26.0", "psycopg[binary]==3.3.9")
    version = "0.26.0"
    concurrency = 100
    choice = "concurrency of the queue; AsyncExecutor, eager polling; `push_many` by 1,000"
    jobs = Jobs(one=2_500, bulk=10_000, drain=4_000)
    pending = "SELECT EXISTS (SELECT 1 FROM chancy_jobs WHERE state IN ('pending', 'running', 'retrying'))"
    finished = (
        Clone(
            table="chancy_jobs",
            values={"id": "gen_random_uuid()"}
            | {
                name: f"s.{name} - n * interval '10 milliseconds'"
                for name in ("created_at", "started_at", "completed_at", "scheduled_at")
            },
            rows="WHERE state = 'succeeded' LIMIT 1",
        ),
    )

    def _queue(self) -> Any:
        from chancy import Chancy, Queue

        return Queue(
            "default",
            concurrency=self.concurrency,
            executor=Chancy.Executor.Async,
            polling_interval=1,
            eager_polling=True,
        )

    def setup(self) -> None:
        from chancy import Chancy

        async def run() -> None:
            async with Chancy(self.dsn) as chancy:
                await chancy.migrate()
                await chancy.declare(self._queue())

        asyncio.run(run())

    def _job(self, number: int) -> Any:
        from chancy import Job

        return Job.from_func(nothing, queue="default", kwargs={"number": number})

    def enqueue(self, count: int) -> float:
        from chancy import Chancy

        async def run() -> float:
            async with Chancy(self.dsn) as chancy:
                await chancy.push(self._job(0))
                with self.stopwatch() as watch:
                    for number in range(count):
                        await chancy.push(self._job(number))
            return watch.seconds

        return asyncio.run(run())

    def enqueue_many(self, count: int) -> float:
        from chancy import Chancy

        async def run() -> float:
            async with Chancy(self.dsn) as chancy:
                with self.stopwatch() as watch:
                    async for _ in chancy.push_many([self._job(number) for number in range(count)]):
                        pass
            return watch.seconds

        return asyncio.run(run())

    def prepare(self) -> None:
        import chancy.worker  # noqa: F401 - so that its import is not measured

    def work(self) -> None:
        from chancy import Chancy
        from chancy.worker import Worker

        async def run() -> None:
            async with Chancy(self.dsn) as chancy:
                await chancy.declare(self._queue(), upsert=True)
                async with Worker(chancy) as worker:
                    await worker.wait_for_shutdown()

        asyncio.run(run())


THIS = ChancyPeer
