"""django-tasks-db: the database backend of Django's Tasks framework."""

from __future__ import annotations

import logging

from peers.base import Clone, Jobs, Peer
from peers.django_site import configure, migrate


class DjangoTasksDb(Peer):
    title = "django-tasks-db"
    requirements = ("django-tasks-db==0.13.0", "Django==6.1.3", "psycopg[binary]==3.3.9")
    version = "0.13.0"
    concurrency = 1
    choice = "it runs one job at a time; nothing in bulk but a loop in one transaction; connections persist"
    jobs = Jobs(one=3_000, bulk=4_000, drain=900)
    pending = "SELECT EXISTS (SELECT 1 FROM django_tasks_database_dbtaskresult WHERE status IN ('READY', 'RUNNING'))"
    finished = (
        Clone(
            table="django_tasks_database_dbtaskresult",
            values={
                "id": "gen_random_uuid()",
                "enqueued_at": "s.enqueued_at - n * interval '1 second'",
                "finished_at": "s.finished_at - n * interval '1 second'",
            },
            rows="WHERE status = 'SUCCESSFUL' LIMIT 1",
        ),
    )

    def _site(self) -> None:
        configure(self.dsn, "django_tasks_db", TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}})
        for name in ("django_tasks_db", "django.tasks"):
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

        call_command("db_worker", interval=0.1, startup_delay=False, verbosity=0)


THIS = DjangoTasksDb
