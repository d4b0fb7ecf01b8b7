"""Reading: lists, one workload, its history, and why it is not running. Payloads are read by right alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from workloads import authority
from workloads.api import answer_shapes as shapes, answers, filters, pages
from workloads.api.access import READERS, Role
from workloads.api.admissions import Admissions
from workloads.api.base import Endpoint, seen
from workloads.api.errors import FORBIDDEN
from workloads.api.fenced import SaveCheckpoint
from workloads.api.operations import list_parameters, operation, page_parameters
from workloads.api.rows import dependencies, rows
from workloads.errors import WORKLOAD_NOT_FOUND
from workloads.models import Attempt, Checkpoint, Event, Result, Workload, WorkloadQuerySet

READING: tuple[Role, ...] = (Role.REQUESTER, *READERS)
_CODES = (FORBIDDEN, WORKLOAD_NOT_FOUND)


class Workloads(Admissions):
    """GET: a list of workloads. POST: admit one workload."""

    parameters = filters.NAMES | pages.PARAMETERS | {"ordering"}
    repeatable = filters.REPEATABLE

    @operation("list", None, {200: shapes.WorkloadPage}, codes=(FORBIDDEN,), parameters=list_parameters())
    def get(self, request: Request) -> Response:
        caller = self.caller(request)
        named = request.query_params
        caller.demand(*READING, tenant_id=named.get("tenant_id"), application_id=named.get("application_id"))
        order = filters.order_of(request)
        parts = caller.workloads_by_place(
            *READING, tenant_id=named.get("tenant_id"), application_id=named.get("application_id")
        )
        parts = [filters.apply(request, part) for part in parts or [Workload.objects.none()]]
        if order.columns[0] in ("finished_at", "next_attempt_at"):
            parts = [part.filter(**{f"{order.columns[0]}__isnull": False}) for part in parts]
        return Response(order.page(request, parts, lambda row: answers.workload(row, with_payload=False), _as_listed))


def _as_listed(found: WorkloadQuerySet) -> WorkloadQuerySet:
    return found.defer("input").prefetch_related(dependencies())


class ReadWorkload(Endpoint):
    """GET: one workload's record."""

    @operation("read", None, {200: shapes.WorkloadRecord}, codes=(FORBIDDEN, WORKLOAD_NOT_FOUND))
    def get(self, request: Request, workload_id: str) -> Response:
        subject = self.subject(request, workload_id, *READING)
        row = authority.get(seen(subject))
        return Response(answers.workload(row, with_payload=subject.reads_payloads))


class Why(Endpoint):
    """GET: why this work is not running."""

    @operation("why", None, {200: shapes.Blockers}, codes=(FORBIDDEN, WORKLOAD_NOT_FOUND))
    def get(self, request: Request, workload_id: str) -> Response:
        return Response(answers.blockers(authority.explain(seen(self.subject(request, workload_id, *READERS)))))


class Events(Endpoint):
    """GET: the steps of a workload."""

    parameters = pages.PARAMETERS

    @operation("events", None, {200: shapes.EventPage}, codes=_CODES, parameters=page_parameters())
    def get(self, request: Request, workload_id: str) -> Response:
        return _history(self, request, workload_id, pages.BY_SEQUENCE, "events", lambda row, _: answers.event(row))


class Attempts(Endpoint):
    """GET: the attempts at a workload."""

    parameters = pages.PARAMETERS

    @operation("attempts", None, {200: shapes.AttemptPage}, codes=_CODES, parameters=page_parameters())
    def get(self, request: Request, workload_id: str) -> Response:
        return _history(self, request, workload_id, pages.BY_NUMBER, "attempts", lambda row, _: answers.attempt(row))


class Checkpoints(SaveCheckpoint):
    """GET: the checkpoints of a workload. POST: save a checkpoint."""

    parameters = pages.PARAMETERS

    @operation("checkpoints", None, {200: shapes.CheckpointPage}, codes=_CODES, parameters=page_parameters())
    def get(self, request: Request, workload_id: str) -> Response:
        return _history(self, request, workload_id, pages.BY_SEQUENCE, "checkpoints", answers.checkpoint, ("state",))


class Results(Endpoint):
    """GET: the result of a workload that succeeded: a page of one, or of none."""

    parameters = pages.PARAMETERS

    @operation("result", None, {200: shapes.ResultPage}, codes=_CODES, parameters=page_parameters())
    def get(self, request: Request, workload_id: str) -> Response:
        payload = ("output", "artifacts")
        return _history(self, request, workload_id, pages.BY_KEY, "result", answers.result, payload)


def _history(
    view: Endpoint,
    request: Request,
    workload_id: str,
    order: pages.Order,
    relation: str,
    said: Callable[[Any, bool], dict[str, Any]],
    payload: tuple[str, ...] = (),
) -> Response:
    """Return a page of a workload's history; columns of payload that the caller may not read are not read."""
    subject = view.subject(request, workload_id, *READING)
    found = rows(_HISTORY[relation]).filter(record__workload_id=seen(subject))
    if not subject.places:
        # It is refused as every id is that names nothing.
        authority.get(seen(subject))
    if not subject.reads_payloads:
        found = found.defer(*payload)
    return Response(order.page(request, [found], lambda row: said(row, subject.reads_payloads)))


_HISTORY: dict[str, Any] = {"events": Event, "attempts": Attempt, "checkpoints": Checkpoint, "result": Result}
