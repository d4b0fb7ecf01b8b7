"""The pages of tokens, which programs prove themselves with: django-rest-knox's, where the site has it.

A token opens what its user's Access opens. It is shown on the answer to the form that makes it, and nowhere else: not
in a message, a session, an address or a log. Its hash alone is kept, and its first characters, by which it is found.
"""

from __future__ import annotations

import datetime as dt
import importlib
import secrets
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from django import forms
from django.apps import apps
from django.contrib import admin, messages
from django.contrib.auth import get_permission_codename, get_user_model
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import router, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.translation import gettext as _, gettext_lazy
from django.views.decorators.debug import sensitive_variables

from workloads.admin.display import instant
from workloads.models import Access

A_PAGE: Final = 100
MOST_DAYS: Final = 3650
SUGGESTED: Final = 100
SHOWN_CHARS: Final = 8
NAME_CHARS: Final = 24
"""Of a hash of the token, which its page's address holds: enough to be one token's alone, and no part of it."""
FORM_KEY: Final = "workloads_token_form"


def token_model() -> Any:
    """Return the model that tokens are rows of; None where the site has none."""
    if not apps.is_installed("knox"):
        return None
    from knox.models import get_token_model

    return get_token_model()


def replace_knoxs_page(site: admin.AdminSite) -> None:
    """Take knox's own page off: it puts a new token into a message, which is stored, and lets rows be changed."""
    if not apps.is_installed("knox"):
        return
    # Imported now, it registers now, and not again when its turn comes.
    theirs = importlib.import_module("knox.admin")
    model = token_model()
    if site.is_registered(model) and type(site.get_model_admin(model)) is theirs.AuthTokenAdmin:
        site.unregister(model)


replace_knoxs_page(admin.site)


