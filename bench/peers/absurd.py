"""Absurd: durable execution by stored procedures."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

from peers.base import Clone, Jobs, Peer, beat

QUEUE = "bench"


class Absurd(Peer):
    title = "absurd"
    requirements = ("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]==3.3.9")
    version = "0.5.1"
    concurrency = 50
    choice = "`concurrency` and batch of the asynchronous worker; no bulk call"
    jobs = Jobs(one=3_000, bulk=None, drain=1_500)
    pending = f"SELECT EXISTS (SELECT 1 FROM absurd.t_{QUEUE} WHERE state IN ('pending', 'running', 'sleeping'))"
    finished = (
        Clone(
            table=f"absurd.t_{QUEUE}",
            values={"task_id": "md5('t' || n)::uuid", "last_attempt_run": "md5('r' || n)::uuid"},
            rows="WHERE state = 'completed' LIMIT 1",
        ),
        Clone(
            table=f"absurd.r_{QUEUE}",
            values={"run_id": "md5('r' || n)::uuid", "task_id": "md5('t' || n)::uuid"},
            rows="WHERE state = 'completed' LIMIT 1",
        ),
    )

    def setup(self) -> None:
        program = Path(sys.executable).with_name("absurdctl")
        for arguments in (["init", "-d", self.dsn], ["create-queue", "-d", self.dsn, QUEUE]):
            subprocess.run([program, *arguments], check=True, stdout=subprocess.DEVNULL)

    def enqueue(self, count: int) -> float:
        from absurd_sdk import Absurd as Client

        client = Client(self.dsn, queue_name=QUEUE)
        client.spawn("nothing", {"number": 0}, queue=QUEUE)
        with self.stopwatch() as watch:
            for number in range(count):
                client.spawn("nothing", {"number": number}, queue=QUEUE)
        client.close()
        return watch.seconds

    def prepare(self) -> None:
        import absurd_sdk  # noqa: F401 - so that its import is not measured

    def work(self) -> None:
        from absurd_sdk import AsyncAbsurd

        async def run() -> None:
            client = AsyncAbsurd(self.dsn, queue_name=QUEUE)

            @client.register_task(name="nothing")
            async def nothing(params: Any, context: Any) -> None:
                beat()

            await client.start_worker(concurrency=self.concurrency, batch_size=self.concurrency)

        asyncio.run(run())


THIS = Absurd
