"""Requesters: admitting work, one or many, each under a grant that the server issues from the caller's access."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable
from typing import Any, Final

from django.urls import reverse
from rest_framework.request import Request
from rest_framework.response import Response

from workloads import authority
from workloads.api import answer_shapes as shapes, answers, errors
from workloads.api.access import Caller, Place, Role
from workloads.api.base import Endpoint
from workloads.api.bodies import AdmissionBody, AdmissionsBody, admission_request
from workloads.api.errors import FORBIDDEN, forbidden
from workloads.api.operations import operation
from workloads.api.rows import have_no_dependencies, read_dependencies
from workloads.contract import Admission, AdmissionRequest
from workloads.errors import (
    IDEMPOTENCY_KEY_RETIRED,
    IDEMPOTENCY_KEY_REUSED,
    WORKLOAD_GRANT_INVALID,
    WORKLOAD_SECRET_MATERIAL,
    WORKLOAD_TOO_LARGE,
    WorkloadError,
    invalid,
)
from workloads.lifecycle import arguments

GRANT_LIFETIME: Final = dt.timedelta(minutes=5)
KEY_HEADER: Final = "HTTP_IDEMPOTENCY_KEY"


class Admissions(Endpoint):
    """POST: admit one workload."""

    role = Role.REQUESTER

    @operation(
        "admit",
        AdmissionBody,
        {201: shapes.WorkloadRecord, 200: shapes.WorkloadRecord},
        codes=(
            FORBIDDEN,
            WORKLOAD_GRANT_INVALID,
            WORKLOAD_TOO_LARGE,
            IDEMPOTENCY_KEY_REUSED,
            IDEMPOTENCY_KEY_RETIRED,
            WORKLOAD_SECRET_MATERIAL,
        ),
    )
    def post(self, request: Request) -> Response:
        caller = self.caller(request)
        (asked,) = _granted([_checked(caller, request.data, header=request.META.get(KEY_HEADER))])
        (admission,) = _admitted(caller, [asked])
        if isinstance(admission, WorkloadError):
            raise admission
        return Response(
            answers.workload(admission.workload),
            status=201 if admission.created else 200,
            headers={"Location": location(request, admission.workload.workload_id)},
        )


class AdmissionBatch(Endpoint):
    """POST: admit many workloads; each is judged by itself."""

    role = Role.REQUESTER

    @operation("admitBatch", AdmissionsBody, {200: shapes.AdmissionOutcomes}, codes=(WORKLOAD_TOO_LARGE,))
    def post(self, request: Request) -> Response:
        items = AdmissionsBody.read(request.data)["workloads"]
        caller = self.caller(request)
        outcomes: list[Any] = [None] * len(items)
        asked: dict[int, tuple[AdmissionRequest, Place]] = {}
        for index, item in enumerate(items):
            try:
                asked[index] = _checked(caller, item, header=None)
            except WorkloadError as refusal:
                outcomes[index] = refused(refusal)
        for index, outcome in zip(asked, _admitted(caller, _granted(asked.values())), strict=True):
            outcomes[index] = _outcome(outcome)
        return Response({"outcomes": outcomes})


def _admitted(caller: Caller, asked: list[AdmissionRequest]) -> list[Admission | WorkloadError]:
    """Admit, and return the outcomes: workloads with their dependencies read, and no name of what is unseen."""
    outcomes = authority.admit_many(asked)
    have_no_dependencies(
        outcome.workload
        for request, outcome in zip(asked, outcomes, strict=True)
        if isinstance(outcome, Admission) and outcome.created and not request.dependencies
    )
    read_dependencies(o.workload for o in outcomes if isinstance(o, Admission))
    cyclic = [o.details for o in outcomes if isinstance(o, WorkloadError) and o.details and "cycle" in o.details]
    known = {dependency.workload_id for request in asked for dependency in request.dependencies}
    known.update(caller.find_all(id_ for details in cyclic for id_ in details["cycle"]))
    for details in cyclic:
        own, *others = details["cycle"]
        details["cycle"] = [own, *(id_ for id_ in others if id_ in known)]
    return outcomes


def _outcome(outcome: Admission | WorkloadError) -> dict[str, Any]:
    if isinstance(outcome, WorkloadError):
        return refused(outcome)
    return {"status": 201 if outcome.created else 200, "workload": answers.workload(outcome.workload)}


def refused(refusal: WorkloadError) -> dict[str, Any]:
    """Return the outcome of an item that was refused."""
    return {"status": errors.status_of(refusal), "error": errors.body_of(refusal)}


def location(request: Request, workload_id: str) -> str:
    """Return where a workload is read, beside the path that was asked."""
    match = request.resolver_match
    prefix = f"{match.namespace}:" if match is not None and match.namespace else ""
    return reverse(f"{prefix}workload", args=[workload_id], current_app=prefix[:-1] or None)


def _checked(caller: Caller, data: Any, *, header: str | None) -> tuple[AdmissionRequest, Place]:
    """Return the request that a body is, its arguments checked, and the place of the caller that allows it."""
    given = AdmissionBody.read(data)
    named = given.get("requested_by", caller.name)
    key = _key(given.get("idempotency_key"), header)
    asked = arguments.admission(admission_request(given, name=caller.name, key=key))
    if named != caller.name:
        arguments.identifier(named, "requested_by")
        raise forbidden("requested_by is the caller's own user name.", field="requested_by")
    return asked, caller.requester_place(asked.tenant_id, asked.application_id)


def _key(given: str | None, header: str | None) -> str | None:
    if header is None:
        return given
    try:
        # Servers hand a header over as Latin-1, whatever its bytes are.
        named = header.encode("latin-1").decode("utf-8")
    except UnicodeError:
        raise invalid("idempotency_key", "the header Idempotency-Key is not UTF-8") from None
    if given is not None and given != named:
        raise invalid("idempotency_key", "differs from the header Idempotency-Key")
    return named


def _granted(asked: Iterable[tuple[AdmissionRequest, Place]]) -> list[AdmissionRequest]:
    """Return the requests, each with a grant of what its place allows, issued by the database's clock."""
    now: dt.datetime | None = None
    grants: dict[tuple[str, str], str] = {}
    granted = []
    for request, place in asked:
        now = now or authority.read_clock()
        scope = (request.tenant_id, request.application_id)
        if scope not in grants:
            grants[scope] = authority.issue_grant(
                subject=request.requested_by,
                tenant_id=request.tenant_id,
                application_id=request.application_id,
                capabilities=place.capabilities,
                issued_at=now,
                expires_at=now + GRANT_LIFETIME,
            )
        granted.append(dataclasses.replace(request, grant=grants[scope]))
    return granted
