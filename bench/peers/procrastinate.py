"""Procrastinate, by its own connectors, without a Django site around it."""

from __future__ import annotations

from typing import Any

from peers.base import Clone, Jobs, Peer, beat, chunks


class Procrastinate(Peer):
    title = "Procrastinate"
    requirements = ("procrastinate==3.10.0", "psycopg[binary]==3.3.9")
    version = "3.10.0"
    concurrency = 10
    choice = "`concurrency`, asynchronous jobs; `batch_defer` by 1,000"
    jobs = Jobs(one=1_500, bulk=30_000, drain=1_500)
    pending = "SELECT EXISTS (SELECT 1 FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))"
    finished = (
        Clone(
            table="procrastinate_jobs",
            values={"id": "1000000 + n", "worker_id": "NULL"},
            rows="WHERE status = 'succeeded' ORDER BY id LIMIT 1",
        ),
        Clone(
            table="procrastinate_events",
            values={
                "id": "",
                "job_id": "1000000 + n",
                "at": "s.at - n * interval '1 second'",
            },
            rows="WHERE job_id = (SELECT min(id) FROM procrastinate_jobs) ORDER BY id",
        ),
    )

    def _application(self, connector: Any) -> Any:
        import procrastinate

        application = procrastinate.App(connector=connector)

        @application.task(name="nothing")
        async def nothing(number: int) -> None:
            beat()

        return application, nothing

    def _open(self) -> Any:
        import procrastinate

        application, nothing = self._application(procrastinate.SyncPsycopgConnector(conninfo=self.dsn))
        application.open()
        return application, nothing

    def setup(self) -> None:
        application, _ = self._open()
        application.schema_manager.apply_schema()
        application.close()

    def enqueue(self, count: int) -> float:
        application, nothing = self._open()
        nothing.defer(number=0)
        with self.stopwatch() as watch:
            for number in range(count):
                nothing.defer(number=number)
        application.close()
        return watch.seconds

    def enqueue_many(self, count: int) -> float:
        application, nothing = self._open()
        with self.stopwatch() as watch:
            for size in chunks(count, 1_000):
                nothing.batch_defer(*({"number": number} for number in range(size)))
        application.close()
        return watch.seconds

    def prepare(self) -> None:
        import procrastinate

        pool = self.concurrency + 2
        connector = procrastinate.PsycopgConnector(conninfo=self.dsn, min_size=pool, max_size=pool)
        self._worker, _ = self._application(connector)

    def work(self) -> None:
        self._worker.run_worker(concurrency=self.concurrency, wait=False)


THIS = Procrastinate
