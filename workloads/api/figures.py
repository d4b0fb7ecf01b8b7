"""Figures: how much stands where, what has happened of late, and whether all is well."""

from __future__ import annotations

import datetime as dt
from functools import cache
from typing import Any, Final

from django.db import connections, router
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Min, Q
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.response import Response

from workloads import authority
from workloads.api import answer_shapes as shapes, filters
from workloads.api.access import READERS, Caller
from workloads.api.answers import plain
from workloads.api.base import Endpoint
from workloads.api.errors import FORBIDDEN
from workloads.api.operations import list_parameters, operation
from workloads.api.rows import rows
from workloads.contract import WorkloadState
from workloads.lifecycle.signs import PASS_IS_LATE
from workloads.models import Event, PassRun, Workload, WorkloadQuerySet

MOST_COUNTED: Final = 10_000
SPANS: Final = {"minute": dt.timedelta(minutes=1), "hour": dt.timedelta(hours=1)}
FAILED: Final = ("FAILED", "TIMED_OUT", "RECOVERING")


class Stats(Endpoint):
    """GET: counts and rates of the workloads that a list with the same parameters would hold."""

    parameters = filters.NAMES
    repeatable = filters.REPEATABLE

    @operation("stats", None, {200: shapes.Stats}, codes=(FORBIDDEN,), parameters=list_parameters(with_pages=False))
    def get(self, request: Request) -> Response:
        caller = self.caller(request)
        named = request.query_params
        caller.demand(*READERS, tenant_id=named.get("tenant_id"), application_id=named.get("application_id"))
        found = filters.apply(request, caller.workloads(*READERS))
        now = authority.read_clock()
        return Response(
            {
                "at": plain(now),
                "counts": {state.value: _capped(found.filter(state=state.value)) for state in WorkloadState},
                "oldest_claimable_ms": _oldest_claimable_ms(found, now),
                "last": {name: _of_late(found, now - span) for name, span in SPANS.items()},
            }
        )


def _capped(found: Any) -> dict[str, Any]:
    """Count up to 10,000 rows, and say so where there are more."""
    count = found.order_by()[: MOST_COUNTED + 1].count()
    return {"count": min(count, MOST_COUNTED), "more": count > MOST_COUNTED}


def _oldest_claimable_ms(found: WorkloadQuerySet, now: dt.datetime) -> int | None:
    """Return how long the longest due of what could be claimed now has been due, in milliseconds."""
    claimable = Q(queued_lane_id__isnull=False) | Q(waiting_lane_id__isnull=False)
    due = found.filter(claimable, next_attempt_at__lte=now).aggregate(first=Min("next_attempt_at"))["first"]
    return None if due is None else max(0, int((now - due) / dt.timedelta(milliseconds=1)))


def _of_late(found: WorkloadQuerySet, since: dt.datetime) -> dict[str, Any]:
    """Count the claims, completions and failures since then."""
    recent = rows(Event).filter(at__gte=since, record__in=found.order_by().values("pk"))
    return {
        "claims": _capped(recent.filter(to_state="CLAIMED")),
        "completions": _capped(found.filter(state=WorkloadState.SUCCEEDED.value, finished_at__gte=since)),
        "failures": _capped(recent.filter(to_state__in=FAILED)),
    }


class Health(Endpoint):
    """GET: whether the database answers, its migrations are applied, and a pass has run lately. Open to all."""

    permission_classes = ()
    throttle_classes = ()

    @operation("health", None, {200: shapes.Health, 503: shapes.Health}, is_open=True)
    def get(self, request: Request) -> Response:
        found = _look()
        is_well = all(part["ok"] for part in found.values())
        said: dict[str, Any] = {"ok": is_well}
        if found["database"]["ok"] and self._has_access(request):
            said["details"] = found
        response = Response(said, status=200 if is_well else 503)
        if not is_well:
            response["Retry-After"] = "5"
        return response

    def perform_authentication(self, request: Request) -> None:
        """Ask nobody who they are until the database has answered."""

    def _has_access(self, request: Request) -> bool:
        try:
            super().perform_authentication(request)
        except APIException:
            # Open to all: to those, too, whose token has expired.
            return False
        return bool(request.user.is_authenticated and Caller.of(request.user).places)


@cache
def _migrations() -> frozenset[str]:
    """Return the names of the app's migrations, as they are on disk: read once, since it takes a while."""
    loader = MigrationLoader(None, ignore_no_migrations=True)
    return frozenset(name for label, name in loader.disk_migrations if label == Workload._meta.app_label)


def _applied(alias: str) -> frozenset[str]:
    recorder = MigrationRecorder(connections[alias])
    if not recorder.has_table():
        return frozenset()
    rows = recorder.migration_qs.filter(app=Workload._meta.app_label)
    return frozenset(rows.values_list("name", flat=True))


def _look() -> dict[str, dict[str, Any]]:
    """Return what was found, part by part. A part that could not be looked at is not well."""
    connection = connections[router.db_for_write(Workload)]
    try:
        now = authority.read_clock()
    except Exception:
        connection.close()
        return {"database": {"ok": False}}
    found: dict[str, dict[str, Any]] = {"database": {"ok": True}}
    missing = _migrations() - _applied(connection.alias)
    found["migrations"] = {"ok": not missing, "missing": len(missing)}
    if missing:
        return found
    ran_at = rows(PassRun).filter(id=1).values_list("ran_at", flat=True).first()
    age = None if ran_at is None else now - ran_at
    found["pass"] = {
        "ok": age is not None and age < PASS_IS_LATE,
        "age_ms": None if age is None else max(0, int(age / dt.timedelta(milliseconds=1))),
    }
    return found
