"""Workers: every call that carries a fence, and the batches of heartbeats and completions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from rest_framework.request import Request
from rest_framework.response import Response

from workloads import authority
from workloads.api import answer_shapes as shapes, answers
from workloads.api.access import Caller, Role, Subject
from workloads.api.admissions import refused
from workloads.api.base import Endpoint, seen
from workloads.api.bodies import (
    CheckpointBody,
    CompleteBody,
    CompletionItem,
    CompletionsBody,
    ContextBody,
    FailBody,
    FenceBody,
    HeartbeatBody,
    HeartbeatItem,
    HeartbeatsBody,
    ReleaseBody,
    but_fence,
    completion_report,
    fence_of,
)
from workloads.api.errors import FORBIDDEN
from workloads.api.operations import operation
from workloads.api.shapes import Body
from workloads.errors import (
    WORKLOAD_CHECKPOINT_CONFLICT,
    WORKLOAD_CLAIM_INVALID,
    WORKLOAD_LEASE_EXPIRED,
    WORKLOAD_NOT_FOUND,
    WORKLOAD_RESULT_CONFLICT,
    WORKLOAD_RESULT_DUPLICATE,
    WORKLOAD_SCOPE_DENIED,
    WORKLOAD_SECRET_MATERIAL,
    WORKLOAD_STALE_FENCE,
    WORKLOAD_TIMED_OUT,
    WORKLOAD_TOO_LARGE,
    WORKLOAD_TRANSITION_DENIED,
    WorkloadError,
)

MOST_NOTED: Final = 3

_FENCED = (
    FORBIDDEN,
    WORKLOAD_NOT_FOUND,
    WORKLOAD_CLAIM_INVALID,
    WORKLOAD_STALE_FENCE,
    WORKLOAD_LEASE_EXPIRED,
    WORKLOAD_TRANSITION_DENIED,
)
_TIMED = (*_FENCED, WORKLOAD_TIMED_OUT)


class Fenced(Endpoint):
    """A call for one workload by the holder of its claim."""

    role = Role.WORKER
    body: ClassVar[type[Body]] = FenceBody

    def say(self, request: Request, workload_id: str, verb: Callable[..., Any]) -> Any:
        """Return what the authority answers to this verb, said with the body's fields."""
        given = self.body.read(request.data)
        subject = self.subject(request, workload_id, Role.WORKER)
        subject.check_worker(given["worker_id"])
        answer = verb(fence_of(seen(subject), given), **but_fence(given))
        self.note(given["worker_id"], subject)
        return answer

    def note(self, worker_id: str, subject: Subject) -> None:
        """Note what the call says of its worker, once it was answered well."""


class Start(Fenced):
    """POST: let claimed work run."""

    @operation("start", FenceBody, {200: shapes.Claim}, codes=_TIMED)
    def post(self, request: Request, workload_id: str) -> Response:
        return Response(answers.claim(self.say(request, workload_id, authority.start)))


class Heartbeat(Fenced):
    """POST: keep the lease."""

    body = HeartbeatBody

    @operation("heartbeat", HeartbeatBody, {200: shapes.Claim}, codes=_TIMED)
    def post(self, request: Request, workload_id: str) -> Response:
        return Response(answers.claim(self.say(request, workload_id, authority.heartbeat)))

    def note(self, worker_id: str, subject: Subject) -> None:
        _note_heartbeat(worker_id, subject)


def _note_heartbeat(worker_id: str, subject: Subject) -> None:
    """Note that a worker has kept a lease: one that is busy for long asks for nothing."""
    authority.note_worker(
        worker_id,
        tenant_id=subject.tenant_id,
        application_id=subject.application_id,
        is_remote=True,
        is_heartbeat=True,
    )


class Context(Fenced):
    """POST: read all that is needed to run the work."""

    body = ContextBody

    @operation("context", ContextBody, {200: shapes.ExecutionContext}, codes=(*_TIMED, WORKLOAD_SCOPE_DENIED))
    def post(self, request: Request, workload_id: str) -> Response:
        return Response(answers.claim(self.say(request, workload_id, authority.context)))


class SaveCheckpoint(Fenced):
    """POST: save progress."""

    body = CheckpointBody

    @operation(
        "checkpoint",
        CheckpointBody,
        {200: shapes.Checkpoint},
        codes=(*_TIMED, WORKLOAD_CHECKPOINT_CONFLICT, WORKLOAD_TOO_LARGE, WORKLOAD_SECRET_MATERIAL),
    )
    def post(self, request: Request, workload_id: str) -> Response:
        return Response(answers.checkpoint(self.say(request, workload_id, authority.checkpoint)))


