"""Grants: signed statements of what a subject may have done for it. Section 4, "A grant"."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from django.core import signing
from django.db import connections

from workloads.authority import clock, records
from workloads.contract import AdmissionRequest
from workloads.errors import WORKLOAD_GRANT_INVALID, WorkloadError, invalid
from workloads.lifecycle import arguments
from workloads.lifecycle.canonical import iso
from workloads.models import Admitted

SALT: Final = "workloads.grant"


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What a grant states."""

    subject: str
    tenant_id: str
    application_id: str
    capabilities: frozenset[str]
    issued_at: dt.datetime
    expires_at: dt.datetime

    def fault_for(self, subject: str, tenant_id: str, application_id: str, capabilities: Iterable[str]) -> str | None:
        """Return in which way it does not cover such work: `scope`, `capabilities`, or None."""
        if (self.subject, self.tenant_id, self.application_id) != (subject, tenant_id, application_id):
            return "scope"
        return None if frozenset(capabilities) <= self.capabilities else "capabilities"

    def holds(self, now: dt.datetime) -> bool:
        """Tell whether it holds at `now`: from its issue until just before its end."""
        return self.issued_at <= now < self.expires_at


@dataclass(frozen=True, kw_only=True, slots=True)
class GrantStanding:
    """How the grant that work was admitted with stands now. What does not verify states nothing: all else is None.

    `holds`: it would hold now. `fault`: what it does not cover of the work, `scope` or `capabilities`.
    """

    verifies: bool
    statement: Statement | None = None
    holds: bool | None = None
    fault: str | None = None


def issue_grant(
    *,
    subject: str,
    tenant_id: str,
    application_id: str,
    capabilities: Iterable[str],
    expires_at: dt.datetime,
    issued_at: dt.datetime | None = None,
) -> str:
    """Return a signed grant: `subject` may have work admitted that needs no more than `capabilities`.

    It holds from `issued_at` (the database's clock if None) until just before `expires_at`. Signed with the site's
    SECRET_KEY; keys rotate with SECRET_KEY_FALLBACKS. WORKLOAD_INVALID names an argument out of bounds, or
    an `expires_at` that is not later than `issued_at`.
    """
    arguments.identifier(subject, "subject")
    arguments.identifier(tenant_id, "tenant_id")
    arguments.identifier(application_id, "application_id")
    covered = arguments.identifiers(capabilities, "capabilities")
    until = arguments.instant(expires_at, "expires_at")
    given = None if issued_at is None else arguments.instant(issued_at, "issued_at")
    since = given or clock.read(connections[records.alias()])
    if since >= until:
        raise invalid("expires_at", "must be later than issued_at")
    statement = {
        "subject": subject,
        "tenant_id": tenant_id,
        "application_id": application_id,
        "capabilities": sorted(covered),
        "issued_at": iso(since),
        "expires_at": iso(until),
    }
    return signing.dumps(statement, salt=SALT, compress=True)


def read_grant(workload_id: str, *, now: dt.datetime | None = None) -> GrantStanding | None:
    """Return how the grant of this work stands: whether its signature still verifies, and what it states.

    None where the work was admitted without one. The grant itself is not part of the answer. It decides nothing: a
    grant is judged once, at admission. An id that names nothing: WORKLOAD_NOT_FOUND.
    """
    given = arguments.now(now)
    using = records.alias()
    names = ("grant", "requested_by", "tenant_id", "application_id", "capability_snapshot")
    found = None
    if records.is_findable(workload_id):
        found = Admitted.objects.using(using).filter(workload_id=workload_id).values_list(*names).first()
    if found is None:
        raise records.not_found()
    grant, *work = found
    if grant is None:
        return None
    statement = _read(grant)
    if statement is None:
        return GrantStanding(verifies=False)
    at = given or clock.read(connections[using])
    return GrantStanding(
        verifies=True, statement=statement, holds=statement.holds(at), fault=statement.fault_for(*work)
    )


def _read(grant: object) -> Statement | None:
    """Return what a grant states; None if no key of the site has signed it as one."""
    try:
        stated: Any = signing.loads(str(grant), salt=SALT)
        return Statement(
            subject=stated["subject"],
            tenant_id=stated["tenant_id"],
            application_id=stated["application_id"],
            capabilities=frozenset(stated["capabilities"]),
            issued_at=dt.datetime.fromisoformat(stated["issued_at"]),
            expires_at=dt.datetime.fromisoformat(stated["expires_at"]),
        )
    except (signing.BadSignature, KeyError, TypeError, ValueError):
        return None


def check_grant(request: AdmissionRequest, now: dt.datetime) -> None:
    """Refuse with WORKLOAD_GRANT_INVALID a request whose grant does not cover it at `now`.

    The grant must verify, hold at `now`, name this requester, tenant and application, and cover the capabilities.
    """
    statement = _read(request.grant)
    if statement is None:
        raise _refusal("It does not verify.", "signature")
    if not statement.holds(now):
        raise _refusal("It does not hold at this time.", "time")
    fault = statement.fault_for(
        request.requested_by, request.tenant_id, request.application_id, request.capability_snapshot
    )
    if fault == "scope":
        raise _refusal("It names another requester, tenant or application.", fault)
    if fault is not None:
        raise _refusal("It does not cover the capabilities asked for.", fault)


def _refusal(message: str, reason: str) -> WorkloadError:
    return WorkloadError(
        WORKLOAD_GRANT_INVALID, f"The grant is not valid for this request. {message}", {"reason": reason}
    )
