"""Deciding on all that match a filter: the pages of one such action, from selecting to its outcome, and the list."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any, Final, cast

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, JsonResponse, QueryDict
from django.urls import URLPattern, path, reverse
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from workloads import authority
from workloads.admin.action_views import GOING
from workloads.admin.base import ReadingAdmin
from workloads.admin.criteria import Criteria
from workloads.admin.deeds import DEEDS, Deed, actor_name, applies, effects, explained, form_for, why_not
from workloads.admin.display import NOTHING, instant, short, word
from workloads.admin.interventions import Item, find
from workloads.errors import WORKLOAD_CONFLICT, WorkloadError
from workloads.lifecycle.interventions import Verb, leads_to
from workloads.models import BulkAction, BulkItem, Workload

MOST_SECONDS: Final = 1.0
SAMPLE: Final = 20
REFUSED_A_PAGE: Final = 50
MOST_REASON_CHARS: Final = 80
TONES: Final = {"selecting": "waiting", "asking": "warning", "running": "active", "done": "good", "stopped": "quiet"}


def grouped(number: int) -> str:
    """Return a number with its thousands set apart."""
    return number_format(number, force_grouping=True)


def rows_of(action: BulkAction) -> Any:
    """Return the workloads that the action's filter means."""
    return Criteria.read(QueryDict(action.criteria), now=action.created_at).rows()


def step_select(action: BulkAction, actor: str) -> BulkAction:
    """Select the next part."""
    return authority.select_bulk(action.pk, rows_of(action))


def step_continue(action: BulkAction, actor: str) -> BulkAction:
    """Decide on the next batch."""
    return authority.continue_bulk(action.pk, actor=actor)


# By the stage in which it may be taken: a step of bounded work, of which a request takes as many as it has time for.
STEPS: Final[dict[str, Callable[[BulkAction, str], BulkAction]]] = {
    "selecting": step_select,
    "running": step_continue,
}


