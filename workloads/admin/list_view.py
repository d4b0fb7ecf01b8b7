"""The list of workloads: which columns, in which order, found how."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _, gettext_lazy

from workloads.admin import page
from workloads.admin.base import ReadingAdmin
from workloads.admin.display import NOTHING, relative, short, word
from workloads.admin.listing import CappedPaginator, StateFilter, WorkloadList, search
from workloads.contract import WorkloadState
from workloads.models import Workload

SHOWN_CHARS: Final = 17


class ListOfWorkloads(ReadingAdmin):
    """The list's part of the admin of workloads."""

    list_display = ("state_word", "identity", "place", "age", "next_attempt", "used", "failure")
    list_display_links = ("identity",)
    list_filter = (StateFilter,)
    list_per_page = 100
    list_max_show_all = 100
    ordering = ("-pk",)
    # Another order would sort everything: no index serves it.
    sortable_by = ()
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    search_fields = ("workload_id", "idempotency_key")
    search_help_text = gettext_lazy("A workload's id, or an idempotency key, in full.")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[WorkloadList]:
        return WorkloadList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        # Else an address could ask for a search through all payloads.
        return lookup == StateFilter.parameter_name

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return search(queryset, search_term), False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, {"title": _("Workloads"), **(extra_context or {})})

    @admin.display(description=gettext_lazy("state"))
    def state_word(self, workload: Workload) -> str:
        return word(workload.state)

    @admin.display(description=gettext_lazy("workload"))
    def identity(self, workload: Workload) -> str:
        definition = f"{workload.definition_id}@{workload.definition_revision}"
        return format_html(
            '{}<br><code class="workloads-code" title="{}">{}…</code>',
            definition,
            workload.workload_id,
            workload.workload_id[:SHOWN_CHARS],
        )

    @admin.display(description=gettext_lazy("tenant, application"))
    def place(self, workload: Workload) -> str:
        return format_html("{}<br>{}", workload.tenant_id, workload.application_id)

    @admin.display(description=gettext_lazy("admitted"))
    def age(self, workload: Workload) -> str:
        return relative(workload.created_at, timezone.now(), 1)

    @admin.display(description=gettext_lazy("next attempt"))
    def next_attempt(self, workload: Workload) -> str:
        if workload.state != WorkloadState.READY or workload.next_attempt_at is None:
            return NOTHING
        if workload.dependency_standing != "met":
            return _("waits for other work")
        now = timezone.now()
        due = relative(workload.next_attempt_at, now, 1)
        return due if workload.next_attempt_at > now else format_html(_("due {}"), due)

    @admin.display(description=gettext_lazy("attempts"))
    def used(self, workload: Workload) -> str:
        return page.budget(workload)

    @admin.display(description=gettext_lazy("last failure"))
    def failure(self, workload: Any) -> str:
        return short(workload.failure_head or NOTHING, 80)
