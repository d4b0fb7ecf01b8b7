"""What Django does for pages and their sessions, left out for calls that have no use of it.

A program that posts to the HTTP interface says who it is by a token: it has no session, is told no messages, and is
answered in one language. What its answers say in their headers is what they would say otherwise.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.messages.middleware import MessageMiddleware
from django.contrib.sessions.middleware import SessionMiddleware
from django.http import HttpRequest, HttpResponseBase
from django.middleware.locale import LocaleMiddleware
from django.utils import translation
from django.utils.cache import patch_vary_headers

PREFIX = "/api/"
SCHEME = "bearer "


def is_by_token(request: HttpRequest) -> bool:
    """Tell whether a request is a call that its token alone speaks for: with one, no session is looked at."""
    return (
        request.method == "POST"
        and request.path_info.startswith(PREFIX)
        and request.META.get("HTTP_AUTHORIZATION", "")[: len(SCHEME)].lower() == SCHEME
    )


class _OfPages:
    """Goes straight on with calls by token."""

    get_response: Any

    def __call__(self, request: HttpRequest) -> Any:
        if is_by_token(request):
            return self.get_response(request)
        # What stands behind it is a middleware of Django's, which a checker can't know.
        return super().__call__(request)  # type: ignore[misc]


class Sessions(_OfPages, SessionMiddleware):
    """Django's sessions."""


class Users(_OfPages, AuthenticationMiddleware):
    """Django's `request.user`, by the session."""


class Messages(_OfPages, MessageMiddleware):
    """Django's messages."""


class Languages(LocaleMiddleware):
    """Django's choice of a page's language. Calls by token are answered in the site's own."""

    def process_request(self, request: HttpRequest) -> None:
        if is_by_token(request):
            translation.activate(settings.LANGUAGE_CODE)
        else:
            super().process_request(request)

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if not is_by_token(request):
            return super().process_response(request, response)
        patch_vary_headers(response, ("Accept-Language",))
        response.headers.setdefault("Content-Language", settings.LANGUAGE_CODE)
        return response
