"""DBOS: durable workflows, started from a queue."""

from __future__ import annotations

import threading
from typing import Any

from peers.base import Clone, Jobs, Peer, beat

QUEUE = "bench"


class Dbos(Peer):
    title = "dbos"
    requirements = ("dbos==3.4.0", "psycopg[binary]==3.3.9")
    version = "3.4.0"
    concurrency = 100
    choice = "`worker_concurrency`, the queue polled each 10 ms, 20 connections; no bulk call"
    jobs = Jobs(one=1_500, bulk=None, drain=1_500)
    pending = "SELECT EXISTS (SELECT 1 FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING', 'DELAYED'))"
    finished = (
        Clone(
            table="dbos.workflow_status",
            values={
                "workflow_uuid": "gen_random_uuid()::text",
                "created_at": "s.created_at - n * 10",
                "updated_at": "s.updated_at - n * 10",
            },
            rows="WHERE status = 'SUCCESS' LIMIT 1",
        ),
    )

    def _launch(self) -> tuple[Any, Any]:
        from dbos import DBOS, DBOSConfig

        address = self.dsn.replace("postgres://", "postgresql://", 1)
        config: DBOSConfig = {
            "name": "bench",
            "system_database_url": address,
            "sys_db_pool_size": 20,
            "log_level": "ERROR",
            "application_version": "1",
        }
        DBOS(config=config)

        @DBOS.workflow(name="nothing")
        def nothing(number: int) -> None:
            beat()

        DBOS.launch()
        return DBOS, nothing

    def setup(self) -> None:
        DBOS, _ = self._launch()
        DBOS.register_queue(QUEUE, worker_concurrency=self.concurrency, polling_interval_sec=0.01)
        DBOS.destroy()

    def enqueue(self, count: int) -> float:
        from dbos import DBOSClient

        # By a client, so that nothing of it is done meanwhile.
        client = DBOSClient(system_database_url=self.dsn.replace("postgres://", "postgresql://", 1))
        options: Any = {"queue_name": QUEUE, "workflow_name": "nothing", "app_version": "1"}
        client.enqueue(options, 0)
        with self.stopwatch() as watch:
            for number in range(count):
                client.enqueue(options, number)
        client.destroy()
        return watch.seconds

    def prepare(self) -> None:
        import dbos  # noqa: F401 - so that its import is not measured

    def work(self) -> None:
        self._launch()
        threading.Event().wait()


THIS = Dbos
