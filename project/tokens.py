"""Who asks, by a token of django-rest-knox: read together with its user and that user's access, in one query."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import knox.auth
from django.contrib.auth import get_user_model
from django.utils import timezone
from drf_spectacular.contrib.knox_auth_token import KnoxTokenScheme
from knox.crypto import hash_token
from knox.models import get_token_model
from knox.settings import knox_settings
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request

from workloads.api.access import ACCESS, bring
from workloads.api.compiled import Compiled

_USER: Final = "user__"
_ACCESS: Final = "user__workload_access__"


class TokenAuthentication(knox.auth.TokenAuthentication):
    """Knox's own authentication, which for a call that changes something takes one query instead of three.

    The token is looked for by its digest, as it is at this moment: one that was revoked is not there. Whatever is not
    plainly in order (a token that is unknown or over, a user who is inactive) is left to knox, and so is a call that
    reads: there knox clears away the user's other tokens that are over.
    """

    def authenticate(self, request: Request) -> Any:
        if request.method not in SAFE_METHODS and not knox_settings.AUTO_REFRESH:
            scheme, *text = request.META.get("HTTP_AUTHORIZATION", "").split()[:3] or ("",)
            if len(text) == 1 and scheme.lower() == self.authenticate_header(request).lower():
                found = _find(text[0])
                if found is not None:
                    return found
        return super().authenticate(request)


class TokenScheme(KnoxTokenScheme):
    """What the OpenAPI schema says of it: the same as of knox's own."""

    target_class = "project.tokens.TokenAuthentication"


def _find(text: str) -> tuple[Any, Any] | None:
    """Return the user and the token that this text is, the user's access left with it; None unless all is in order."""
    query, token_fields, user_fields = _question()
    rows = query.read([hash_token(text)])
    if not rows:
        return None
    first, begin = rows[0], len(token_fields)
    end = begin + len(user_fields)
    token = get_token_model().from_db("default", token_fields, first[:begin])
    user = get_user_model().from_db("default", user_fields, first[begin:end])
    if not user.is_active or (token.expiry is not None and token.expiry < timezone.now()):
        return None
    token.user = user
    # A user without access has one row, of nothing.
    bring(user, [row[end:] for row in rows if row[end] is not None])
    return user, token


@cache
def _question() -> tuple[Compiled, list[str], list[str]]:
    token_fields = [field.attname for field in get_token_model()._meta.concrete_fields]
    user_fields = [field.attname for field in get_user_model()._meta.concrete_fields]
    columns = (*token_fields, *(_USER + name for name in user_fields), *(_ACCESS + name for name in ACCESS))
    return Compiled(get_token_model(), by="digest", columns=columns), token_fields, user_fields
