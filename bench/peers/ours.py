"""This app, by its public verbs: `admit`, `admit_many`, and a Worker in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from peers.base import Clone, Jobs, Peer, beat, chunks

ROOT = Path(__file__).resolve().parents[2]
BATCH = 5_000
DEFINITION = "bench.nothing"


def copies(key: str, base: int) -> tuple[Clone, ...]:
    """Say how one workload is copied with all its history: `key` is SQL for its key, the copies' are from `base` up."""
    pk = f"{base} + n"
    own = {"id": pk, "record": pk, "admitted_id": pk, "dependent_id": pk}
    for name in ("claim_id", "attempt_id", "result_id"):
        # Work that nobody holds has none.
        own[name] = f"CASE WHEN s.{name} IS NOT NULL THEN md5('{name} {base} ' || n) END"
    own |= {
        "workload_id": f"'workload_' || left(md5('{base} ' || n), 24)",
        "idempotency_key": f"'copy {base} ' || n",
        # As `result_key_of` makes it of the id of an attempt.
        "result_key": (
            "(lpad(to_hex((extract(epoch FROM s.at - n * interval '1 second') * 1000)::bigint), 12, '0') || '7' || "
            f"left(md5('key {base} ' || n), 19))::uuid"
        ),
        "created_at": "s.created_at - n * interval '1 second'",
        "finished_at": "s.finished_at - n * interval '1 second'",
        "updated_at": "s.updated_at - n * interval '1 second'",
    }
    return (
        Clone(table="workloads_admitted", values=own, rows=f"WHERE id = {key}"),
        Clone(table="workloads_workload", values=own, rows=f"WHERE admitted_id = {key}"),
        Clone(table="workloads_attempt", values=own, rows=f"WHERE record = {key}"),
        Clone(table="workloads_result", values=own, rows=f"WHERE record = {key}"),
        Clone(
            table="workloads_event",
            values=own | {"id": f"10 * ({pk}) + s.sequence"},
            rows=f"WHERE record = {key} ORDER BY sequence",
        ),
        Clone(table="workloads_dependency", values=own, rows=f"WHERE dependent_id = {key}"),
    )


class Ours(Peer):
    title = "workloads"
    version = "this checkout"
    concurrency = 1_000
    choice = "the worker's threads; statements kept by PostgreSQL (`DATABASE_PREPARES`); `admit_many` by 5,000"
    jobs = Jobs(one=1_500, bulk=10_000, drain=5_000)
    pending = "SELECT EXISTS (SELECT 1 FROM workloads_workload WHERE finished_at IS NULL)"
    # Five events, an attempt and a result stand behind each workload, as behind the one that is copied.
    finished = copies("(SELECT min(admitted_id) FROM workloads_workload WHERE finished_at IS NOT NULL)", 1_000_000)

    def _site(self) -> None:
        sys.path.insert(0, str(ROOT))
        os.environ["DATABASE_URL"] = self.dsn
        os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
        os.environ["DATABASE_PREPARES"] = "1"
        os.environ["LOG_LEVEL"] = "WARNING"
        # No key of a site's is made or read for a measurement.
        os.environ.setdefault("SECRET_KEY", "of no use to anybody, since nothing is signed here")
        import django

        django.setup()

    def setup(self) -> None:
        from django.core.management import call_command

        self._site()
        call_command("migrate", verbosity=0)

    def _requests(self, count: int) -> list[Any]:
        from workloads.contract import AdmissionRequest

        return [
            AdmissionRequest(
                tenant_id="bench",
                application_id="bench",
                requested_by="bench",
                idempotency_key=f"{os.getpid()}-{number}",
                definition_id=DEFINITION,
                input={"number": number},
            )
            for number in range(count)
        ]

    def enqueue(self, count: int) -> float:
        self._site()
        from workloads import authority

        first, *requests = self._requests(count + 1)
        authority.admit(first)
        with self.stopwatch() as watch:
            for request in requests:
                authority.admit(request)
        return watch.seconds

    def enqueue_many(self, count: int) -> float:
        self._site()
        from workloads import authority
        from workloads.contract import Admission

        requests = iter(self._requests(count))
        with self.stopwatch() as watch:
            for size in chunks(count, BATCH):
                outcomes = authority.admit_many([next(requests) for _ in range(size)])
                assert all(isinstance(outcome, Admission) for outcome in outcomes)
        return watch.seconds

    def prepare(self) -> None:
        self._site()
        from django.db import connection

        from workloads.worker import Worker
        from workloads.worker.registry import Registry

        handlers = Registry()
        handlers.add(lambda attempt: beat(), DEFINITION)
        connection.ensure_connection()
        self._worker = Worker(concurrency=self.concurrency, drain=True, handlers=handlers)

    def work(self) -> None:
        from workloads.worker import program

        # As `manage.py workloads_worker` does.
        summary, _ = program.run(self._worker)
        assert set(summary.endings) <= {"SUCCEEDED", "succeeded"}, summary


THIS = Ours
