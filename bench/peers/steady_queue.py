"""steady-queue: a backend of Django's Tasks framework, with a supervisor and forked workers."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any

from peers.base import Clone, Jobs, Peer
from peers.django_site import configure, migrate

TABLES = "steady_queue"


class SteadyQueue(Peer):
    title = "steady-queue"
    requirements = ("steady-queue==0.3.0", "Django==6.1.3", "psycopg[binary]==3.3.9")
    version = "0.3.0"
    concurrency = 4
    choice = "threads of its one worker; nothing in bulk but a loop in one transaction; connections persist"
    jobs = Jobs(one=1_200, bulk=1_500, drain=600)
    pending = (
        f"SELECT EXISTS (SELECT 1 FROM {TABLES}_readyexecution) OR EXISTS (SELECT 1 FROM {TABLES}_claimedexecution)"
    )
    finished = (
        Clone(
            table=f"{TABLES}_job",
            values={
                "id": "1000000 + n",
                "finished_at": "s.finished_at - n * interval '1 second'",
                "created_at": "s.created_at - n * interval '1 second'",
            },
            rows="WHERE finished_at IS NOT NULL LIMIT 1",
        ),
    )

    def _site(self) -> None:
        from steady_queue.configuration import Configuration

        options: Any = Configuration.Options(
            dispatchers=[Configuration.Dispatcher(polling_interval=dt.timedelta(seconds=1), batch_size=500)],
            workers=[
                Configuration.Worker(
                    queues=["*"], threads=self.concurrency, polling_interval=dt.timedelta(milliseconds=10)
                )
            ],
        )
        configure(
            self.dsn,
            "steady_queue",
            TASKS={"default": {"BACKEND": "steady_queue.backend.SteadyQueueBackend", "OPTIONS": {}}},
            STEADY_QUEUE=options,
        )
        for name in ("steady_queue", "django.tasks"):
            logging.getLogger(name).setLevel(logging.WARNING)

    def setup(self) -> None:
        self._site()
        migrate()

    def _enqueue(self, count: int) -> None:
        from peers.django_jobs import nothing

        for number in range(count):
            nothing.enqueue(number)

    def enqueue(self, count: int) -> float:
        self._site()
        self._enqueue(1)
        with self.stopwatch() as watch:
            self._enqueue(count)
        return watch.seconds

    def enqueue_many(self, count: int) -> float:
        self._site()
        from django.db import transaction

        with self.stopwatch() as watch, transaction.atomic():
            self._enqueue(count)
        return watch.seconds

    def prepare(self) -> None:
        self._site()
        import peers.django_jobs  # noqa: F401 - so that its import is not measured

    def work(self) -> None:
        from django.core.management import call_command

        call_command("steady_queue", verbosity=0)


THIS = SteadyQueue
