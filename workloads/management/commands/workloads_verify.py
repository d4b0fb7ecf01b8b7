"""`manage.py workloads_verify`: is everything that is stored as the contract says? Section 12."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error, connections

from workloads.authority import verify
from workloads.errors import WorkloadError


class Command(BaseCommand):
    help = (
        "Check everything that is stored against the invariants, while work goes on: nothing is locked or written. "
        "One line a fault: the workload's id, the invariant that it breaks, and how. "
        "Exits 0 if all is well, 1 if anything is not, 2 if the database can't be read."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--json", action="store_true", help="print JSON Lines: an object for each fault, then one with the counts"
        )
        parser.add_argument("--chunk", type=int, default=500, metavar="N", help="read N workloads at a time (500)")
        parser.add_argument("--database", metavar="ALIAS", help="read this one, say a replica, not the one written to")

    def handle(self, *_: Any, **options: Any) -> None:
        chunk, database = options["chunk"], options["database"]
        if database is not None and database not in connections:
            raise CommandError(f"--database: no such alias: {database}", returncode=2)
        read = faults = broken = 0
        last = None

        def note(count: int) -> None:
            nonlocal read
            read = count
            self._show(f"{count:,} workloads read")

        try:
            for fault in verify(using=database, chunk=chunk, progress=note):
                faults += 1
                if fault.workload_id != last:
                    last = fault.workload_id
                    broken += 1
                self._show("")
                self.stdout.write(
                    json.dumps(asdict(fault), ensure_ascii=False)
                    if options["json"]
                    else f"{fault.workload_id}  {fault.invariant}  {fault.message}"
                )
        except WorkloadError as refusal:
            raise CommandError(refusal.message, returncode=2) from refusal
        except Error as error:
            self._show("")
            raise CommandError(f"The database can't be read: {' '.join(str(error).split())}", returncode=2) from error
        self._show("")
        if options["json"]:
            self.stdout.write(json.dumps({"workloads": read, "faulty": broken, "faults": faults}))
        elif faults:
            self.stderr.write(f"{faults:,} fault(s) in {broken:,} of {read:,} workload(s)")
        else:
            self.stdout.write(f"{read:,} workload(s), no fault")
        self.stdout.flush()
        if faults:
            raise SystemExit(1)

    def _show(self, text: str) -> None:
        """Write over the last line of a terminal; nothing elsewhere."""
        if self.stderr.isatty():
            self.stderr.write(f"\r\033[K{text}", lambda plain: plain, "")
            self.stderr.flush()
