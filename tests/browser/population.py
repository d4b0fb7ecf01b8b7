"""What the walked site holds: people, workers, and workloads of each kind.

`python -m tests.browser.population everyday hostile spare many:1500` makes the database that DATABASE_URL names, and
prints the workloads' ids by the titles of their stories.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import django

from tests.browser.everyday import everyday
from tests.browser.hostile import MARKUP, hostile, spoil
from tests.browser.site import PASSWORD
from tests.browser.story import HOUR_MS, MINUTE_MS, Story

VIEWS: Final = ("view_workload", "view_seenworker", "view_bulkaction")
ACTS: Final = ("rearm_workload", "cancel_workload", "timeout_workload", "view_payload")


def spare(now: dt.datetime) -> Iterator[tuple[str, Story]]:
    """Tell of workloads that are there to be acted on: dead, waiting and held ones."""
    begun = now - dt.timedelta(minutes=15)
    for number in range(24):
        dead = Story(begun, f"dead-{number}", definition_id="spare.dead", application_id="spare")
        yield f"spare dead {number}", dead.then(s=1).claim("spare-1").then(s=1).fail("bad_row", "The row has no date.")
        yield f"spare waiting {number}", Story(begun, f"waiting-{number}", definition_id="spare.waiting")
        held = Story(begun, f"held-{number}", definition_id="spare.held")
        yield f"spare held {number}", held.then(s=1).claim("spare-1", lease_ms=5 * HOUR_MS)


# Who works there: what each offers itself for, and how many minutes ago it was last heard of.
WORKERS: Final[list[tuple[str, set[str], set[str] | None, float, bool]]] = [
    ("mail-1", set(), {"mail.send"}, 0.2, False),
    ("mail-2", set(), {"mail.send"}, 0.1, False),
    ("reports-1", set(), {"reports.yearly", "reports.chart", "export.rows"}, 3, False),
    ("reports-2", set(), {"reports.yearly", "reports.chart", "reports.publish"}, 0.3, False),
    ("invoice-1", set(), {"invoice.send"}, 4, True),
    ("payments-1", {"payments:refund"}, {"payments.refund"}, 33, True),
    ("stock-1", set(), {"stock.sync"}, 150, True),
]


def workers(now: dt.datetime, *, markup: bool) -> None:
    """Have the workers be seen that did all this; with `markup`, one more whose every text is."""
    from workloads import authority

    odd = (f"w{MARKUP}", {f"c{MARKUP}"}, {f"d{MARKUP}"}, 1.0, True)
    for worker_id, capabilities, definitions, minutes_ago, is_remote in [*WORKERS, *([odd] if markup else [])]:
        seen = now - dt.timedelta(minutes=minutes_ago)
        offered: dict[str, Any] = {"capabilities": capabilities, "definitions": definitions, "is_remote": is_remote}
        name = MARKUP if minutes_ago == 1.0 else f"host{len(worker_id)}:{4_000 + len(worker_id)}"
        for at, is_heartbeat in ((seen - dt.timedelta(minutes=55), False), (seen, True)):
            authority.note_worker(
                worker_id,
                **offered,
                tenant_id="acme",
                incarnation=name,
                has_claimed=True,
                is_heartbeat=is_heartbeat,
                now=at,
            )


def dead_letters(now: dt.datetime, count: int) -> None:
    """Have so many dead letters of one definition, each dead in its turn as one that failed is."""
    from workloads import authority
    from workloads.contract import AdmissionRequest

    begun = now - dt.timedelta(minutes=30)
    for start in range(0, count, 200):
        authority.admit_many(
            [
                AdmissionRequest(
                    tenant_id="many",
                    application_id="import",
                    requested_by="import",
                    idempotency_key=f"row-{number}",
                    definition_id="import.row",
                    input={"row": number},
                )
                for number in range(start, min(count, start + 200))
            ],
            now=begun,
        )
    left = count
    while left:
        claims = authority.claim_next(
            worker_id="import-1",
            capabilities=(),
            lease_ms=10 * MINUTE_MS,
            limit=100,
            tenant_id="many",
            start=True,
            now=begun,
        )
        for claim in claims:
            authority.fail(claim.fence, kind="bad_row", error="The row has no date.", now=begun)
        left -= len(claims)


def _access() -> None:
    """Have programs that come over HTTP, and a token of each."""
    from django.core.management import call_command

    given: list[tuple[str, tuple[str, ...]]] = [
        ("payments", ("--role", "worker", "--capability", "payments:refund", "--worker-prefix", "payments")),
        ("shop-web", ("--role", "requester", "--role", "viewer")),
    ]
    for name, roles in given:
        place = ("--tenant", "acme", "--application", "shop")
        with io.StringIO() as out, io.StringIO() as note:
            call_command("workloads_access", name, "--create-user", *place, *roles, stdout=out)
            call_command("workloads_token", name, "--days", "30", stdout=out, stderr=note)


def people() -> None:
    """Have somebody who may look, somebody who may act, and somebody who may do everything."""
    from django.contrib.auth import get_user_model
    from django.contrib.auth.models import Permission

    users = get_user_model().objects
    users.create_superuser("superuser", password=PASSWORD)
    _access()
    for name, codenames in (("viewer", VIEWS), ("operator", VIEWS + ACTS)):
        user = users.create_user(name, password=PASSWORD, is_staff=True)
        user.user_permissions.set(
            Permission.objects.filter(content_type__app_label="workloads", codename__in=codenames)
        )


def main(parts: Iterable[str]) -> dict[str, str]:
    """Make the database with these parts; return the ids by story."""
    django.setup()
    from django.core.management import call_command
    from django.db import connection
    from django.utils import timezone

    from workloads import authority

    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        # A scratch database need not outlive a power cut.
        cursor.execute("PRAGMA synchronous = OFF")
    people()
    now = timezone.now()
    tellers: dict[str, Callable[[dt.datetime], Iterator[tuple[str, Story]]]] = {
        "everyday": everyday,
        "hostile": hostile,
        "spare": spare,
    }
    ids: dict[str, str] = {}
    for part in parts:
        name, _, count = part.partition(":")
        if name == "many":
            dead_letters(now, int(count))
        else:
            ids |= {title: story.workload_id for title, story in tellers[name](now)}
    if ids:
        workers(now, markup="hostile" in parts)
    authority.run_pass()
    if "hostile" in parts:
        spoil(ids)
    return ids


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.browser.settings")
    json.dump(main(sys.argv[1:]), sys.stdout)
