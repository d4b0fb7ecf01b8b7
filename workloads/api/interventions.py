"""Operators: cancel, re-arm, time out. A requester may cancel its own work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from workloads import authority
from workloads.api import answer_shapes as shapes, answers
from workloads.api.access import Role
from workloads.api.base import Endpoint, seen
from workloads.api.bodies import CancelBody, InterventionBody, RearmBody
from workloads.api.errors import FORBIDDEN
from workloads.api.operations import operation
from workloads.api.shapes import Body
from workloads.errors import (
    WORKLOAD_CONFLICT,
    WORKLOAD_NOT_FOUND,
    WORKLOAD_SECRET_MATERIAL,
    WORKLOAD_TIMED_OUT,
    WORKLOAD_TRANSITION_DENIED,
)

_CODES = (
    FORBIDDEN,
    WORKLOAD_NOT_FOUND,
    WORKLOAD_CONFLICT,
    WORKLOAD_TRANSITION_DENIED,
    WORKLOAD_SECRET_MATERIAL,
)


class Intervention(Endpoint):
    """An operator's act on one workload."""

    role = Role.OPERATOR
    body: ClassVar[type[Body]] = InterventionBody
    roles: ClassVar[tuple[Role, ...]] = (Role.OPERATOR,)

    def act(self, request: Request, workload_id: str, verb: Callable[..., Any]) -> Response:
        """Do it in the caller's name, and answer with the record as committed."""
        given = self.body.read(request.data)
        caller = self.caller(request)
        subject = caller.find(workload_id)
        subject.demand(*self.roles)
        row = verb(seen(subject), actor=caller.name, **given)
        return Response(answers.workload(row, with_payload=subject.reads_payloads))


class Cancel(Intervention):
    """POST: call the work off."""

    body = CancelBody
    roles = (Role.OPERATOR, Role.REQUESTER)

    @operation("cancel", CancelBody, {200: shapes.WorkloadRecord}, codes=_CODES)
    def post(self, request: Request, workload_id: str) -> Response:
        return self.act(request, workload_id, authority.cancel)


class Rearm(Intervention):
    """POST: give parked work one more attempt."""

    body = RearmBody

    @operation("rearm", RearmBody, {200: shapes.WorkloadRecord}, codes=(*_CODES, WORKLOAD_TIMED_OUT))
    def post(self, request: Request, workload_id: str) -> Response:
        return self.act(request, workload_id, authority.rearm)


class TimeOut(Intervention):
    """POST: end waiting or claimed work by hand."""

    @operation("timeOut", InterventionBody, {200: shapes.WorkloadRecord}, codes=_CODES)
    def post(self, request: Request, workload_id: str) -> Response:
        return self.act(request, workload_id, authority.time_out)
