"""What every page of the admin shares: who may look and act, and how a page is rendered."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.template.response import TemplateResponse

from workloads.admin.zones import InZone


class ReadingAdmin(InZone, admin.ModelAdmin):
    """Nothing is added, changed or deleted here: rows are read, and the authority alone writes.

    Every address of it is shown in the zone of whoever asks. Its templates end with
    `{% block footer %}{% include "admin/workloads/zone.html" %}{% endblock %}`, which says so.
    """

    class Media:
        css = {"all": ("workloads/admin.css",)}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.view_{self.opts.model_name}")

    def render(self, request: HttpRequest, template: str, context: dict[str, Any]) -> TemplateResponse:
        """Render `admin/workloads/<template>.html` within the admin's frame."""
        base = self.admin_site.each_context(request) | {"opts": self.opts, "media": self.media}
        request.current_app = self.admin_site.name
        return TemplateResponse(request, f"admin/workloads/{template}.html", base | context)
