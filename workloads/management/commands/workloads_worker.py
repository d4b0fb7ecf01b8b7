"""`manage.py workloads_worker`: runs the site's handlers until it is told to stop, or until there is nothing to do."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from workloads import conf
from workloads.errors import WorkloadError
from workloads.worker import Worker
from workloads.worker.program import add_options, leave, options_of, run
from workloads.worker.registry import discover


class Command(BaseCommand):
    help = (
        "Claim work and run the site's handlers on it. SIGTERM: claim no more, wait the grace period, then give back "
        "what still runs; a second SIGTERM gives it back at once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_options(parser)

    def handle(self, *_: Any, **options: Any) -> None:
        try:
            handlers = discover(options["handlers"])
            worker = Worker(**options_of(options, handlers, most_lease_ms=conf.limits().max_lease_ms))
        except (ValueError, ImportError, WorkloadError) as error:
            raise CommandError(str(error)) from error
        summary, left = run(worker)
        if (summary.abandoned or left) and getattr(self, "_called_from_command_line", False):
            leave(int(summary.is_clogged))
        if summary.is_clogged:
            raise CommandError("Too many handlers do not end.")
