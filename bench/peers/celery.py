"""Celery on Redis: not durable as the others are; for comparison with what is used most."""

from __future__ import annotations

import os
import uuid
from typing import Any

from peers.base import Jobs, Peer, beat


class CeleryPeer(Peer):
    title = "Celery on Redis"
    requirements = ("celery[redis]==5.7.0",)
    version = "5.7.0"
    concurrency = 2
    choice = "processes; prefetch times 100, results ignored; not durable as the others are"
    jobs = Jobs(one=6_000, bulk=None, drain=3_000)
    needs_postgres = False

    def _application(self) -> tuple[Any, Any]:
        from celery import Celery

        # A queue for each database that a measurement would have, so that none finds another's jobs.
        address = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:6379/9")
        application = Celery("bench", broker=address)
        application.conf.update(
            task_ignore_result=True,
            task_default_queue="bench",
            worker_prefetch_multiplier=100,
            broker_connection_retry_on_startup=True,
        )

        @application.task(name="nothing")
        def nothing(number: int) -> None:
            beat()

        return application, nothing

    def setup(self) -> None:
        application, _ = self._application()
        application.control.purge()

    def enqueue(self, count: int) -> float:
        application, nothing = self._application()
        application.control.purge()
        with self.stopwatch() as watch:
            for number in range(count):
                nothing.delay(number)
        return watch.seconds

    def prepare(self) -> None:
        self._worker, _ = self._application()

    def work(self) -> None:
        self._worker.worker_main(
            ["worker", f"--concurrency={self.concurrency}", "--loglevel=ERROR", f"--hostname={uuid.uuid4()}@bench",
             "--without-gossip", "--without-mingle"]
        )  # fmt: skip


THIS = CeleryPeer
