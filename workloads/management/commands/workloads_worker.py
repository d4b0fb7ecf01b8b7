"""`manage.py workloads_worker`: runs the site's handlers until it is told to stop, or until there is nothing to do."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from workloads import conf
from workloads.errors import WorkloadError
from workloads.lifecycle import arguments
from workloads.worker import Worker
from workloads.worker.registry import discover

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Command(BaseCommand):
    help = (
        "Claim work and run the site's handlers on it. SIGTERM: claim no more, wait the grace period, then give back "
        "what still runs; a second SIGTERM gives it back at once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--concurrency", type=int, default=1, metavar="N", help="handlers at once (1)")
        parser.add_argument(
            "--definition",
            action="append",
            metavar="ID[@REVISION]",
            help="run only this; may be repeated (all that have handlers)",
        )
        parser.add_argument(
            "--capability",
            action="append",
            metavar="NAME",
            help="offer only this; may be repeated (all that the handlers need)",
        )
        parser.add_argument("--lease-ms", type=int, default=60_000, metavar="MS", help="length of a lease (60000)")
        parser.add_argument("--tenant", metavar="ID", help="run only this tenant's work")
        parser.add_argument("--application", metavar="ID", help="run only this application's work")
        parser.add_argument(
            "--poll-ms", type=int, default=1_000, metavar="MS", help="pause after an empty claim (1000)"
        )
        parser.add_argument("--grace", type=float, default=30.0, metavar="SECONDS", help="wait after SIGTERM (30)")
        parser.add_argument("--drain", action="store_true", help="end when nothing is claimable and nothing runs")
        parser.add_argument("--worker-id", metavar="ID", help="must be unique (host, process and chance)")
        parser.add_argument(
            "--handlers",
            action="append",
            default=[],
            metavar="MODULE",
            help="import this module too, besides each app's `handlers`; may be repeated",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        try:
            worker = _worker(options)
        except (ValueError, ImportError, WorkloadError) as error:
            raise CommandError(str(error)) from error
        logger = logging.getLogger("workloads.worker")
        if not logger.hasHandlers():
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        with _stopping(worker):
            summary = worker.run()
        if summary.abandoned:
            # Their threads run on, and nothing in this process can end them.
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


def _worker(options: dict[str, Any]) -> Worker:
    handlers = discover(options["handlers"])
    if not handlers.selectors():
        raise CommandError("No handler is registered: an app registers them in its module `handlers`.")
    for name in ("tenant", "application", "worker_id"):
        arguments.optional_identifier(options[name], f"--{name.replace('_', '-')}")
    arguments.integer(options["lease_ms"], "--lease-ms", 3, conf.limits().max_lease_ms)
    return Worker(
        handlers=handlers,
        concurrency=options["concurrency"],
        definitions=None if options["definition"] is None else handlers.narrow(options["definition"]),
        capabilities=options["capability"],
        lease_ms=options["lease_ms"],
        tenant_id=options["tenant"],
        application_id=options["application"],
        poll_ms=options["poll_ms"],
        grace_ms=int(options["grace"] * 1000),
        drain=options["drain"],
        worker_id=options["worker_id"],
    )


@contextmanager
def _stopping(worker: Worker) -> Iterator[None]:
    """Let SIGTERM and SIGINT stop the worker, for as long as the block runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: worker.stop()) for number in SIGNALS}
    try:
        yield
    finally:
        for number, previous in before.items():
            # One more SIGTERM must not turn an orderly ending into a death by signal, to the process's last breath.
            is_ending = worker.is_stopping and number is signal.SIGTERM
            signal.signal(number, signal.SIG_IGN if is_ending else previous)
