"""django-q2 with its ORM broker: a cluster of processes."""

from __future__ import annotations

import logging
import time

from peers.base import Clone, Jobs, Peer
from peers.django_site import configure, migrate

JOB = "peers.plain_jobs.nothing"


class DjangoQ2(Peer):
    title = "django-q2"
    requirements = ("django-q2==1.11.1", "Django==6.1.3", "psycopg[binary]==3.3.9")
    version = "1.11.1"
    concurrency = 1
    choice = "`workers`, processes; `bulk` 50, all successes kept; enqueued in one transaction for want of a bulk call"
    jobs = Jobs(one=4_000, bulk=6_000, drain=1_200)
    pending = "SELECT EXISTS (SELECT 1 FROM django_q_ormq)"
    finished = (
        Clone(
            table="django_q_task",
            values={
                "id": "md5('f' || n)",
                "name": "'finished ' || n",
                "started": "s.started - n * interval '1 second'",
                "stopped": "s.stopped - n * interval '1 second'",
            },
            rows="WHERE success LIMIT 1",
        ),
    )

    def _site(self) -> None:
        cluster = {
            "name": "bench",
            "orm": "default",
            "workers": self.concurrency,
            "bulk": 50,
            "queue_limit": 200,
            "poll": 0.1,
            "save_limit": 0,
            "timeout": 60,
            "retry": 120,
            "scheduler": False,
            "log_level": "WARNING",
        }
        configure(self.dsn, "django_q", Q_CLUSTER=cluster)
        logging.getLogger("django-q").setLevel(logging.WARNING)

    def setup(self) -> None:
        self._site()
        migrate()

    def enqueue(self, count: int) -> float:
        self._site()
        from django_q.tasks import async_task

        async_task(JOB, 0)
        with self.stopwatch() as watch:
            for number in range(count):
                async_task(JOB, number)
        return watch.seconds

    def enqueue_many(self, count: int) -> float:
        self._site()
        from django.db import transaction
        from django_q.tasks import async_task

        with self.stopwatch() as watch, transaction.atomic():
            for number in range(count):
                async_task(JOB, number)
        return watch.seconds

    def prepare(self) -> None:
        self._site()
        import peers.plain_jobs  # noqa: F401 - so that its import is not measured

    def work(self) -> None:
        from django_q.cluster import Cluster

        cluster = Cluster()
        cluster.start()
        while cluster.is_running:
            time.sleep(0.1)  # it says of its end nothing else


THIS = DjangoQ2