@admin.register(BulkAction)
class BulkActionAdmin(ReadingAdmin):
    """What was decided on many at once. Who may look at workloads may look; who may do it to one may carry on."""

    list_display = ("what", "stage_word", "done", "refused", "by", "said", "begun")
    list_display_links = ("what",)
    list_per_page = 50
    list_max_show_all = 50
    ordering = ("-pk",)
    sortable_by = ()
    show_full_result_count = False
    actions = None

    class Media:
        css = {"all": ("workloads/actions.css",)}

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("workloads.view_workload")

    @admin.display(description=gettext_lazy("action"))
    def what(self, action: BulkAction) -> str:
        return str(action)

    @admin.display(description=gettext_lazy("stage"))
    def stage_word(self, action: BulkAction) -> str:
        tone = TONES.get(action.stage, "quiet")
        return format_html('<span class="workloads-word workloads-{}">{}</span>', tone, action.get_stage_display())

    @admin.display(description=gettext_lazy("done"))
    def done(self, action: BulkAction) -> str:
        numbers = {"done": grouped(action.done_count), "selected": grouped(action.selected_count)}
        return _("%(done)s of %(selected)s") % numbers

    @admin.display(description=gettext_lazy("refused"))
    def refused(self, action: BulkAction) -> str:
        return grouped(action.refused_count)

    @admin.display(description=gettext_lazy("by"))
    def by(self, action: BulkAction) -> str:
        return action.confirmed_by or action.actor

    @admin.display(description=gettext_lazy("reason"))
    def said(self, action: BulkAction) -> str:
        return short(action.reason or NOTHING, MOST_REASON_CHARS)

    @admin.display(description=gettext_lazy("begun"))
    def begun(self, action: BulkAction) -> str:
        return instant(action.created_at)

    def get_urls(self) -> list[URLPattern]:
        views = {"go-on": self.go_on_view, "confirm": self.confirm_view, "stop": self.stop_view}
        return [*(self._url_of(name, view) for name, view in views.items()), *super().get_urls()]

    def _url_of(self, name: str, view: Callable[..., HttpResponse]) -> URLPattern:
        wrapped = self.admin_site.admin_view(update_wrapper(partial(self._driven, view), view))
        return path(f"<int:key>/{name}/", wrapped, name=f"workloads_bulkaction_{name.replace('-', '_')}")

    def _driven(self, view: Callable[..., HttpResponse], request: HttpRequest, key: int) -> HttpResponse:
        """Let whoever may do this to one workload take a step of an action on many."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        action = self._found(request, key)
        if action is None:
            raise PermissionDenied
        if not DEEDS[Verb(action.verb)].is_open_to(request.user):
            raise PermissionDenied
        return view(request, action)

    def _found(self, request: HttpRequest, key: Any) -> BulkAction | None:
        if not self.has_view_permission(request):
            raise PermissionDenied
        return cast("BulkAction | None", self.get_object(request, str(key)))

    # What a batch has committed stays committed, whatever becomes of the request.
    @transaction.non_atomic_requests
    def go_on_view(self, request: HttpRequest, action: BulkAction) -> HttpResponse:
        """Take steps for about a second, and say how far it has come: in JSON to the script, else on the page."""
        actor = actor_name(request.user)
        began, stage, tried = time.monotonic(), action.stage, action.left_count
        trouble, status = "", 200
        try:
            while action.stage == stage and stage in STEPS:
                action = STEPS[stage](action, actor)
                if time.monotonic() - began >= MOST_SECONDS:
                    break
        except WorkloadError as refusal:
            trouble, status = explained(refusal.code, refusal.message), 409
        except DatabaseError:
            trouble, status = _("The database did not take it. What was done until then is kept: go on."), 503
        rate = (tried - action.left_count) / max(time.monotonic() - began, 0.001) if stage == "running" else 0
        if "application/json" in request.headers.get("Accept", ""):
            answer = {"stage": action.stage, "trouble": trouble, **self._numbers(action, rate)}
            return JsonResponse(answer, status=status)
        if trouble:
            self.message_user(request, trouble, messages.ERROR)
        return HttpResponseRedirect(self._url(action))

    @transaction.non_atomic_requests
    def confirm_view(self, request: HttpRequest, action: BulkAction) -> HttpResponse:
        """Let the action begin, once its reason is given."""
        verb = Verb(action.verb)
        form = form_for(verb, request.POST)
        if action.stage == "asking" and not form.is_valid():
            return self._page(request, action, form)
        if form.is_valid():
            try:
                authority.confirm_bulk(action.pk, actor=actor_name(request.user), **form.cleaned_data)
            except WorkloadError as refusal:
                self.message_user(request, explained(refusal.code, refusal.message), messages.ERROR)
                return HttpResponseRedirect(self._url(action))
        return HttpResponseRedirect(f"{self._url(action)}{GOING}")

    @transaction.non_atomic_requests
    def stop_view(self, request: HttpRequest, action: BulkAction) -> HttpResponse:
        """End the action where it is."""
        authority.stop_bulk(action.pk, actor=actor_name(request.user))
        return HttpResponseRedirect(self._url(action))

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, {"title": _("Bulk actions"), **(extra_context or {})})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if request.method not in {"GET", "HEAD"}:
            raise PermissionDenied
        action = self._found(request, object_id)
        if action is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined]
        return self._page(request, action, form_for(Verb(action.verb)))

    def _page(self, request: HttpRequest, action: BulkAction, form: Any) -> HttpResponse:
        deed = DEEDS[Verb(action.verb)]
        criteria = Criteria.read(QueryDict(action.criteria), now=action.created_at)
        list_url = reverse("admin:workloads_workload_changelist", current_app=self.admin_site.name)
        context = {
            "title": deed.title_of_many,
            "deed": deed,
            "action": action,
            "stage": self.stage_word(action),
            "begun": instant(action.created_at),
            "went_on": instant(action.updated_at),
            "said": criteria.said,
            "problems": criteria.problems.values(),
            "list_url": f"{list_url}?{criteria.query}" if criteria.query else list_url,
            "may": deed.is_open_to(request.user),
            "numbers": self._numbers(action, 0),
            "urls": {name: self._url(action, name) for name in ("go_on", "confirm", "stop")},
        }
        if action.stage == "asking":
            context |= self._asked(action, deed, form)
        elif action.stage != "selecting":
            context |= self._refused(request, action)
        return self.render(request, "bulkaction/change_form", context)

    def _asked(self, action: BulkAction, deed: Deed, form: Any) -> dict[str, Any]:
        """Return what the page that asks for the reason shows: how many, in which states, and the first of them."""
        verb = deed.verb
        counts = dict(sorted(action.states.items(), key=lambda each: -each[1]))
        touched = [state for state in counts if applies(verb, state)]
        number = sum(counts[state] for state in touched)
        sample = self._sample(action, verb)
        late = sum(item.applies and item.overall_has_passed for item in sample) if verb is Verb.REARM else 0
        said = ngettext(
            "Of the first %(shown)d, the overall deadline of %(count)d has passed: it is refused unless that starts "
            "anew.",
            "Of the first %(shown)d, the overall deadlines of %(count)d have passed: they are refused unless those "
            "start anew.",
            late,
        )
        return {
            "form": form,
            "number": number,
            "states": [
                {
                    "word": word(state),
                    "count": grouped(count),
                    "then": word(leads_to(verb, state) or state) if state in touched else why_not(verb, state),
                }
                for state, count in counts.items()
            ],
            "sample": sample,
            "effects": effects(verb, touched),
            "late": said % {"count": late, "shown": len(sample)} if late else "",
            "button": deed.button % {"number": number, "count": grouped(number)},
            "is_rearm": verb is Verb.REARM,
        }

    def _sample(self, action: BulkAction, verb: Verb) -> list[Item]:
        items = BulkItem.objects.filter(action_id=action.pk).order_by("record")[:SAMPLE]
        return find(verb, dict(items.values_list("record", "version")))

    def _refused(self, request: HttpRequest, action: BulkAction) -> dict[str, Any]:
        """Return a page of what was refused, oldest first: those after the key that the address names."""
        asked = request.GET.get("after", "")
        after = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 19 else 0
        items = BulkItem.objects.filter(action_id=action.pk, record__gt=after, record__lte=action.done_upto)
        found = list(items.order_by("record")[: REFUSED_A_PAGE + 1])
        shown = found[:REFUSED_A_PAGE]
        names = dict(Workload.objects.filter(pk__in=[i.record for i in shown]).values_list("pk", "workload_id"))
        codes = sorted(action.refusals.items(), key=lambda each: -each[1])
        return {
            "codes": [{"said": _refusal(code, _("It was refused.")), "count": grouped(count)} for code, count in codes],
            "refusals": [
                {
                    "pk": item.record,
                    "name": names.get(item.record, ""),
                    "state": word(item.state),
                    "said": _refusal(item.code or "", item.message),
                }
                for item in shown
            ],
            "is_later_page": after > 0,
            "next_after": shown[-1].record if len(found) > REFUSED_A_PAGE else None,
        }

    def _numbers(self, action: BulkAction, rate: float) -> dict[str, Any]:
        """Return how far the action has come: for the bar, and as text."""
        is_selecting = action.stage == "selecting"
        return {
            "value": action.selected_upto if is_selecting else action.selected_count - action.left_count,
            "most": max(action.upto if is_selecting else action.selected_count, 1),
            "selected": grouped(action.selected_count),
            "done": grouped(action.done_count),
            "refused": grouped(action.refused_count),
            "left": grouped(action.left_count),
            "pace": _pace(rate, action.left_count),
        }

    def _url(self, action: BulkAction, name: str = "change") -> str:
        return reverse(f"admin:workloads_bulkaction_{name}", args=[action.pk], current_app=self.admin_site.name)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        # What it did stands in the events of each workload.
        return HttpResponseRedirect(
            reverse("admin:workloads_bulkaction_change", args=[object_id], current_app=self.admin_site.name)
        )


def _refusal(code: str, message: str) -> str:
    """Return a refusal in words for whoever reads what became of the action."""
    if code == WORKLOAD_CONFLICT:
        return _("It had moved on since it was selected. (%(code)s)") % {"code": code}
    return explained(code, message)


def _pace(rate: float, left: int) -> str:
    """Say how fast it goes and how long it will take at that; nothing where nobody can tell."""
    if rate < 0.1 or not left:
        return ""
    seconds = round(left / rate)
    minutes = round(seconds / 60)
    if seconds < 90:
        said = ngettext(
            "%(rate)s a second, about %(count)d second left", "%(rate)s a second, about %(count)d seconds left", seconds
        )
        return said % {"rate": grouped(round(rate)), "count": seconds}
    said = ngettext(
        "%(rate)s a second, about %(count)d minute left", "%(rate)s a second, about %(count)d minutes left", minutes
    )
    return said % {"rate": grouped(round(rate)), "count": minutes}
