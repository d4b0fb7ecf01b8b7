"""The way of every request: who asks, may it ask again so soon, what does it ask; and the one form of every error."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import DataError, connections, transaction
from rest_framework import exceptions
from rest_framework.permissions import SAFE_METHODS, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.throttling import ScopedRateThrottle
from rest_framework.views import APIView

from workloads.api import errors
from workloads.api.access import Caller, Role, Subject
from workloads.api.liveness import trust_those_in_use
from workloads.api.openapi import OperationSchema
from workloads.api.shapes import shown
from workloads.api.wire import ExactJSONRenderer, JSONAlone, StrictJSONParser, check_body
from workloads.errors import WORKLOAD_INVALID, WorkloadError, invalid


class RoleThrottle(ScopedRateThrottle):
    """Counts the calls of each user by role. A site that names no rate for `workloads.<role>` has no throttle."""

    def get_rate(self) -> str | None:
        rate = api_settings.DEFAULT_THROTTLE_RATES.get(str(self.scope))
        return None if rate is None else str(rate)


class Endpoint(APIView):
    """One path of the interface. Only JSON, only for those who have said who they are, outside ATOMIC_REQUESTS."""

    parser_classes = (StrictJSONParser,)
    renderer_classes = (ExactJSONRenderer,)
    content_negotiation_class = JSONAlone
    permission_classes: Any = (IsAuthenticated,)
    throttle_classes: Any = (RoleThrottle,)
    versioning_class = None
    metadata_class = None
    schema: Any = OperationSchema()

    role: ClassVar[Role] = Role.VIEWER
    parameters: ClassVar[frozenset[str]] = frozenset()
    """The query parameters that reading this path knows. Any other is refused."""
    repeatable: ClassVar[frozenset[str]] = frozenset()
    """Those of them that may be given more than once."""

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        # A time-out that a refused call records must stay recorded (section 1, "Transactions").
        # Whichever database it is that a router gives for workloads.
        view = super().as_view(**initkwargs)
        for alias in connections:
            view = transaction.non_atomic_requests(using=alias)(view)
        return view

    @property
    def throttle_scope(self) -> str:
        """What the site's DEFAULT_THROTTLE_RATES calls the rate of this path: a viewer's, where it is read."""
        return f"workloads.{Role.VIEWER if self.request.method in SAFE_METHODS else self.role}"

    def http_method_not_allowed(self, request: Any, *args: Any, **kwargs: Any) -> Response:
        raise exceptions.MethodNotAllowed(str(request.method))

    def options(self, request: Any, *args: Any, **kwargs: Any) -> Response:
        """Say which methods there are."""
        return Response(status=204, headers={"Allow": ", ".join(self.allowed_methods)})

    def perform_authentication(self, request: Request) -> None:
        trust_those_in_use()
        try:
            super().perform_authentication(request)
        except (ValueError, DataError) as error:
            # A credential that can't be decoded, or that no database can look for, is none.
            raise exceptions.AuthenticationFailed from error

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        method = str(request._request.method)
        if method not in self.allowed_methods:
            # Before its parameters and its body are judged: it has none.
            raise exceptions.MethodNotAllowed(method)
        if request._request.META.get("QUERY_STRING"):
            self._check_query(request)
        if method == "POST":
            check_body(request)

    def _check_query(self, request: Request) -> None:
        known = self.parameters if request.method in ("GET", "HEAD") else frozenset()
        unknown = sorted(set(request.query_params) - known)
        if unknown:
            raise WorkloadError(
                WORKLOAD_INVALID,
                "The query has parameters that are not known.",
                {"fields": [shown(n) for n in unknown]},
            )
        for name in request.query_params:
            if name not in self.repeatable and len(request.query_params.getlist(name)) > 1:
                raise invalid(name, "is given twice")

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Response:
        # Whatever the caller's language: LocaleMiddleware would name that one.
        response.headers.setdefault("Content-Language", "en")
        return super().finalize_response(request, response, *args, **kwargs)

    def handle_exception(self, exc: Exception) -> Response:
        """Return the answer to whatever went wrong."""
        response = errors.answer(exc, challenge=self._challenge())
        response.exception = True
        return response

    def _challenge(self) -> str | None:
        request = self.request
        headers = (authenticator.authenticate_header(request) for authenticator in self.get_authenticators())
        return next((header for header in headers if header), "Bearer")

    def caller(self, request: Request) -> Caller:
        """Return who asks, with its access as it is now."""
        return Caller.of(request.user)

    def subject(self, request: Request, workload_id: str, *roles: Role) -> Subject:
        """Return the workload as the caller sees it: FORBIDDEN if it is seen, but in none of these roles."""
        subject = self.caller(request).find(workload_id)
        subject.demand(*roles)
        return subject


def seen(subject: Subject) -> str:
    """Return the id to put to the authority: one that names nothing, where the caller sees nothing.

    So what is unseen is refused by the very same path as what does not exist, arguments first.
    """
    return subject.workload_id if subject.places else ""


class NoSuchPath(Endpoint):
    """Every other path below this interface."""

    permission_classes = ()
    authentication_classes = ()
    throttle_classes = ()
    schema = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        raise exceptions.NotFound
