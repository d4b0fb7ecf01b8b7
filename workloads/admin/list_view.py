"""The list of workloads: its columns, and what stands around them."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _, gettext_lazy

from workloads.admin.base import ReadingAdmin
from workloads.admin.display import NOTHING, relative, short, word
from workloads.admin.filters import Filters, paging
from workloads.admin.listing import Row, WorkloadList
from workloads.contract import WorkloadState

SHOWN_CHARS: Final = 17
FAILURE_CHARS: Final = 80


class ListOfWorkloads(ReadingAdmin):
    """The list's part of the admin of workloads. `criteria` says which it holds, `finding` how they are found."""

    list_display = ("state_word", "identity", "place", "age", "next_attempt", "attempts", "failure")
    list_display_links = ("identity",)
    # Another order would sort everything: no index serves it.
    sortable_by = ()
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER

    @property
    def media(self) -> forms.Media:
        return super().media + forms.Media(css={"all": ["workloads/list.css"]}, js=["workloads/list.js"])

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[WorkloadList]:
        return WorkloadList

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        context = {"title": _("Workloads"), "selection_note_all": _("All that match are selected."), "subtitle": None}
        response = super().changelist_view(request, context | (extra_context or {}))
        # What an action answers is not the list.
        shown = getattr(response, "context_data", None) or {}
        if isinstance(found := shown.get("cl"), WorkloadList):
            filters = Filters(found.criteria, found.result_list, request)
            shown.update({"filters": filters, "paging": paging(found.criteria, found.page)})
        return response

    @admin.display(description=gettext_lazy("state"))
    def state_word(self, row: Row) -> str:
        faults = format_html_join("", '<span class="workloads-fault">{}</span>', ([fault] for fault in row.faults))
        return format_html("{}{}", word(row.state or _("unknown")), faults)

    @admin.display(description=gettext_lazy("workload"))
    def identity(self, row: Row) -> str:
        name = str(row)
        head = name if len(name) <= SHOWN_CHARS else f"{name[:SHOWN_CHARS]}…"
        identifier = format_html('<code class="workloads-code" dir="ltr" title="{}">{}</code>', name, head)
        if not row.admitted:
            return identifier
        return format_html("{} {}", _name("{definition_id}@{definition_revision}".format_map(row.admitted)), identifier)

    @admin.display(description=gettext_lazy("tenant, application"))
    def place(self, row: Row) -> str:
        if not row.admitted:
            return NOTHING
        names = (row.admitted["tenant_id"], row.admitted["application_id"])
        return _cell(_("Where"), format_html_join(" ", "{}", ([_name(name)] for name in names)))

    @admin.display(description=gettext_lazy("admitted"))
    def age(self, row: Row) -> str:
        created_at = row.admitted.get("created_at")
        return _cell(_("Admitted"), NOTHING if created_at is None else relative(created_at, timezone.now(), 1))

    @admin.display(description=gettext_lazy("next attempt"))
    def next_attempt(self, row: Row) -> str:
        at = row.standing.get("next_attempt_at")
        if row.state != WorkloadState.READY or at is None:
            return NOTHING
        return _cell(_("Next attempt"), self._next(row, at))

    def _next(self, row: Row, at: dt.datetime) -> str:
        if row.standing.get("dependency_standing") != "met":
            return _("waits for other work")
        now = timezone.now()
        due = relative(at, now, 1)
        return due if at > now else format_html(_("due {}"), due)

    @admin.display(description=gettext_lazy("attempts"))
    def attempts(self, row: Row) -> str:
        used, budget = row.used, row.budget
        said = {"used": "?" if used is None else used, "budget": "?" if budget is None else budget}
        return _cell(_("Attempts"), _("%(used)s of %(budget)s") % said)

    @admin.display(description=gettext_lazy("last failure"))
    def failure(self, row: Row) -> str:
        head = str(row.standing.get("failure_head") or "")
        return _cell(_("Last failure"), short(head, FAILURE_CHARS)) if head else NOTHING


def _name(text: str) -> str:
    """Return a name, of which a few lines show; all of it on hovering."""
    return format_html('<span class="workloads-name" dir="auto" title="{}">{}</span>', text, text)


def _cell(label: str, value: Any) -> str:
    """Return a value with the label that stands before it where there is no room for columns."""
    return format_html(
        '<span class="workloads-label" aria-hidden="true">{}</span> <span class="workloads-value" dir="auto">{}</span>',
        label,
        value,
    )
