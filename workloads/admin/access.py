"""Who may do what over HTTP, as the site's staff sets it."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import label_for_field
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from workloads.admin import token_pages, zones
from workloads.admin.display import NOTHING, code, listed
from workloads.errors import WorkloadError
from workloads.lifecycle import arguments
from workloads.models import Access
from workloads.models.access import ROLES

_NAMES: Final = ("tenant_id", "application_id", "worker_prefix")
SHOWN_CAPABILITIES: Final = 5


class AccessForm(forms.ModelForm):
    """One Access row; capabilities stand one on a line."""

    capabilities = forms.CharField(
        label=_("Capabilities"),
        required=False,
        widget=forms.Textarea(attrs={"rows": 4, "class": "vLargeTextField"}),
        help_text=_("One on a line: the most that a worker may present, and that a requester may ask for."),
    )

    class Meta:
        model = Access
        fields = (
            "user",
            "tenant_id",
            "application_id",
            "is_requester",
            "is_worker",
            "is_operator",
            "is_viewer",
            "reads_payloads",
            "capabilities",
            "worker_prefix",
        )
        help_texts = {
            "is_requester": _(
                "May admit work, and read and cancel what it admitted, payloads included. By this alone, it sees no "
                "work of others."
            ),
            "is_worker": _(
                "May see all work of this place without its payloads, claim it with its input, and make every call "
                "with a fence on what it holds: start, heartbeat, checkpoint, complete, fail and release. It may not "
                "admit, cancel or re-arm."
            ),
            "is_operator": _(
                "May read all work of this place, payloads included, ask why it does not run, see the figures, and "
                "cancel, re-arm and time out. It may not admit or claim."
            ),
            "is_viewer": _(
                "May read all work of this place, ask why it does not run, and see the figures. It changes nothing, "
                "and reads payloads only where the next box is ticked."
            ),
            "worker_prefix": _(
                "What every worker id of this user must begin with. No two users' prefixes in one place may begin with "
                "one another, so that no worker can use another's fence."
            ),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in _NAMES:
            # Names are compared byte for byte: what is typed is refused or kept, and never mended.
            if name in self.fields:
                self.fields[name].strip = False  # type: ignore[attr-defined]  # a CharField, by the model
        if self.instance.pk:
            self.initial["capabilities"] = "\n".join(sorted(self.instance.capabilities))

    def clean_capabilities(self) -> frozenset[str]:
        """Return the set that the lines are."""
        lines = self.cleaned_data["capabilities"].splitlines()
        try:
            return arguments.identifiers([line.strip() for line in lines if line.strip()], "capabilities")
        except WorkloadError as refusal:
            raise ValidationError(refusal.message) from refusal

    def clean(self) -> dict[str, Any]:
        """Refuse names that no work can have."""
        cleaned = super().clean() or {}
        for name in _NAMES:
            if cleaned.get(name):
                try:
                    arguments.identifier(cleaned[name], name)
                except WorkloadError as refusal:
                    self.add_error(name, refusal.message)
        return cleaned


def role_name(role: str) -> str:
    """Return what people call a role."""
    return str(label_for_field(f"is_{role}", Access))


class RoleFilter(admin.SimpleListFilter):
    """Narrows the list to those who have a role."""

    title = _("role")
    parameter_name = "role"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(role, role_name(role)) for role in ROLES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        role = self.value()
        return queryset.filter(**{f"is_{role}": True}) if role in ROLES else queryset


@admin.register(Access)
class AccessAdmin(token_pages.TokenPages, zones.InZone, admin.ModelAdmin):
    """Access rows: without one, a user may do nothing over HTTP. The pages of tokens stand below them."""

    form = AccessForm
    change_list_template = "admin/workloads/access/change_list.html"
    change_form_template = "admin/workloads/access/change_form.html"
    list_display = ("user", "place", "roles", "shown_capabilities", "prefix", "payloads")
    sortable_by = ("user", "place")
    list_filter = (RoleFilter,)
    show_facets = admin.ShowFacets.NEVER
    list_select_related = ("user",)
    search_fields = ("tenant_id", "application_id", "worker_prefix")
    raw_id_fields = ("user",)
    fieldsets = (
        (
            _("Who and where"),
            {
                "fields": ("user", "tenant_id", "application_id"),
                "description": _(
                    "A row lets one user do something over HTTP in one application of a tenant, or in all of them. "
                    "Without a row a user may do nothing there. What staff may do in this admin is set by permissions "
                    "instead."
                ),
            },
        ),
        (
            _("What it may do"),
            {"fields": ("is_requester", "is_worker", "is_operator", "is_viewer", "reads_payloads")},
        ),
        (_("Its limits as a worker or requester"), {"fields": ("capabilities", "worker_prefix")}),
    )

    class Media:
        css = {"all": ("workloads/admin.css", "workloads/tokens.css")}

    def get_urls(self) -> list[Any]:
        chosen = path("zone/", self.admin_site.admin_view(zones.choose), name="workloads_zone")
        return [chosen, *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        said = {"title": _("Access over HTTP"), "tokens_url": self.tokens_url(request)}
        return super().changelist_view(request, {**said, **(extra_context or {})})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        row = self.get_object(request, object_id)
        said = {"tokens_url": self.tokens_url(request, row.user)} if row is not None else {}
        return super().change_view(request, object_id, form_url, {**said, **(extra_context or {})})

    @admin.display(description=_("tenant, application"), ordering="tenant_id")
    def place(self, row: Access) -> str:
        return format_html("{}<br>{}", row.tenant_id, row.application_id or _("all applications"))

    @admin.display(description=_("roles"))
    def roles(self, row: Access) -> str:
        return ", ".join(map(role_name, row.roles())) or NOTHING

    @admin.display(description=_("capabilities"))
    def shown_capabilities(self, row: Access) -> str:
        return listed(row.capabilities, SHOWN_CAPABILITIES)

    @admin.display(description=_("worker prefix"), ordering="worker_prefix")
    def prefix(self, row: Access) -> str:
        return code(row.worker_prefix) if row.worker_prefix else NOTHING

    @admin.display(description=_("reads payloads"))
    def payloads(self, row: Access) -> str:
        if row.is_operator or (row.is_viewer and row.reads_payloads):
            return str(_("of all work"))
        if row.is_requester:
            return str(_("of its own work"))
        return str(_("of what it claims") if row.is_worker else _("no"))