class TokenForm(forms.Form):
    """Whom a token is for, and how long it holds."""

    user = forms.CharField(
        label=gettext_lazy("User"),
        max_length=254,
        help_text=gettext_lazy(
            "The name with which it logs in. It needs access first: the token opens what its access opens, no more."
        ),
        widget=forms.TextInput(attrs={"class": "vTextField", "list": "workloads-users", "autocomplete": "off"}),
    )
    days = forms.IntegerField(
        label=gettext_lazy("Days"),
        min_value=1,
        max_value=MOST_DAYS,
        initial=90,
        help_text=gettext_lazy("How long it holds. After that it is refused, and a new one is needed."),
    )

    def __init__(self, *args: Any, issuer: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.issuer = issuer
        for name in ("user", "days"):
            self.fields[name].widget.attrs["aria-describedby"] = f"id_{name}_helptext"

    def clean_user(self) -> Any:
        """Return the user. Refused: nobody's name, nobody's access, and more rights than the issuer's own."""
        users = get_user_model()
        user = users._default_manager.filter(**{users.USERNAME_FIELD: self.cleaned_data["user"]}).first()
        if user is None or not user.is_active:
            raise ValidationError(_("There is no active user of this name."))
        if not Access.objects.filter(user=user).exists():
            raise ValidationError(_("This user has no access yet, so that a token would open nothing."))
        # Elsewhere in a site, a token may open all that its user may do.
        if user.is_superuser and not self.issuer.is_superuser:
            raise ValidationError(_("Only a superuser issues a superuser's token."))
        return user


def _with_right(verb: str) -> Callable[[Callable[..., HttpResponse]], Callable[..., HttpResponse]]:
    """Return a decorator that lets those in who may do this to tokens."""

    def decorate(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @wraps(view)
        def guarded(self: TokenPages, request: HttpRequest, **kwargs: Any) -> HttpResponse:
            if not self.may(request, verb):
                raise PermissionDenied
            return view(self, request, **kwargs)

        return guarded

    return decorate


class TokenPages(admin.ModelAdmin):
    """The list of tokens, the page that issues one, and the one that revokes one. Who may is said by knox's rights."""

    def may(self, request: HttpRequest, verb: str) -> bool:
        """Whether whoever asks has the site's right to view, add or delete tokens."""
        model = token_model()
        if model is None:
            return False
        return request.user.has_perm(f"{model._meta.app_label}.{get_permission_codename(verb, model._meta)}")

    def get_urls(self) -> list[Any]:
        if token_model() is None:
            return super().get_urls()
        view = self.admin_site.admin_view
        return [
            path("tokens/", view(self.tokens_view), name="workloads_tokens"),
            path("tokens/issue/", view(self.issue_view), name="workloads_tokens_issue"),
            path("tokens/<str:name>/revoke/", view(self.revoke_view), name="workloads_tokens_revoke"),
            *super().get_urls(),
        ]

    def tokens_url(self, request: HttpRequest, user: Any = None) -> str | None:
        """Return the address of the list, or of a user's part of it; None for those who may not see it."""
        if not self.may(request, "view"):
            return None
        return reverse("admin:workloads_tokens") + _query(user)

    @_with_right("view")
    def tokens_view(self, request: HttpRequest) -> HttpResponse:
        """Show which tokens there are, the newest first."""
        rows = token_model().objects.select_related("user").order_by("-created", "pk")
        user = _user_of(request.GET.get("user", ""))
        if request.GET.get("user"):
            rows = rows.filter(user=user) if user else rows.none()
        number = _number(request.GET.get("page", ""))
        found = list(rows[number * A_PAGE : (number + 1) * A_PAGE + 1])
        may_revoke, may_issue = self.may(request, "delete"), self.may(request, "add")
        context = {
            "title": _("Tokens"),
            "of_user": user,
            "tokens": [_told(token, may_revoke=may_revoke) for token in found[:A_PAGE]],
            "issue_url": reverse("admin:workloads_tokens_issue") + _query(user) if may_issue else None,
            "all_url": reverse("admin:workloads_tokens"),
            "newer_url": reverse("admin:workloads_tokens") + _query(user, number - 1) if number else None,
            "older_url": reverse("admin:workloads_tokens") + _query(user, number + 1) if len(found) > A_PAGE else None,
        }
        return self._render(request, "tokens", context)

    @_with_right("add")
    @sensitive_variables("secret", "context")
    def issue_view(self, request: HttpRequest) -> HttpResponse:
        """Ask whom a token is for; then make it, and show it this once."""
        context: dict[str, Any] = {"title": _("Issue a token"), "list_url": self.tokens_url(request)}
        is_sent = request.method == "POST"
        user = _user_of(request.GET.get("user", ""))
        form = TokenForm(
            request.POST if is_sent else None,
            initial={"user": user.get_username()} if user else None,
            issuer=request.user,
        )
        if is_sent and not _is_first(request):
            # A page that is loaded anew sends its form again, and would leave a token that nobody has seen.
            context["was_used"] = True
        elif is_sent and form.is_valid():
            secret = self._issue(request, form.cleaned_data["user"], form.cleaned_data["days"], context)
            return self._render(request, "token_once", {**context, "secret": secret, "title": _("The new token")})
        request.session[FORM_KEY] = context["once"] = secrets.token_urlsafe(16)
        return self._render(request, "token_issue", {**context, "form": form, "users": _suggested()})

    @sensitive_variables("secret")
    def _issue(self, request: HttpRequest, user: Any, days: int, context: dict[str, Any]) -> str:
        with _one_transaction():
            row, secret = token_model().objects.create(user, expiry=dt.timedelta(days=days))
            self.log_change(request, user, _("A token was issued that begins with %s.") % _begins(row))
        context |= {"user_name": user.get_username(), "until": instant(row.expiry), "begins": _begins(row)}
        return str(secret)

    @_with_right("delete")
    def revoke_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """Ask whether to revoke a token; then do it."""
        rows = token_model().objects.select_related("user").filter(pk__startswith=name)
        found = list(rows[:2]) if len(name) == NAME_CHARS else []
        if len(found) != 1:
            raise Http404(_("There is no such token. It may have been revoked."))
        row = found[0]
        if request.method != "POST":
            context = {"title": _("Revoke a token"), "row": _told(row), "list_url": self.tokens_url(request)}
            return self._render(request, "token_revoke", context)
        with _one_transaction():
            row.delete()
            self.log_change(request, row.user, _("A token was revoked that began with %s.") % _begins(row))
        said = _("The token of %(user)s that began with %(start)s was revoked.")
        self.message_user(request, said % {"user": row.user, "start": _begins(row)}, messages.SUCCESS)
        back = self.tokens_url(request) or reverse("admin:index")
        return HttpResponseRedirect(back)

    def _render(self, request: HttpRequest, template: str, context: dict[str, Any]) -> TemplateResponse:
        base = self.admin_site.each_context(request) | {"opts": self.opts, "media": self.media}
        request.current_app = self.admin_site.name
        return TemplateResponse(request, f"admin/workloads/access/{template}.html", base | context)


def _one_transaction() -> Any:
    """Return a transaction in which a token and the note of who made or revoked it appear together."""
    return transaction.atomic(using=router.db_for_write(token_model()))


def _is_first(request: HttpRequest) -> bool:
    """Whether the form is the one that was last shown, and was not sent before."""
    expected = request.session.pop(FORM_KEY, None)
    return expected is not None and secrets.compare_digest(expected.encode(), request.POST.get("once", "").encode())


def _user_of(key: str) -> Any:
    """Return the user of this key, None if it names none."""
    users = get_user_model()
    try:
        return users._default_manager.filter(pk=key).first() if key else None
    except (ValueError, ValidationError, OverflowError):
        return None


def _number(text: str) -> int:
    """Return which page is asked for, from 0."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0


def _query(user: Any, page: int = 0) -> str:
    """Return what follows an address's path."""
    parts = [f"user={user.pk}"] if user else []
    parts += [f"page={page}"] if page else []
    return f"?{'&'.join(parts)}" if parts else ""


def _suggested() -> list[str]:
    """Return the names of users who have access, the first hundred."""
    users = get_user_model()
    rows = users._default_manager.filter(workload_access__isnull=False, is_active=True)
    names = rows.order_by(users.USERNAME_FIELD).values_list(users.USERNAME_FIELD, flat=True)
    return list(names.distinct()[:SUGGESTED])


def _begins(token: Any) -> str:
    return f"{token.token_key[:SHOWN_CHARS]}…"


def _told(token: Any, *, may_revoke: bool = False) -> dict[str, Any]:
    """Return what a page says of a token: nothing by which it could be used."""
    return {
        "begins": _begins(token),
        "user": token.user.get_username(),
        "user_key": token.user.pk,
        "made": instant(token.created),
        "until": instant(token.expiry) if token.expiry else _("for ever"),
        "is_over": token.expiry is not None and token.expiry <= timezone.now(),
        "revoke_url": reverse("admin:workloads_tokens_revoke", args=[token.pk[:NAME_CHARS]]) if may_revoke else None,
    }
