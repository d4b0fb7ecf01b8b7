"""The overview: the app's index in the admin, and the part of it that refreshes by itself."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timesince import timesince
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from django.views.decorators.http import require_safe

from workloads.admin import trouble
from workloads.admin.base import ReadingAdmin
from workloads.admin.display import NOTHING, clock_time, relative, word
from workloads.admin.figures import NONE, Capped, Item, Some
from workloads.admin.page_blockers import Reason, reasons
from workloads.admin.page_text import visible
from workloads.admin.spans import Span, spans
from workloads.admin.survey import GRACE, Part, Survey, Waiting, current
from workloads.admin.trouble import say
from workloads.contract import WorkloadState

TEMPLATE: Final = "admin/workloads/overview.html"
INTERVAL_S: Final = 15
MOST_PARTS: Final = 12
MOST_GROUPS: Final = 15
SHOWN_CHARS: Final = 17

WORDS: Final = {
    trouble.WRONG: (gettext_lazy("Something is wrong"), "bad"),
    trouble.ATTENTION: (gettext_lazy("Attention"), "warning"),
    trouble.WELL: (gettext_lazy("All is well"), "good"),
}

S = WorkloadState
List = Callable[..., str]


class OverviewOfWorkloads(ReadingAdmin):
    """The overview's part of the admin of workloads."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.overview_view)
        return [path("overview/", view, name="workloads_overview"), *super().get_urls()]

    def overview_view(self, request: HttpRequest) -> HttpResponse:
        """Answer the overview alone, without the page around it, as it is now."""
        if not may_look(request):
            raise PermissionDenied
        request.current_app = self.admin_site.name
        return _answer(request)


@require_safe
def _answer(request: HttpRequest) -> HttpResponse:
    return TemplateResponse(request, TEMPLATE, context(request))


def may_look(request: HttpRequest) -> bool:
    """Whether whoever asks may see figures of workloads."""
    return request.user.has_perm("workloads.view_workload")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """One figure, what it counts, and what else is to be said of it."""

    label: str
    value: str
    note: str = ""
    url: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A count in a table, and the list of what it counts; no link where there is nothing."""

    label: str
    value: str
    url: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of a table of counts."""

    name: str
    url: str
    cells: list[Cell]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One workload that is stuck."""

    state: str
    definition: str
    place: str
    name: str
    title: str
    url: str
    since: str
    worker: str
    reasons: list[Reason]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stuck:
    """Workloads that are stuck alike."""

    title: str
    count: str
    lines: list[Line]
    note: str = ""
    url: str = ""


def context(request: HttpRequest) -> dict[str, Any]:
    """Return what the overview's template shows. For those alone who `may_look`."""
    site = getattr(request, "current_app", None)

    def list_of(**parameters: str) -> str:
        url = reverse("admin:workloads_workload_changelist", current_app=site)
        return f"{url}?{urlencode(parameters)}" if parameters else url

    def page_of(pk: int) -> str:
        return reverse("admin:workloads_workload_change", args=[pk], current_app=site)

    survey, age = current()
    charts = spans(survey)
    found = trouble.reasons(survey, list_of)
    level = trouble.level_of(found)
    status, tone = WORDS[level]
    return {
        "url": reverse("admin:workloads_overview", current_app=site),
        "interval": INTERVAL_S,
        "survey": survey,
        "at": clock_time(survey.at),
        "age": int(age),
        "status": status,
        "level": level,
        "tone": tone,
        "sentence": _sentence(survey, found),
        "reasons": found,
        "tiles": _tiles(survey, charts, list_of, page_of),
        "signs": _signs(survey),
        "workers": [(visible(name), relative(at, survey.at)) for name, at in survey.last_workers],
        "workers_url": _workers_url(request, site),
        "stuck": list(_stuck(survey, list_of, page_of)),
        "dead": _dead(survey, list_of),
        "dead_cut": say(Capped(survey.dead.total.count)) if survey.dead.total.more else "",
        "dead_more": max(0, len(survey.dead.groups) - MOST_GROUPS),
        "spans": charts,
        "states": [_state(state, survey.states[state], list_of) for state in sorted(survey.states, key=_order)],
        "tables": _parts(survey, list_of),
    }


def _sentence(survey: Survey, found: list[trouble.Reason]) -> str:
    if found:
        said = ngettext("%(count)d thing asks for somebody.", "%(count)d things ask for somebody.", len(found))
        return said % {"count": len(found)}
    if not survey.workers.count:
        return _("A pass runs, and nothing is due.")
    said = ngettext(
        "A pass runs, and %(count)s worker has been seen in the last minutes.",
        "A pass runs, and %(count)s workers have been seen in the last minutes.",
        survey.workers.count,
    )
    return said % {"count": say(survey.workers)}


