"""django-ox: a backend of Django's Tasks framework, with leases and a fence."""

from __future__ import annotations

import logging

from peers.base import Clone, Jobs, Peer, chunks
from peers.django_site import configure, migrate


class DjangoOx(Peer):
    title = "django-ox"
    requirements = ("django-ox==1.9.1", "Django==6.1.3", "psycopg[binary]==3.3.9")
    version = "1.9.1"
    concurrency = 4
    choice = "`--concurrency`, threads; `enqueue_many` by 1,000; connections persist"
    jobs = Jobs(one=2_500, bulk=20_000, drain=1_500)
    pending = "SELECT EXISTS (SELECT 1 FROM django_ox_oxtask WHERE status IN ('READY', 'RUNNING', 'WAITING'))"
    finished = (
        Clone(
            table="django_ox_oxtask",
            values={
                "id": "gen_random_uuid()",
                "enqueued_at": "s.enqueued_at - n * interval '1 second'",
                "finished_at": "s.finished_at - n * interval '1 second'",
            },
            rows="WHERE status = 'SUCCESSFUL' LIMIT 1",
        ),
    )

    def _site(self) -> None:
        configure(self.dsn, "django_ox", TASKS={"default": {"BACKEND": "django_ox.backend.OxBackend"}})
        logging.getLogger("django_ox").setLevel(logging.WARNING)
        logging.getLogger("django.tasks").setLevel(logging.WARNING)

    def setup(self) -> None:
        self._site()
        migrate()

    def enqueue(self, count: int) -> float:
        self._site()
        from peers.django_jobs import nothing

        nothing.enqueue(0)
        with self.stopwatch() as watch:
            for number in range(count):
                nothing.enqueue(number)
        return watch.seconds

    def enqueue_many(self, count: int) -> float:
        self._site()
        from django_ox.bulk import enqueue_many

        from peers.django_jobs import nothing

        with self.stopwatch() as watch:
            for size in chunks(count, 1_000):
                enqueue_many(nothing, [((number,), {}) for number in range(size)])
        return watch.seconds

    def prepare(self) -> None:
        self._site()
        import peers.django_jobs  # noqa: F401 - so that its import is not measured

    def work(self) -> None:
        from django.core.management import call_command

        call_command("ox_worker", concurrency=self.concurrency, interval=0.1, verbosity=0)


THIS = DjangoOx
