"""Workers: claiming work, the next or a named one, with all that is needed to begin; and waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db import router
from rest_framework.exceptions import NotAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from workloads import authority, conf
from workloads.api import answer_shapes as shapes, answers, waiting
from workloads.api.access import Caller, Role, request_id_in
from workloads.api.base import Endpoint, seen
from workloads.api.bodies import ClaimBody, ClaimsBody
from workloads.api.compiled import Compiled
from workloads.api.errors import FORBIDDEN
from workloads.api.operations import operation
from workloads.contract import Claim
from workloads.errors import (
    WORKLOAD_ATTEMPTS_EXHAUSTED,
    WORKLOAD_CAPABILITY_DENIED,
    WORKLOAD_NOT_FOUND,
    WORKLOAD_NOT_READY,
    WORKLOAD_TIMED_OUT,
)
from workloads.lifecycle import arguments
from workloads.models import Admitted

LONGEST_WAIT_MS: Final = 30_000
MOST_CLAIMS: Final = 1_000
"""So many claims stand in one answer, however many were asked for."""

_timeouts: Final = Compiled(Admitted, by="workload_id", columns=("workload_id", "timeouts"))


class Claims(Endpoint):
    """POST: claim the next work, waiting for it if asked to."""

    role = Role.WORKER

    @operation("claimNext", ClaimsBody, {200: shapes.Claims}, codes=(FORBIDDEN,))
    def post(self, request: Request) -> Response:
        given = ClaimsBody.read(request.data)
        wait_ms = min(arguments.integer(given.pop("wait_ms", 0), "wait_ms", 0, None), LONGEST_WAIT_MS)
        asking = Asking(user=request.user, auth=request.auth, given=_checked(given))
        return waiting.answer(request, asking.ask, seconds=wait_ms / 1000)


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with their bounds checked, before access is judged: what lies outside it is answered too."""
    arguments.identifier(given["worker_id"], "worker_id")
    given["capabilities"] = arguments.identifiers(given["capabilities"], "capabilities")
    arguments.integer(given["lease_ms"], "lease_ms", 1, conf.limits().max_lease_ms)
    if "limit" in given:
        given["limit"] = min(arguments.limit(given["limit"]), MOST_CLAIMS)
    arguments.definitions(given.get("definitions"))
    for name in ("tenant_id", "application_id", "request_id"):
        if given.get(name) is not None:
            arguments.identifier(given[name], name)
    return given


@dataclass(slots=True)
class Asking:
    """One call of `claims/`, which may be put to the authority again and again while its caller waits."""

    user: Any
    auth: Any
    given: dict[str, Any]
    has_asked: bool = False

    def ask(self) -> waiting.Found | None:
        """Return the claims; None where the names lie outside the caller's access, so that waiting is of no use."""
        if self.has_asked:
            self._check_again()
        self.has_asked = True
        place = Caller.of(self.user).claim_place(self.given.get("tenant_id"), self.given.get("application_id"))
        if place is None:
            return None
        place.check_worker(self.given["worker_id"])
        place.check_capabilities(self.given["capabilities"])
        scope = {
            "tenant_id": place.tenant_id,
            "application_id": self.given.get("application_id") or place.application_id or None,
            "request_id": request_id_in(place.tenant_id, self.given.get("request_id")),
        }
        claims = authority.claim_next_with_context(**(self.given | scope))
        # Whether it was given work or not: who waits for work is working.
        authority.note_worker(
            self.given["worker_id"],
            capabilities=self.given["capabilities"],
            definitions=self.given.get("definitions"),
            tenant_id=place.tenant_id,
            application_id=scope["application_id"],
            is_remote=True,
            has_claimed=bool(claims),
        )
        # Its first use may have been in another place of the tenant.
        mine = (claim for claim in claims if place.covers(claim.tenant_id, claim.application_id))
        definitions = self.given.get("definitions")
        sought = (
            *scope.values(),
            frozenset(self.given["capabilities"]),
            None if definitions is None else frozenset(definitions),
        )
        return waiting.Found(_said(list(mine)), sought)

    def _check_again(self) -> None:
        """Refuse a caller whose token was revoked, or who is a user no longer, while it waited."""
        for said in (self.user, self.auth):
            if hasattr(said, "_meta"):
                # All of them, whatever the site's own manager leaves out.
                model = said._meta.model
                row = model._base_manager.using(router.db_for_write(model)).filter(pk=said.pk).first()
                if row is None or not getattr(row, "is_active", True):
                    raise NotAuthenticated


def _said(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """Return claims with what a worker elsewhere can't look up: how soon each must have a heartbeat."""
    timeouts: dict[str, Any] = dict(_timeouts.read([claim.workload_id for claim in claims]))
    return [answers.claim(c) | {"heartbeat_ms": timeouts[c.workload_id].heartbeat_ms} for c in claims]


class ClaimOne(Endpoint):
    """POST: claim this very workload."""

    role = Role.WORKER

    @operation(
        "claim",
        ClaimBody,
        {200: shapes.Claimed},
        codes=(
            FORBIDDEN,
            WORKLOAD_CAPABILITY_DENIED,
            WORKLOAD_NOT_FOUND,
            WORKLOAD_NOT_READY,
            WORKLOAD_ATTEMPTS_EXHAUSTED,
            WORKLOAD_TIMED_OUT,
        ),
    )
    def post(self, request: Request, workload_id: str) -> Response:
        given = _checked(ClaimBody.read(request.data))
        subject = self.subject(request, workload_id, Role.WORKER)
        subject.check_claim(given["worker_id"], given["capabilities"])
        if subject.places:
            given["request_id"] = request_id_in(subject.places[0].tenant_id, given.get("request_id"))
        (said,) = _said([authority.claim_with_context(seen(subject), **given)])
        # It has asked for this work alone: that says nothing of what else it would take.
        authority.note_worker(
            given["worker_id"],
            tenant_id=subject.tenant_id,
            application_id=subject.application_id,
            is_remote=True,
            has_claimed=True,
        )
        return Response(said)
