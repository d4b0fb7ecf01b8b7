"""The page of one workload, and those of its payloads."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _

from workloads import authority
from workloads.admin import (
    page,
    page_blockers,
    page_grant,
    page_json,
    page_payloads,
    page_picture,
    page_record,
    page_relations,
    page_standing,
    page_timeline,
)
from workloads.admin.action_views import Interventions
from workloads.admin.display import instant, word
from workloads.admin.page_record import Record
from workloads.admin.page_text import prose, visible, visible_json
from workloads.admin.timeline import draw
from workloads.lifecycle.states import HELD


class PageOfAWorkload(Interventions):
    """The page's part of the admin of workloads."""

    def get_urls(self) -> list[URLPattern]:
        payload = path(
            "<int:key>/payload/<path:what>/",
            self.admin_site.admin_view(self.payload_view),
            name="workloads_workload_payload",
        )
        return [payload, *super().get_urls()]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the workload by its key or its workload id, without what may be spoilt; None where there is none."""
        rows = self.get_queryset(request)
        key = page_record.find_key(rows, object_id)
        return None if key is None else rows.filter(pk=key).only("pk").first()

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_view_permission(request) or request.method not in {"GET", "HEAD"}:
            raise PermissionDenied
        rows = self.get_queryset(request)
        key = page_record.find_key(rows, object_id)
        now = authority.read_clock()
        reads_payloads = page_payloads.may_read(request)
        record = None if key is None else page_record.read_record(rows, key, now, reads_payloads=reads_payloads)
        if record is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined]
        context = self._told(record) | {"offers": self._offered(request, record)}
        return self.render(request, "workload/change_form", context | (extra_context or {}))

    def _offered(self, request: HttpRequest, record: Record) -> list[Any]:
        # What the authority can't read it can't change.
        return [] if record.snapshot is None else list(self.offers(request, record.workload))

    def _told(self, record: Record) -> dict[str, Any]:
        workload_id = record.workload.workload_id
        life = page_timeline.describe(record)
        drawn = draw(life)
        state = record.workload.state
        has_failed = record.workload.last_failure and state not in ("SUCCEEDED", "CANCELLED")
        return {
            "title": _("Workload"),
            "subtitle": workload_id or f"#{record.pk}",
            "workload": record.workload,
            "now": instant(record.now),
            "what": page.what(record),
            "state": word(visible(state)) if state else "",
            "sentence": page_standing.sentence(record),
            "last_failure": prose(record.workload.last_failure) if has_failed else "",
            "trouble": record.trouble,
            "reasons": page_blockers.reasons(workload_id, record.now) if workload_id else None,
            "is_held": record.workload.state in HELD,
            "is_free": state == "READY",
            "picture": page_picture.picture(life, drawn),
            "legend": page_picture.legend(life),
            "timeline": [(instant(when), what, lane) for when, what, lane in page_timeline.listed(life, drawn)],
            "is_short": bool(drawn.breaks),
            "result": page_payloads.result(record),
            "input": page_payloads.inline(record, "input", record.cold, "input"),
            "tables": [*page.history(record), *page_relations.tables(record)],
            "facts": page.facts(record),
            "grant": page_grant.grant(workload_id) if workload_id else [],
        }

    def payload_view(self, request: HttpRequest, key: int, what: str) -> HttpResponse:
        """Show all of one payload; with `raw`, exactly as it is stored."""
        if not self.has_view_permission(request) or not page_payloads.may_read(request) or request.method != "GET":
            raise PermissionDenied
        rows = self.get_queryset(request)
        text = page_payloads.read_whole(rows, key, what) if key <= page_record.LARGEST_KEY else None
        if text is None:
            raise Http404
        if "raw" in request.GET:
            headers = {"X-Content-Type-Options": "nosniff", "Content-Disposition": "inline"}
            return HttpResponse(text, content_type="text/plain; charset=utf-8", headers=headers)
        shown = page_json.whole(text)
        context = {
            "title": _("Payload"),
            "subtitle": what,
            "text": visible_json(shown.shown),
            "fault": shown.fault,
            "size": shown.size,
            "back_url": reverse("admin:workloads_workload_change", args=[key]),
        }
        return self.render(request, "workload/payload", context)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        # A workload's history is its events.
        return HttpResponseRedirect(reverse("admin:workloads_workload_change", args=[object_id]) + "#events")
