"""How many queries each page of the admin makes on a filled database, how long they take, and how much they read.

Run `python bench/admin_pages.py --help`. It looks at what `bench/fill.py` has made, as a superuser, through Django's
test client: no server stands between. It writes nothing but that user, and the session. Findings:
docs/admin-at-scale.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

ROOT = Path(__file__).resolve().parents[1]
LIST = "/admin/workloads/workload/"


class Statements:
    """What one page asks the database: each statement with its time, and with what it read where that is wanted."""

    def __init__(self, *, is_explained: bool) -> None:
        self.is_explained = is_explained
        self.found: list[tuple[str, float, int]] = []

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        read = 0
        if self.is_explained and sql.startswith(("SELECT", "WITH", "(SELECT")):
            with context["connection"].connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {sql}", params)
                (plan,) = cursor.fetchone()
            plan = plan if isinstance(plan, list) else json.loads(plan)
            read = sum(rows_read(plan[0]["Plan"]))
        started = time.perf_counter()
        try:
            return execute(sql, params, many, context)
        finally:
            self.found.append((sql, (time.perf_counter() - started) * 1000, read))


def rows_read(node: dict[str, Any]) -> Iterator[int]:
    """Yield how many rows each scan of a plan has looked at, those that it left out included."""
    # What a subquery hands on, its own scans have read.
    if "Scan" in node["Node Type"] and node["Node Type"] not in {"Subquery Scan", "CTE Scan"}:
        removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        yield int((node["Actual Rows"] + removed) * node["Actual Loops"])
    for child in node.get("Plans", ()):
        yield from rows_read(child)


def pages() -> Iterator[tuple[str, str, str]]:
    """Yield each page: its group, its name, its address."""
    from django.db.models import Max
    from django.utils import timezone

    from workloads.admin.filters import SAVED
    from workloads.admin.orders import BY_ADMISSION, BY_DUE, BY_END, BY_KEY, Order, Start
    from workloads.models import Admitted, Workload

    last = Admitted.objects.aggregate(last=Max("pk"))["last"]
    middle = Admitted.objects.filter(pk__lte=last // 2).order_by("-pk")[0]
    recent = Admitted.objects.filter(pk__lte=last * 97 // 100).order_by("-pk")[0]

    def deep(order: Order, row: Any = middle) -> str:
        value = () if order.column is None else (row.created_at,)
        return Start(order=order.name, is_backwards=False, place=(*value, row.pk)).text

    def of(**query: Any) -> str:
        return f"{LIST}?{urlencode(query, doseq=True)}"

    day = (timezone.now() - dt.timedelta(days=30)).strftime("%Y-%m-%d")
    week = (timezone.now() - dt.timedelta(days=23)).strftime("%Y-%m-%d")
    for title, query in SAVED:
        yield "saved lists", str(title), f"{LIST}?{query}"
    yield "lists", "everything", LIST
    held = Workload.objects.filter(state="RUNNING").order_by("-pk")[0]
    single: list[dict[str, Any]] = [
        *({"state": state} for state in ("READY", "CLAIMED", "RUNNING", "CHECKPOINTED", "SUCCEEDED", "TIMED_OUT")),
        *({"state": state} for state in ("DEAD_LETTER", "CANCELLATION_REQUESTED", "CANCELLED", "parked", "held")),
        {"definition": "mail.send"},
        {"definition": "mail.send", "revision": "1"},
        {"definition": "nothing"},
        {"revision": "1"},
        {"application": "billing"},
        {"tenant": "acme"},
        {"tenant": "small-7"},
        {"failure_kind": "upstream"},
        {"failure_kind": "conflict"},
        {"failure_kind": "nothing"},
        {"worker": held.worker_id},
        {"due": "now"},
        {"admitted_from": "24h"},
        {"admitted_from": day, "admitted_to": week},
        {"finished_from": "24h"},
        {"finished_from": day, "finished_to": week},
        {"q": held.workload_id},
        {"q": held.idempotency_key},
        {"q": held.claim_id},
    ]
    for query in single:
        yield "lists by one filter", " ".join(f"{name}={value}" for name, value in query.items()), of(**query)
    several: list[dict[str, Any]] = [
        {"state": "DEAD_LETTER", "definition": "mail.send"},
        {"state": "DEAD_LETTER", "tenant": "small-7"},
        {"state": "DEAD_LETTER", "failure_kind": "conflict"},
        {"state": "DEAD_LETTER", "definition": "billing.charge", "failure_kind": "conflict", "finished_from": "7d"},
        {"state": "DEAD_LETTER", "failure_kind": "nothing"},
        {"state": "SUCCEEDED", "tenant": "acme", "application": "billing"},
        {"state": "SUCCEEDED", "tenant": "small-7", "finished_from": "24h"},
        {"state": "READY", "tenant": "small-7"},
        {"state": "parked", "finished_from": day, "finished_to": week},
        {"state": "held", "application": "mail"},
        {"tenant": "acme", "application": "mail", "definition": "mail.send", "admitted_from": "7d"},
        {"tenant": "acme", "failure_kind": "disk"},
        {"blocked": "yes", "tenant": "acme"},
        {"due": "later", "definition": "mail.send"},
        {"state": "DEAD_LETTER", "finished_from": "7d", "failure": "far side"},
        {"state": "DEAD_LETTER", "finished_from": "7d", "failure": "nothing like it"},
        {"tenant": "acme", "admitted_from": "7d", "failure": "nothing like it"},
    ]
    for query in several:
        yield "lists by several filters", " ".join(f"{name}={value}" for name, value in query.items()), of(**query)
    deeper: list[tuple[dict[str, Any], str]] = [
        ({}, deep(BY_KEY)),
        ({}, "key-back-1"),
        ({"state": "DEAD_LETTER"}, deep(BY_KEY)),
        ({"state": "parked"}, deep(BY_KEY)),
        ({"state": "SUCCEEDED"}, deep(BY_KEY)),
        ({"tenant": "acme"}, deep(BY_ADMISSION)),
        ({"application": "billing"}, deep(BY_ADMISSION)),
        ({"definition": "mail.send"}, deep(BY_ADMISSION)),
        ({"admitted_from": "50d"}, deep(BY_ADMISSION)),
        ({"finished_from": "50d"}, deep(BY_END)),
        (
            {"due": "later"},
            Start(order=BY_DUE.name, is_backwards=False, place=(timezone.now() + dt.timedelta(5), 1)).text,
        ),
        ({"blocked": "yes"}, deep(BY_KEY, recent)),
        ({"state": "DEAD_LETTER", "definition": "mail.send"}, deep(BY_KEY)),
        ({"failure_kind": "conflict"}, deep(BY_KEY)),
    ]
    for query, at in deeper:
        name = " ".join(f"{name}={value}" for name, value in query.items()) or "everything"
        yield (
            "deep pages",
            f"{name}, from the middle" if "back" not in at else f"{name}, the oldest",
            of(**query, at=at),
        )
    for state in ("SUCCEEDED", "DEAD_LETTER", "RUNNING", "READY", "CANCELLED"):
        row = Workload.objects.filter(state=state).order_by("-pk")[0]
        yield "one workload", state, f"{LIST}{row.pk}/change/"
    blocked = Workload.objects.filter(state="READY").exclude(dependency_standing="met").order_by("-pk")[0]
    yield "one workload", "waiting for other work", f"{LIST}{blocked.pk}/change/"
    dead = Workload.objects.filter(state="DEAD_LETTER").order_by("-pk").values_list("pk", flat=True)
    yield "one workload", "re-arm one", f"{LIST}rearm/?{urlencode({'pk': dead[0]})}"
    yield "many", "re-arm 100", f"{LIST}rearm/?{urlencode({'pk': list(dead[:100])}, doseq=True)}"
    yield "many", "decisions on many", "/admin/workloads/bulkaction/"
    yield "overview", "overview", "/admin/workloads/"
    yield "workers", "workers", "/admin/workloads/seenworker/"
    yield "access", "access", "/admin/workloads/access/"


def shown(response: Any) -> int:
    """Return how many rows a page shows."""
    context = getattr(response, "context_data", None) or {}
    if "cl" in context:
        return len(context["cl"].result_list)
    return len(re.findall(rb"<tr[ >]", response.content))


def measure(client: Any, address: str, turns: int) -> dict[str, Any]:
    """Return what a page costs: at its first sight, then at its best of so many turns; and what it reads at the first.

    What pages keep for a while is dropped before the first, and before it is asked what is read.
    """
    from django.core.cache import cache
    from django.db import connection

    times, own, slowest, queries, response = [], [], [], 0, None
    cache.clear()
    for _ in range(turns + 1):
        seen = Statements(is_explained=False)
        started, busy = time.perf_counter(), time.process_time()
        with connection.execute_wrapper(seen):
            response = client.get(address)
        times.append((time.perf_counter() - started) * 1000)
        own.append((time.process_time() - busy) * 1000)
        slowest.append(max((took for _sql, took, _read in seen.found), default=0))
        queries = max(queries, len(seen.found))
    cache.clear()
    explained = Statements(is_explained=True)
    with connection.execute_wrapper(explained):
        client.get(address)
    read = [(read, sql) for sql, _took, read in explained.found]
    return {
        "status": response.status_code,
        "queries": queries,
        "first_ms": times[0],
        "total_ms": min(times[1:]),
        "own_ms": min(own[1:]),
        "slowest_ms": min(slowest[1:]),
        "read": sum(count for count, _sql in read),
        "counted": sum(count for count, sql in read if "COUNT(" in sql),
        "shown": shown(response),
        "most": max(read, default=(0, ""))[1][:2000],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--database-url", default="postgres://postgres@127.0.0.1:5432/workloads_fill")
    parser.add_argument("--turns", type=int, default=3, help="how often each page is looked at; the best counts")
    parser.add_argument("--only", default="", help="pages whose group or name holds this alone")
    parser.add_argument("--json", help="also write the figures here")
    options = parser.parse_args()
    os.environ["DATABASE_URL"] = options.database_url
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    sys.path.insert(0, str(ROOT))
    import django

    django.setup()
    from django.conf import settings
    from django.contrib.auth import get_user_model
    from django.test import Client

    settings.ALLOWED_HOSTS = ["testserver"]
    user, _is_new = get_user_model().objects.get_or_create(
        username="bench", defaults={"is_staff": True, "is_superuser": True}
    )
    client = Client()
    client.force_login(user)
    client.get("/admin/")
    found, last = [], None
    for group, name, address in pages():
        if options.only not in group and options.only not in name:
            continue
        if group != last:
            print(f"\n**{group.capitalize()}**\n")
            print("| page | queries | first ms | ms | Django's ms | slowest query ms | rows read | counted | shown |")
            print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
            last = group
        figures = measure(client, address, options.turns)
        found.append({"group": group, "name": name, "address": address, **figures})
        note = "" if figures["status"] == 200 else f" (status {figures['status']})"
        times = [f"{figures[key]:,.0f}" for key in ("first_ms", "total_ms", "own_ms")]
        rows = [f"{figures[key]:,}" for key in ("read", "counted", "shown")]
        cells = [f"{name}{note}", f"{figures['queries']}", *times, f"{figures['slowest_ms']:,.1f}", *rows]
        print(f"| {' | '.join(cells)} |", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
