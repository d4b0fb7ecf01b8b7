"""`manage.py workloads_access USER …`: what a user may do over HTTP."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import router, transaction

from workloads.errors import WorkloadError
from workloads.lifecycle import arguments
from workloads.models import Access
from workloads.models.access import ROLES


class Command(BaseCommand):
    help = "Give a user roles in an application over HTTP, take them away, or say what it has. See docs/http.md."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("user", metavar="USER", help="the user's name")
        parser.add_argument("--create-user", action="store_true", help="make the user, without a password, if missing")
        parser.add_argument("--tenant", metavar="ID")
        parser.add_argument("--application", metavar="ID", default="", help="left out: all of the tenant's")
        parser.add_argument("--role", action="append", choices=ROLES, default=[], help="may be given several times")
        parser.add_argument("--capability", action="append", metavar="NAME", default=[], help="likewise")
        parser.add_argument("--worker-prefix", metavar="TEXT", default="", help="how its worker ids must begin")
        parser.add_argument("--reads-payloads", action="store_true", help="a viewer sees payloads too")
        parser.add_argument("--remove", action="store_true", help="take the access to tenant and application away")
        parser.add_argument("--json", action="store_true", help="print one JSON object a row")

    def handle(self, *_: Any, **options: Any) -> None:
        if options["tenant"] is None and (options["role"] or options["remove"]):
            raise CommandError("--tenant says where.")
        # A user that is made for a row which is refused is not made.
        with transaction.atomic(using=router.db_for_write(get_user_model())):
            user = self._user(options["user"], create=options["create_user"])
            if options["tenant"] is not None:
                try:
                    self._write(user, options)
                except (WorkloadError, ValidationError) as refusal:
                    raise CommandError(_said(refusal)) from refusal
        self._print(user, as_json=options["json"])

    def _user(self, name: str, *, create: bool) -> Any:
        users = get_user_model()
        found = users._default_manager.filter(**{users.USERNAME_FIELD: name}).first()
        if found is not None:
            return found
        if not create:
            raise CommandError(f"There is no user {name}. --create-user makes one.", returncode=2)
        made = users(**{users.USERNAME_FIELD: name})
        made.set_unusable_password()
        made.save()
        return made

    def _write(self, user: Any, options: dict[str, Any]) -> None:
        tenant_id = arguments.identifier(options["tenant"], "tenant")
        application_id = options["application"]
        for name in ("application", "worker_prefix"):
            if options[name]:
                arguments.identifier(options[name], name)
        rows = Access.objects.filter(user=user, tenant_id=tenant_id, application_id=application_id)
        if options["remove"]:
            rows.delete()
            return
        row = rows.first() or Access(user=user, tenant_id=tenant_id, application_id=application_id)
        for role in ROLES:
            setattr(row, f"is_{role}", role in options["role"])
        row.capabilities = arguments.identifiers(options["capability"], "capability")
        row.worker_prefix = options["worker_prefix"]
        row.reads_payloads = options["reads_payloads"]
        row.clean()
        row.save()

    def _print(self, user: Any, *, as_json: bool) -> None:
        rows = Access.objects.filter(user=user)
        for row in rows:
            said = {
                "user": user.get_username(),
                "tenant_id": row.tenant_id,
                "application_id": row.application_id or None,
                "roles": row.roles(),
                "capabilities": sorted(row.capabilities),
                "worker_prefix": row.worker_prefix,
                "reads_payloads": row.reads_payloads,
            }
            if as_json:
                self.stdout.write(json.dumps(said, ensure_ascii=False))
                continue
            where = f"{row.tenant_id}/{row.application_id or '*'}"
            more = [f"capabilities {', '.join(said['capabilities'])}"] if row.capabilities else []
            more += [f"worker ids {row.worker_prefix}…"] if row.worker_prefix else []
            self.stdout.write("; ".join([f"{where}: {', '.join(row.roles())}", *more]))
        if not rows and not as_json:
            self.stdout.write(f"{user.get_username()} may do nothing.")


def _said(refusal: WorkloadError | ValidationError) -> str:
    return refusal.message if isinstance(refusal, WorkloadError) else " ".join(refusal.messages)
