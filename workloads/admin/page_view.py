"""The page of one workload."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from workloads.admin import page, rearming
from workloads.admin.action_views import Interventions
from workloads.admin.display import pretty, word
from workloads.lifecycle import arguments
from workloads.lifecycle.states import PARKED


class PageOfAWorkload(Interventions):
    """The page's part of the admin of workloads."""

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
            "rearm_url": f"{self.rearm_url()}?{urlencode({'pk': workload.pk})}" if may_rearm else None,
            "facts": page.facts(workload),
            "input": pretty(workload.input),
            "result": page.result(workload),
            "tables": page.tables(workload),
        }
        return self.render(request, "workload/change_form", context | (extra_context or {}))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        # A workload's history is its events.
        return HttpResponseRedirect(reverse("admin:workloads_workload_change", args=[object_id]) + "#events")
