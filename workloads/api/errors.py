"""Every error in the one form: a code, a message and details; and which HTTP status each code has."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, Final

from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response

from workloads import errors
from workloads.errors import WorkloadError

logger = logging.getLogger("workloads.api")

UNAUTHENTICATED: Final = "UNAUTHENTICATED"
FORBIDDEN: Final = "FORBIDDEN"
NOT_FOUND: Final = "NOT_FOUND"
METHOD_NOT_ALLOWED: Final = "METHOD_NOT_ALLOWED"
NOT_ACCEPTABLE: Final = "NOT_ACCEPTABLE"
UNSUPPORTED_MEDIA_TYPE: Final = "UNSUPPORTED_MEDIA_TYPE"
THROTTLED: Final = "THROTTLED"
UNAVAILABLE: Final = "UNAVAILABLE"
INTERNAL_ERROR: Final = "INTERNAL_ERROR"

STATUSES: Final[Mapping[str, int]] = {
    errors.WORKLOAD_INVALID: 400,
    UNAUTHENTICATED: 401,
    FORBIDDEN: 403,
    errors.WORKLOAD_GRANT_INVALID: 403,
    errors.WORKLOAD_CAPABILITY_DENIED: 403,
    errors.WORKLOAD_SCOPE_DENIED: 403,
    errors.WORKLOAD_NOT_FOUND: 404,
    NOT_FOUND: 404,
    METHOD_NOT_ALLOWED: 405,
    NOT_ACCEPTABLE: 406,
    UNSUPPORTED_MEDIA_TYPE: 415,
    errors.WORKLOAD_CONFLICT: 409,
    errors.WORKLOAD_NOT_READY: 409,
    errors.WORKLOAD_ATTEMPTS_EXHAUSTED: 409,
    errors.WORKLOAD_CLAIM_INVALID: 409,
    errors.WORKLOAD_STALE_FENCE: 409,
    errors.WORKLOAD_LEASE_EXPIRED: 409,
    errors.WORKLOAD_TRANSITION_DENIED: 409,
    errors.WORKLOAD_TIMED_OUT: 409,
    errors.WORKLOAD_RESULT_CONFLICT: 409,
    errors.WORKLOAD_RESULT_DUPLICATE: 409,
    errors.WORKLOAD_CHECKPOINT_CONFLICT: 409,
    errors.WORKLOAD_TOO_LARGE: 413,
    errors.IDEMPOTENCY_KEY_REUSED: 422,
    errors.IDEMPOTENCY_KEY_RETIRED: 422,
    errors.WORKLOAD_SECRET_MATERIAL: 422,
    THROTTLED: 429,
    INTERNAL_ERROR: 500,
    UNAVAILABLE: 503,
}

RETRY_AFTER_S: Final = 1
"""After how many seconds a caller may look whether the database is back."""

_OF_STATUS: Final[Mapping[int, tuple[str, str]]] = {
    400: (errors.WORKLOAD_INVALID, "The request can't be read."),
    401: (UNAUTHENTICATED, "Who are you? A valid token or session is needed."),
    403: (FORBIDDEN, "This is not yours to do."),
    404: (NOT_FOUND, "There is nothing at this path."),
    405: (METHOD_NOT_ALLOWED, "This path does not take this method."),
    406: (NOT_ACCEPTABLE, "The answer is application/json."),
    413: (errors.WORKLOAD_TOO_LARGE, "The body is too large."),
    415: (UNSUPPORTED_MEDIA_TYPE, "The body must be application/json, in UTF-8."),
    429: (THROTTLED, "Too many requests."),
    500: (INTERNAL_ERROR, "Something went wrong here."),
    503: (UNAVAILABLE, "The database does not answer; the same call may be repeated."),
}


def forbidden(message: str, **details: Any) -> WorkloadError:
    """Return the refusal of what the caller's access does not hold."""
    return WorkloadError(FORBIDDEN, message, details or None)


def body_of(error: WorkloadError) -> dict[str, Any]:
    """Return an error as it stands in an answer or in an outcome of a batch."""
    return {"code": error.code, "message": error.message, "details": error.details}


def status_of(error: WorkloadError) -> int:
    """Return the HTTP status of an error's code."""
    return STATUSES.get(error.code, 500)


def answer(error: Exception, *, challenge: str | None) -> Response:
    """Return the answer to any exception that left a view. What is no refusal is logged, and told to nobody.

    `challenge` is what WWW-Authenticate says to those who have not said who they are.
    """
    refusal = as_refusal(error)
    response = Response(body_of(refusal), status=status_of(refusal))
    if refusal.code == UNAUTHENTICATED and challenge:
        response["WWW-Authenticate"] = challenge
    elif refusal.code == UNAVAILABLE:
        response["Retry-After"] = str(RETRY_AFTER_S)
    elif isinstance(error, exceptions.Throttled):
        response["Retry-After"] = str(max(1, math.ceil(getattr(error, "wait", None) or 1)))
    if response.status_code >= 500:
        logger.error("%s: %s", refusal.code, type(error).__name__, exc_info=refusal.code == INTERNAL_ERROR and error)
    return response


def as_refusal(error: Exception) -> WorkloadError:
    """Return the refusal that an exception is."""
    if isinstance(error, WorkloadError):
        return error
    if isinstance(error, (OperationalError, InterfaceError)):
        return _plain(503)
    if isinstance(error, RequestDataTooBig):
        return _plain(413)
    if isinstance(error, (SuspiciousOperation, BadRequest)):
        return _plain(400)
    if isinstance(error, Http404):
        return _plain(404)
    if isinstance(error, PermissionDenied):
        return _plain(403)
    if isinstance(error, (exceptions.NotAuthenticated, exceptions.AuthenticationFailed)):
        return _plain(401)
    if isinstance(error, exceptions.APIException) and error.status_code in _OF_STATUS:
        return _plain(error.status_code)
    return _plain(500)


def _plain(status: int) -> WorkloadError:
    code, message = _OF_STATUS[status]
    return WorkloadError(code, message)
