"""The admin of workloads: a list and a page that read, and the one thing that they let an operator do, re-arm."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from workloads.admin import page, rearming
from workloads.admin.display import NOTHING, pretty, relative, short, word
from workloads.admin.listing import CappedPaginator, StateFilter, WorkloadList, search
from workloads.contract import WorkloadState
from workloads.lifecycle import arguments
from workloads.lifecycle.states import PARKED
from workloads.models import Workload

MOST_MESSAGES: Final = 20
SHOWN_CHARS: Final = 17
FILTERS: Final = "_changelist_filters"


@admin.register(Workload)
class WorkloadAdmin(admin.ModelAdmin):
    """Nothing is added, changed or deleted here. Re-arming needs the permission `workloads.rearm_workload`."""

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
    actions = ("rearm",)

    class Media:
        css = {"all": ("workloads/admin.css",)}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("workloads.view_workload")

    def has_rearm_permission(self, request: HttpRequest) -> bool:
        """Whether this operator may re-arm: the right of its own, and that to look."""
        return self.has_view_permission(request) and request.user.has_perm("workloads.rearm_workload")

    # The list

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

    # The page

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the workload by its key or by its workload id; None where there is none."""
        rows = self.get_queryset(request).defer("grant")
        if object_id.startswith("workload_"):
            if not arguments.is_identifier(object_id):
                return None
            return rows.filter(workload_id=object_id).first()
        keys = rearming.parse_keys([object_id])
        return rows.filter(pk__in=list(keys)).first() if keys else None

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_view_permission(request) or request.method not in {"GET", "HEAD"}:
            raise PermissionDenied
        workload = self.get_object(request, object_id)
        if workload is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined]
        may_rearm = workload.state in PARKED and self.has_rearm_permission(request)
        context = {
            "title": _("Workload"),
            "subtitle": workload.workload_id,
            "workload": workload,
            "state": word(workload.state),
            "sentence": page.sentence(workload, timezone.now()),
            "blockers": page.blockers(workload.workload_id),
            "rearm_url": f"{self._rearm_url()}?{urlencode({'pk': workload.pk})}" if may_rearm else None,
            "facts": page.facts(workload),
            "input": pretty(workload.input),
            "result": page.result(workload),
            "tables": page.tables(workload),
        }
        return self._render(request, "change_form", context | (extra_context or {}))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        # A workload's history is its events.
        return HttpResponseRedirect(reverse("admin:workloads_workload_change", args=[object_id]) + "#events")

    # Re-arming

    def get_urls(self) -> list[URLPattern]:
        rearm = path("rearm/", self.admin_site.admin_view(self.rearm_view), name="workloads_workload_rearm")
        return [rearm, *super().get_urls()]

    @admin.action(description=gettext_lazy("Re-arm selected workloads…"), permissions=["rearm"])
    def rearm(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Go on to the page that asks for the reason."""
        keys = list(queryset.values_list("pk", flat=True)[: rearming.MOST_AT_ONCE + 1])
        if len(keys) > rearming.MOST_AT_ONCE:
            said = _("At most %(most)d workloads are re-armed at once: select fewer.")
            self.message_user(request, said % {"most": rearming.MOST_AT_ONCE}, messages.ERROR)
            return None
        query = urlencode({"pk": keys, FILTERS: request.GET.urlencode()}, doseq=True)
        return HttpResponseRedirect(f"{self._rearm_url()}?{query}")

    # A refusal may have recorded something (section 1 of the contract): no transaction may undo it.
    @transaction.non_atomic_requests
    def rearm_view(self, request: HttpRequest) -> HttpResponse:
        """Show what is about to happen and ask for the reason; then do it, and say what became of each."""
        if not self.has_rearm_permission(request):
            raise PermissionDenied
        is_sent = request.method == "POST"
        wanted = rearming.parse_keys(request.POST.getlist("item") if is_sent else request.GET.getlist("pk"))
        if not wanted or len(wanted) > rearming.MOST_AT_ONCE:
            said = _("Select 1 to %(most)d workloads.") % {"most": rearming.MOST_AT_ONCE}
            self.message_user(request, said, messages.ERROR)
            return HttpResponseRedirect(self._list_url(request))
        form = rearming.RearmForm(request.POST if is_sent else None)
        if is_sent and form.is_valid():
            self._tell(request, rearming.rearm(wanted, user=request.user, **form.cleaned_data))
            if len(wanted) == 1:
                return HttpResponseRedirect(reverse("admin:workloads_workload_change", args=list(wanted)))
            return HttpResponseRedirect(self._list_url(request))
        items = rearming.find(wanted)
        context = {
            "title": _("Re-arm workloads"),
            "form": form,
            "parked": [item for item in items if item.is_parked],
            "others": [item for item in items if not item.is_parked],
            "back_url": self._list_url(request),
        }
        return self._render(request, "rearm", context)

    def _tell(self, request: HttpRequest, outcomes: list[rearming.Outcome]) -> None:
        refused = [outcome for outcome in outcomes if outcome.refusal is not None]
        if done := len(outcomes) - len(refused):
            said = ngettext("%(count)d workload was re-armed.", "%(count)d workloads were re-armed.", done)
            self.message_user(request, said % {"count": done}, messages.SUCCESS)
        for outcome in refused[:MOST_MESSAGES]:
            self.message_user(request, f"{outcome.name}: {outcome.refusal}", messages.ERROR)
        more = len(refused) - MOST_MESSAGES
        if more > 0:
            said = ngettext("%(count)d more was refused.", "%(count)d more were refused.", more)
            self.message_user(request, said % {"count": more}, messages.ERROR)

    def _rearm_url(self) -> str:
        return reverse("admin:workloads_workload_rearm", current_app=self.admin_site.name)

    def _list_url(self, request: HttpRequest) -> str:
        url = reverse("admin:workloads_workload_changelist", current_app=self.admin_site.name)
        filters = request.GET.get(FILTERS)
        return f"{url}?{filters}" if filters else url

    def _render(self, request: HttpRequest, template: str, context: dict[str, Any]) -> TemplateResponse:
        base = self.admin_site.each_context(request) | {"opts": self.opts, "media": self.media}
        request.current_app = self.admin_site.name
        return TemplateResponse(request, f"admin/workloads/workload/{template}.html", base | context)
