"""awa: a core in Rust, handlers in Python, leases with a fence."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from peers.base import Jobs, Peer, beat, chunks

DONE = "('completed', 'failed', 'cancelled')"


@dataclass
class Nothing:
    """The arguments of the no-op job."""

    number: int


class Awa(Peer):
    title = "awa"
    requirements = ("awa-pg==0.6.9",)
    version = "0.6.9"
    concurrency = 1_000
    choice = "workers of the queue; queue storage, `enqueue_many_copy` by 5,000"
    jobs = Jobs(one=1_200, bulk=100_000, drain=20_000)
    pending = f"SELECT EXISTS (SELECT 1 FROM awa.jobs WHERE state::text NOT IN {DONE})"
    finished_by_work = 200_000

    def setup(self) -> None:
        import awa

        client = awa.Client(self.dsn)
        client.migrate()
        client.install_queue_storage()
        client.close()

    def enqueue(self, count: int) -> float:
        import awa

        client = awa.Client(self.dsn)
        client.insert(Nothing(0))
        with self.stopwatch() as watch:
            for number in range(count):
                client.insert(Nothing(number))
        client.close()
        return watch.seconds

    def enqueue_many(self, count: int) -> float:
        import awa

        client = awa.Client(self.dsn)
        with self.stopwatch() as watch:
            for size in chunks(count, 5_000):
                client.enqueue_many_copy([Nothing(number) for number in range(size)])
        client.close()
        return watch.seconds

    def prepare(self) -> None:
        import awa  # noqa: F401 - so that its import is not measured

    def work(self) -> None:
        import awa

        async def run() -> None:
            client = awa.AsyncClient(self.dsn, 20)

            @client.task(Nothing, queue="default")
            async def nothing(job: Any) -> None:
                beat()

            await client.start([("default", self.concurrency)])
            # Until it is ended from outside.
            await asyncio.Event().wait()

        asyncio.run(run())


THIS = Awa
