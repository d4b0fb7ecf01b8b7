"""What the site lets its pages load and run: files of its own, and nothing else."""

from __future__ import annotations

from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

HEADER: Final = "Content-Security-Policy"
# No code, style or event stands in a page itself.
STRICT: Final = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
# Swagger's page begins with a script in the page itself, and draws with styles and images of that kind.
OF_THE_API_DOCS: Final = (
    f"{STRICT}; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
)


class ContentSecurityPolicy(MiddlewareMixin):
    """Says it in each answer that does not say something else itself."""

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        # Django's own page of an error, which only developers see, is all inline.
        if not (settings.DEBUG and response.status_code >= 400):
            is_docs = request.resolver_match is not None and request.resolver_match.view_name == "workloads:docs"
            response.headers.setdefault(HEADER, OF_THE_API_DOCS if is_docs else STRICT)
        return response
