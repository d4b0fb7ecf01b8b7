"""Oban for Python, the free edition: asynchronous, every job kept in one table."""

from __future__ import annotations

import asyncio
from typing import Any

from peers.base import Clone, Jobs, Peer, beat, chunks


class Oban(Peer):
    title = "oban"
    requirements = ("oban==0.7.0", "psycopg[binary]==3.3.9")
    version = "0.7.0"
    concurrency = 500
    choice = "limit of the queue; uvloop; `enqueue_many` by 1,000"
    jobs = Jobs(one=3_000, bulk=10_000, drain=6_000)
    pending = (
        "SELECT EXISTS (SELECT 1 FROM oban_jobs WHERE state IN ('available', 'executing', 'scheduled', 'retryable'))"
    )
    finished = (
        Clone(
            table="oban_jobs",
            values={
                name: f"s.{name} - n * interval '10 milliseconds'"
                for name in ("inserted_at", "scheduled_at", "attempted_at", "completed_at")
            },
            rows="WHERE state = 'completed' LIMIT 1",
        ),
    )

    def _run(self, work: Any) -> Any:
        import uvloop
        from oban import Oban as Instance

        async def run() -> Any:
            pool = await Instance.create_pool(self.dsn, min_size=4, max_size=10)
            try:
                return await work(Instance, pool)
            finally:
                await pool.close()

        return uvloop.run(run())

    def setup(self) -> None:
        from oban.schema import install

        async def work(_: Any, pool: Any) -> None:
            await install(pool)

        self._run(work)

    def _nothing(self) -> Any:
        from oban import worker

        @worker(queue="default")
        class Nothing:
            async def process(self, job: Any) -> None:
                beat()

        return Nothing

    def enqueue(self, count: int) -> float:
        nothing = self._nothing()

        async def work(instance: Any, pool: Any) -> float:
            async with instance(pool=pool) as oban:
                await oban.enqueue(nothing.new({"number": 0}))
                with self.stopwatch() as watch:
                    for number in range(count):
                        await oban.enqueue(nothing.new({"number": number}))
            return watch.seconds

        return float(self._run(work))

    def enqueue_many(self, count: int) -> float:
        nothing = self._nothing()

        async def work(instance: Any, pool: Any) -> float:
            async with instance(pool=pool) as oban:
                with self.stopwatch() as watch:
                    for size in chunks(count, 1_000):
                        await oban.enqueue_many([nothing.new({"number": number}) for number in range(size)])
            return watch.seconds

        return float(self._run(work))

    def prepare(self) -> None:
        self._nothing()

    def work(self) -> None:
        async def work(instance: Any, pool: Any) -> None:
            # Not as a context, whose end waits for jobs that nobody waits for here.
            await instance(pool=pool, queues={"default": self.concurrency}).start()
            await asyncio.Event().wait()

        self._run(work)


THIS = Oban
