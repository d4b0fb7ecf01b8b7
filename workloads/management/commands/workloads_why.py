"""`manage.py workloads_why ID`: why this work is not running now."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from workloads import authority
from workloads.errors import WORKLOAD_NOT_FOUND, WorkloadError


class Command(BaseCommand):
    help = "Say every reason why a workload is not running now. Exits 2 if there is no such workload."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("workload_id", metavar="ID")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *_: Any, **options: Any) -> None:
        try:
            workload = authority.get(options["workload_id"])
            blockers = authority.explain(workload.workload_id)
        except WorkloadError as refusal:
            raise CommandError(str(refusal), returncode=2 if refusal.code == WORKLOAD_NOT_FOUND else 1) from refusal
        if options["json"]:
            said = [{"code": b.code, "message": b.message, "details": dict(b.details)} for b in blockers]
            answer = {"workload_id": workload.workload_id, "state": workload.state, "blockers": said}
            self.stdout.write(json.dumps(answer, ensure_ascii=False))
            return
        self.stdout.write(f"{workload.workload_id}: {workload.state}")
        for blocker in blockers:
            details = ", ".join(f"{name}={_plain(value)}" for name, value in blocker.details.items())
            self.stdout.write(f"  {blocker.code}: {blocker.message}" + (f" ({details})" if details else ""))
        if not blockers:
            self.stdout.write("  nothing holds it back")


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
