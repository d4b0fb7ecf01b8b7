"""Grants: signed statements of what a subject may have done for it. Section 4, "A grant"."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any, Final

from django.core import signing
from django.db import connections

from workloads.authority import clock, records
from workloads.contract import AdmissionRequest
from workloads.errors import WORKLOAD_GRANT_INVALID, WorkloadError, invalid
from workloads.lifecycle import arguments
from workloads.lifecycle.canonical import iso

SALT: Final = "workloads.grant"


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


def check_grant(request: AdmissionRequest, now: dt.datetime) -> None:
    """Refuse with WORKLOAD_GRANT_INVALID a request whose grant does not cover it at `now`.

    The grant must verify, hold at `now`, name this requester, tenant and application, and cover the capabilities.
    """
    try:
        statement: Any = signing.loads(str(request.grant), salt=SALT)
        covered = set(statement["capabilities"])
        since = dt.datetime.fromisoformat(statement["issued_at"])
        until = dt.datetime.fromisoformat(statement["expires_at"])
        names = [statement[name] for name in ("subject", "tenant_id", "application_id")]
    except (signing.BadSignature, KeyError, TypeError, ValueError) as error:
        raise _refusal("It does not verify.", "signature") from error
    if not since <= now < until:
        raise _refusal("It does not hold at this time.", "time")
    if names != [request.requested_by, request.tenant_id, request.application_id]:
        raise _refusal("It names another requester, tenant or application.", "scope")
    if not set(request.capability_snapshot) <= covered:
        raise _refusal("It does not cover the capabilities asked for.", "capabilities")


def _refusal(message: str, reason: str) -> WorkloadError:
    return WorkloadError(
        WORKLOAD_GRANT_INVALID, f"The grant is not valid for this request. {message}", {"reason": reason}
    )
