"""PgQueuer, over psycopg: asynchronous, jobs in one table that its log follows."""

from __future__ import annotations

import asyncio
from typing import Any

from peers.base import Clone, Jobs, Peer, beat, chunks


class PgQueuer(Peer):
    title = "pgqueuer"
    requirements = ("pgqueuer[psycopg]==1.6.0", "psycopg[binary]==3.3.9")
    version = "1.6.0"
    concurrency = 500
    choice = "`batch_size`; psycopg, uvloop, tables durable as installed; enqueued by 1,000"
    jobs = Jobs(one=4_000, bulk=100_000, drain=40_000)
    pending = "SELECT EXISTS (SELECT 1 FROM pgqueuer)"
    # Three rows of its log stay behind each job, which its worker has by then added up.
    finished = (
        Clone(
            table="pgqueuer_log",
            values={
                "id": "",
                "job_id": "1000000000 + n",
                "created": "s.created - n * interval '1 second'",
                "aggregated": "TRUE",
            },
            rows="WHERE job_id = (SELECT min(job_id) FROM pgqueuer_log)",
        ),
    )

    async def _queries(self) -> Any:
        import psycopg
        from pgqueuer.db import PsycopgDriver
        from pgqueuer.queries import Queries

        self._connection = await psycopg.AsyncConnection.connect(self.dsn, autocommit=True)
        return Queries(PsycopgDriver(self._connection))

    def setup(self) -> None:
        async def install() -> None:
            queries = await self._queries()
            await queries.install()
            await self._connection.close()

        asyncio.run(install())

    def enqueue(self, count: int) -> float:
        import uvloop

        async def run() -> float:
            queries = await self._queries()
            await queries.enqueue("nothing", b"0", 0)
            with self.stopwatch() as watch:
                for number in range(count):
                    await queries.enqueue("nothing", b"%d" % number, 0)
            await self._connection.close()
            return watch.seconds

        return float(uvloop.run(run()))

    def enqueue_many(self, count: int) -> float:
        import uvloop

        async def run() -> float:
            queries = await self._queries()
            with self.stopwatch() as watch:
                for size in chunks(count, 1_000):
                    await queries.enqueue(["nothing"] * size, [b"%d" % number for number in range(size)], [0] * size)
            await self._connection.close()
            return watch.seconds

        return float(uvloop.run(run()))

    def prepare(self) -> None:
        import pgqueuer  # noqa: F401 - so that the imports are not measured
        import uvloop  # noqa: F401 - likewise

    def work(self) -> None:
        import uvloop
        from pgqueuer import PgQueuer as Application
        from pgqueuer.types import QueueExecutionMode

        async def run() -> None:
            application = Application((await self._queries()).driver)

            @application.entrypoint("nothing")
            async def nothing(job: Any) -> None:
                beat()

            await application.qm.run(batch_size=self.concurrency, mode=QueueExecutionMode.drain)

        uvloop.run(run())


THIS = PgQueuer