def _tiles(survey: Survey, charts: list[Span], list_of: List, page_of: Callable[[int], str]) -> list[Tile]:
    waits = held = ""
    oldest = survey.oldest[0].item if survey.oldest else None
    if oldest is not None and oldest.since is not None:
        said = _("The longest wait is at least {}.") if survey.oldest_is_bound else _("The longest wait is {}.")
        waits = format_html(said, _link(page_of(oldest.pk), lasting(oldest.since, survey.at)))
    longest = survey.longest_held
    if longest is not None and longest.since is not None:
        held = format_html(
            _("The longest is held for {}."), _link(page_of(longest.pk), lasting(longest.since, survey.at))
        )
    lately = survey.dead.lately
    died = _("%(count)s of them in the last hour.") % {"count": say(lately)} if lately.count else ""
    return [
        Tile(label=_("Claimable now"), value=say(survey.due), note=waits, url=list_of(due="now")),
        Tile(label=_("Held by workers"), value=say(survey.held), note=held, url=list_of(state="held")),
        Tile(
            label=_("Dead letters"),
            value=say(survey.states.get(S.DEAD_LETTER.value, NONE)),
            note=died,
            url=list_of(state=S.DEAD_LETTER.value),
        ),
        Tile(label=_("Waiting for other work"), value=say(survey.blocked), url=list_of(blocked="yes")),
        Tile(label=_("Due later"), value=say(survey.later), url=list_of(due="later")),
        Tile(
            label=_("Succeeded in the last hour"),
            value=charts[0].charts[0].total,
            url=list_of(state=S.SUCCEEDED.value, finished_from="1h"),
        ),
    ]


def _link(url: str, text: str) -> SafeString:
    return format_html('<a href="{}">{}</a>', url, text)


def lasting(since: dt.datetime, until: dt.datetime) -> str:
    """Return how long it is from one instant to the other; below a minute in seconds."""
    seconds = int((until - since).total_seconds())
    return _("%(count)d s") % {"count": max(0, seconds)} if seconds < 60 else timesince(since, until, depth=2)


def _signs(survey: Survey) -> list[tuple[str, str]]:
    ran = _("never") if survey.last_pass is None else relative(survey.last_pass, survey.at)
    return [
        (_("The last pass"), ran),
        (_("Workers seen in the last 5 minutes"), say(survey.workers)),
    ]


def _workers_url(request: HttpRequest, site: str | None) -> str:
    if not request.user.has_perm("workloads.view_seenworker"):
        return ""
    try:
        return reverse("admin:workloads_seenworker_changelist", current_app=site)
    except NoReverseMatch:
        # A site may take pages out of its admin.
        return ""


def _stuck(survey: Survey, list_of: List, page_of: Callable[[int], str]) -> Iterator[Stuck]:
    """Yield what does not go on by itself, each kind with its first workloads and why they are stuck."""
    late = [each for each in survey.oldest if each.item.since is not None and survey.at - each.item.since >= GRACE]
    if late:
        lines = [_line(each.item, survey, page_of, _why(each)) for each in late]
        yield Stuck(title=_("Due the longest"), count=say(survey.due), lines=lines, url=list_of(due="now"))
    overdue = survey.overdue
    alike: tuple[tuple[str, Some, str, str], ...] = (
        (_("Leases that are over"), overdue.leases, _("A pass will take it back."), ""),
        (_("Deadlines that have passed"), overdue.deadlines, _("A pass will time it out."), ""),
        (
            _("Cancellations that no worker has confirmed"),
            survey.cancelling,
            _("Its worker confirms it, or its lease ends it. A cancellation by force ends it at once."),
            list_of(state=S.CANCELLATION_REQUESTED.value),
        ),
        (
            _("Waiting for dead letters"),
            survey.waiting_for_dead,
            _("It goes on once the dead letter that it waits for is re-armed and succeeds."),
            list_of(blocked="yes"),
        ),
        (
            _("Waiting for what nobody has admitted"),
            overdue.missing,
            _("It goes on once that is admitted and succeeds."),
            list_of(blocked="yes"),
        ),
        (
            _("Waiting for what can't come about any more"),
            overdue.unmeetable,
            _("A pass will make it a dead letter."),
            list_of(blocked="yes"),
        ),
    )
    for title, some, then, url in alike:
        if some.counted.count:
            lines = [_line(item, survey, page_of) for item in some.first]
            yield Stuck(title=title, count=say(some.counted), lines=lines, note=then, url=url)


