"""`manage.py workloads_pass`: the clock's voice, once or every so often. Section 8 of the contract."""

from __future__ import annotations

import logging
import queue
import signal
import sys
import threading
import time
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error, connections

from workloads import authority
from workloads.contract import PassReport
from workloads.worker.calls import alias, drop_connection, own_connection
from workloads.worker.news import wait_for_news
from workloads.worker.watch import answered_within

logger = logging.getLogger("workloads.pass")

UNANSWERED_S: Final = 30.0
"""How long a statement of a pass is waited for: a server that says nothing must not hold up the runs to come."""


class Command(BaseCommand):
    help = (
        "Enforce deadlines, recover work whose lease is over, and give up on dependencies that can't be met. "
        "One line a run. Exits 1 if a row could not be decided, or a run could not be ended."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        often = parser.add_mutually_exclusive_group()
        often.add_argument("--once", action="store_true", help="run once (the default)")
        often.add_argument("--interval", type=float, metavar="S", help="run every S seconds until SIGTERM")
        parser.add_argument("--limit", type=int, metavar="N", help="decide at most N workloads of each kind a run")

    def handle(self, *_: Any, **options: Any) -> None:
        interval, limit = options["interval"], options["limit"]
        if limit is not None and limit < 1:
            raise CommandError("--limit must be at least 1")
        if interval is None:
            if not self._run(limit):
                raise SystemExit(1)
            return
        if not interval > 0:
            raise CommandError("--interval must be more than 0")
        if not self._repeat(interval, limit):
            raise SystemExit(1)

    def _run(self, limit: int | None) -> bool:
        """Run one pass and print its line; return whether every row could be decided."""
        begun = time.monotonic()
        own_connection()
        with answered_within(UNANSWERED_S):
            # A connection that the server has ended since the last run is no fault of this one.
            connections[alias()].close_if_unusable_or_obsolete()
            report = authority.run_pass(limit=limit)
        self.stdout.write(_line(report, time.monotonic() - begun))
        for workload_id, message in report.failed.items():
            self.stderr.write(f"{workload_id}: {' '.join(message.split())}")
        self.stdout.flush()
        return not report.failed

    def _repeat(self, interval: float, limit: int | None) -> bool:
        """Run a pass every `interval` seconds until a signal; return whether all went well."""
        stop: queue.SimpleQueue[int] = queue.SimpleQueue()
        before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                before[number] = signal.signal(number, lambda number, _: stop.put(number))
        all_well = True
        is_away = False
        due = time.monotonic()
        try:
            while True:
                try:
                    all_well = self._run(limit) and all_well
                    if is_away:
                        logger.warning("The database answers again.")
                    is_away = False
                except Error as error:
                    # What was committed stays, and the next run starts from the data.
                    all_well = False
                    if not is_away:
                        logger.warning("The database does not answer (%s). Trying again.", " ".join(str(error).split()))
                    is_away = True
                    drop_connection()
                due = max(due + interval, time.monotonic())
                if wait_for_news(stop, due - time.monotonic()):
                    return all_well
        finally:
            sys.stdout.flush()
            for number, previous in before.items():
                signal.signal(number, previous)


def _line(report: PassReport, seconds: float) -> str:
    return (
        f"timed out {len(report.timed_out)}, recovered {len(report.recovered)}, "
        f"unsatisfiable {len(report.unsatisfiable)}, failed {len(report.failed)}, in {seconds * 1000:.0f} ms"
    )
