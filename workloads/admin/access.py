"""Who may do what over HTTP, as the site's staff sets it."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from workloads.errors import WorkloadError
from workloads.lifecycle import arguments
from workloads.models import Access

_NAMES = ("tenant_id", "application_id", "worker_prefix")


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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in _NAMES:
            # Names are compared byte for byte: what is typed is refused or kept, and never mended.
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


@admin.register(Access)
class AccessAdmin(admin.ModelAdmin):
    """Access rows: without one, a user may do nothing over HTTP."""

    form = AccessForm
    list_display = ("user", "tenant_id", "application", "roles", "worker_prefix", "reads_payloads")
    list_filter = ("is_requester", "is_worker", "is_operator", "is_viewer")
    list_select_related = ("user",)
    search_fields = ("tenant_id", "application_id", "worker_prefix")
    raw_id_fields = ("user",)

    @admin.display(description=_("application"), ordering="application_id")
    def application(self, row: Access) -> str:
        return row.application_id or str(_("all"))

    @admin.display(description=_("roles"))
    def roles(self, row: Access) -> str:
        return ", ".join(row.roles()) or "–"