def _why(waiting: Waiting) -> list[Reason]:
    if waiting.is_crowded:
        return [Reason(code="", sentence=_("Too much waits in the same application to tell here; its page tells why."))]
    found = reasons(waiting.item.workload_id, timezone.now())
    if found is None:
        return [Reason(code="", sentence=_("Its record can't be read; its page tells more."))]
    return found or [Reason(code="", sentence=_("Nothing holds it back: no worker that may run it has asked."))]


def _line(item: Item, survey: Survey, page_of: Callable[[int], str], why: Iterable[Reason] = ()) -> Line:
    return Line(
        state=word(item.state),
        definition=visible(item.definition),
        place=visible(f"{item.tenant_id} / {item.application_id}"),
        name=f"{item.workload_id[:SHOWN_CHARS]}…",
        title=item.workload_id,
        url=page_of(item.pk),
        since=NOTHING if item.since is None else relative(item.since, survey.at),
        worker=visible(item.worker_id or ""),
        reasons=list(why),
    )


def _dead(survey: Survey, list_of: List) -> list[dict[str, Any]]:
    """Return the groups of dead letters that are shown, each with the list of them."""
    found = []
    for group in survey.dead.groups[:MOST_GROUPS]:
        parameters = {"state": S.DEAD_LETTER.value, "definition": group.definition_id}
        if group.kind is not None:
            parameters["failure_kind"] = group.kind
        found.append(
            {
                "definition": visible(group.definition_id),
                "kind": None if group.kind is None else visible(group.kind),
                "count": say(Capped(group.dead, survey.dead.total.more)),
                "lately": say(Capped(group.lately)) if group.lately else NOTHING,
                "latest": NOTHING if group.latest is None else relative(group.latest, survey.at, 1),
                "url": list_of(**parameters),
            }
        )
    return found


def _order(state: str) -> int:
    """Where a state stands: those that nobody knows first, then those of the contract, as a life goes through them."""
    return list(S).index(S(state)) if state in set(S) else -1


def _state(state: str, counted: Capped, list_of: List) -> dict[str, Any]:
    is_known = state in set(S)
    return {"word": word(visible(state)), "count": say(counted), "url": list_of(state=state) if is_known else ""}


def _parts(survey: Survey, list_of: List) -> list[dict[str, Any]]:
    """Return how much stands where, by definition and by application, that first of which most asks for somebody."""
    by_definition: dict[tuple[str, ...], Part] = {}
    by_application: dict[tuple[str, ...], Part] = {}
    for place, part in survey.parts:
        for parts, key in (
            (by_definition, (place.definition_id,)),
            (by_application, (place.tenant_id, place.application_id)),
        ):
            parts[key] = parts.get(key, Part()) + part
    return [
        _table("definitions", _("By definition"), _("Definition"), ("definition",), by_definition, list_of),
        _table(
            "applications",
            _("By tenant and application"),
            _("Tenant and application"),
            ("tenant", "application"),
            by_application,
            list_of,
        ),
    ]


def _table(
    name: str,
    title: str,
    heading: str,
    names: tuple[str, ...],
    parts: dict[tuple[str, ...], Part],
    list_of: List,
) -> dict[str, Any]:
    columns = (
        ("due", _("Claimable"), {"due": "now"}),
        ("held", _("Held"), {"state": "held"}),
        ("later", _("Later"), {"due": "later"}),
        ("dead", _("Dead letters"), {"state": S.DEAD_LETTER.value}),
        ("done", _("Succeeded, last hour"), {"state": S.SUCCEEDED.value, "finished_from": "1h"}),
    )
    ordered = sorted(parts.items(), key=lambda pair: (-pair[1].weight, pair[0]))
    rows = []
    for key, part in ordered[:MOST_PARTS]:
        mine = dict(zip(names, key, strict=True))
        cells = []
        for column, label, parameters in columns:
            counted: Capped = getattr(part, column)
            url = list_of(**mine, **parameters) if counted.count else ""
            cells.append(Cell(label=label, value=say(counted) if counted.count else NOTHING, url=url))
        rows.append(Row(name=visible(" / ".join(key)), url=list_of(**mine), cells=cells))
    return {
        "name": name,
        "title": title,
        "headings": [heading, *(label for _column, label, _parameters in columns)],
        "rows": rows,
        "more": max(0, len(ordered) - MOST_PARTS),
    }
