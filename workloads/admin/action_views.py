"""What operators do to workloads from the admin: the pages that ask, and what they say of the outcome."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from workloads.admin import rearming
from workloads.admin.base import ReadingAdmin

MOST_MESSAGES: Final = 20
FILTERS: Final = "_changelist_filters"


class Interventions(ReadingAdmin):
    """The actions' part of the admin of workloads."""

    actions = ("rearm",)

    def has_rearm_permission(self, request: HttpRequest) -> bool:
        """Whether this operator may re-arm: the right of its own, and that to look."""
        return self.has_view_permission(request) and request.user.has_perm("workloads.rearm_workload")

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
        return HttpResponseRedirect(f"{self.rearm_url()}?{query}")

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
        return self.render(request, "workload/rearm", context)

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

    def rearm_url(self) -> str:
        return reverse("admin:workloads_workload_rearm", current_app=self.admin_site.name)

    def _list_url(self, request: HttpRequest) -> str:
        url = reverse("admin:workloads_workload_changelist", current_app=self.admin_site.name)
        filters = request.GET.get(FILTERS)
        return f"{url}?{filters}" if filters else url
