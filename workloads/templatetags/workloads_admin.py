"""What pages of the admin that are not the app's own show of it: the overview, for those who may look."""

from __future__ import annotations

from typing import Any

from django import template
from django.template.context import RequestContext
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.safestring import SafeString

from workloads.admin import overview, zones

register = template.Library()


@register.simple_tag(takes_context=True)
def workloads_overview(context: RequestContext) -> SafeString | str:
    """Return the overview, in the zone of whoever asks; nothing for those who may not look."""
    request = context["request"]
    if not overview.may_look(request):
        return ""
    with timezone.override(zones.zone_of(request)):
        return render_to_string(overview.TEMPLATE, overview.context(request), request)


@register.simple_tag(takes_context=True)
def workloads_zone(context: RequestContext) -> dict[str, Any]:
    """Return what `admin/workloads/zone.html` shows of the zone in use."""
    request = context["request"]
    with timezone.override(zones.zone_of(request)):
        return zones.told(request)