class Complete(Fenced):
    """POST: end the work well."""

    body = CompleteBody

    @operation(
        "complete",
        CompleteBody,
        {200: shapes.Result},
        codes=(
            *_TIMED,
            WORKLOAD_RESULT_CONFLICT,
            WORKLOAD_RESULT_DUPLICATE,
            WORKLOAD_TOO_LARGE,
            WORKLOAD_SECRET_MATERIAL,
        ),
    )
    def post(self, request: Request, workload_id: str) -> Response:
        return Response(answers.result(self.say(request, workload_id, authority.complete)))


class Fail(Fenced):
    """POST: report a failure."""

    body = FailBody

    @operation("fail", FailBody, {200: shapes.FailureOutcome}, codes=(*_TIMED, WORKLOAD_SECRET_MATERIAL))
    def post(self, request: Request, workload_id: str) -> Response:
        return Response(answers.outcome(self.say(request, workload_id, authority.fail)))


class Release(Fenced):
    """POST: give the work back."""

    body = ReleaseBody

    @operation("release", ReleaseBody, {200: shapes.WorkloadRecord}, codes=(*_TIMED, WORKLOAD_SECRET_MATERIAL))
    def post(self, request: Request, workload_id: str) -> Response:
        return Response(answers.workload(self.say(request, workload_id, authority.release)))


class ConfirmCancel(Fenced):
    """POST: end work whose cancellation was requested."""

    @operation("confirmCancel", FenceBody, {200: shapes.WorkloadRecord}, codes=_FENCED)
    def post(self, request: Request, workload_id: str) -> Response:
        return Response(answers.workload(self.say(request, workload_id, authority.confirm_cancel)))


class HeartbeatBatch(Endpoint):
    """POST: keep many leases, each judged by itself, in one transaction."""

    role = Role.WORKER

    @operation("heartbeats", HeartbeatsBody, {200: shapes.ClaimOutcomes}, codes=(WORKLOAD_TOO_LARGE,))
    def post(self, request: Request) -> Response:
        def put(items: Sequence[tuple[dict[str, Any], str]]) -> Sequence[Any]:
            return authority.heartbeat_many([(fence_of(id_, given), given["extend_ms"]) for given, id_ in items])

        items = HeartbeatsBody.read(request.data)["items"]
        return Response(
            _batch(self.caller(request), items, HeartbeatItem, put, "claim", answers.claim, note=_note_heartbeat)
        )


class CompletionBatch(Endpoint):
    """POST: report many completions, each judged by itself, in one transaction."""

    role = Role.WORKER

    @operation("completions", CompletionsBody, {200: shapes.ResultOutcomes}, codes=(WORKLOAD_TOO_LARGE,))
    def post(self, request: Request) -> Response:
        def put(items: Sequence[tuple[dict[str, Any], str]]) -> Sequence[Any]:
            return authority.complete_many([completion_report(given, id_) for given, id_ in items])

        items = CompletionsBody.read(request.data)["items"]
        return Response(_batch(self.caller(request), items, CompletionItem, put, "result", answers.result))


def _batch(
    caller: Caller,
    items: Sequence[Any],
    body: type[Body],
    put: Callable[[Sequence[tuple[dict[str, Any], str]]], Sequence[Any]],
    name: str,
    said: Callable[[Any], dict[str, Any]],
    note: Callable[[str, Subject], None] = lambda *_: None,
) -> dict[str, Any]:
    """Put those items to the authority that are the caller's to put, and return an outcome for each, in order."""
    outcomes: list[Any] = [None] * len(items)
    read: dict[int, dict[str, Any]] = {}
    for index, item in enumerate(items):
        try:
            read[index] = body.read(item)
        except WorkloadError as refusal:
            outcomes[index] = refused(refusal)
    subjects = caller.find_all(given["workload_id"] for given in read.values())
    asked: dict[int, tuple[dict[str, Any], str]] = {}
    for index, given in read.items():
        subject = subjects.get(given["workload_id"]) or Subject(workload_id=given["workload_id"])
        try:
            subject.demand(Role.WORKER)
            subject.check_worker(given["worker_id"])
        except WorkloadError as refusal:
            outcomes[index] = refused(refusal)
        else:
            asked[index] = (given, seen(subject))
    signs: dict[tuple[str, str, str], Subject] = {}
    for index, outcome in zip(asked, put(list(asked.values())), strict=True):
        if isinstance(outcome, WorkloadError):
            outcomes[index] = refused(outcome)
        else:
            outcomes[index] = {"status": 200, name: said(outcome)}
            subject = subjects[read[index]["workload_id"]]
            signs[read[index]["worker_id"], subject.tenant_id, subject.application_id] = subject
    # A batch for many workers costs no more than one for few: by chance, so that each has its turn.
    for who in random.sample(list(signs), min(len(signs), MOST_NOTED)):
        note(who[0], signs[who])
    return {"outcomes": outcomes}
