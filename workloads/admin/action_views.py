"""What operators do to workloads from the admin: the pages that ask, and what they say of the outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _, ngettext

from workloads import authority
from workloads.admin import interventions
from workloads.admin.base import ReadingAdmin
from workloads.admin.criteria import Criteria
from workloads.admin.deeds import DEEDS, DONE, Deed, actor_name, applies, effects, form_for
from workloads.lifecycle.interventions import Verb

MOST_MESSAGES: Final = 20
FILTERS: Final = "_changelist_filters"
# Whoever comes by this address began it, so it goes on by itself.
GOING: Final = "#going"


@dataclass(frozen=True, slots=True)
class Offer:
    """Something that may be done to one workload, and where."""

    label: Any
    url: str


def _entry(verb: Verb) -> Callable[..., HttpResponse | None]:
    """Return the entry of the list's action menu that goes on to the page that asks for the reason."""

    def act(self: Interventions, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self.ask(request, queryset, DEEDS[verb])

    act.__name__ = str(verb)
    return admin.action(act, description=DEEDS[verb].entry, permissions=[str(verb)])


class Interventions(ReadingAdmin):
    """The actions' part of the admin of workloads."""

    actions = tuple(str(verb) for verb in Verb)

    rearm = _entry(Verb.REARM)
    cancel = _entry(Verb.CANCEL)
    force_cancel = _entry(Verb.FORCE_CANCEL)
    time_out = _entry(Verb.TIME_OUT)

    def has_rearm_permission(self, request: HttpRequest) -> bool:
        return DEEDS[Verb.REARM].is_open_to(request.user)

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return DEEDS[Verb.CANCEL].is_open_to(request.user)

    def has_force_cancel_permission(self, request: HttpRequest) -> bool:
        return DEEDS[Verb.FORCE_CANCEL].is_open_to(request.user)

    def has_time_out_permission(self, request: HttpRequest) -> bool:
        return DEEDS[Verb.TIME_OUT].is_open_to(request.user)

    def get_urls(self) -> list[URLPattern]:
        return [*(self._url_of(deed) for deed in DEEDS.values()), *super().get_urls()]

    def _url_of(self, deed: Deed) -> URLPattern:
        view = update_wrapper(partial(self.intervene_view, deed=deed), self.intervene_view)
        return path(deed.path, self.admin_site.admin_view(view), name=deed.url_name)

    def offers(self, request: HttpRequest, workload: Any) -> list[Offer]:
        """Return what this person may do to this workload, as it stands."""
        return [
            Offer(deed.offer, f"{self._page_of(deed)}?{urlencode({'pk': workload.pk})}")
            for deed in DEEDS.values()
            if deed.is_open_to(request.user) and applies(deed.verb, workload.state)
        ]

    def ask(self, request: HttpRequest, queryset: QuerySet[Any], deed: Deed) -> HttpResponse | None:
        """Go on to the page that asks for the reason: of the selected, or of all that match the list's filter."""
        if request.POST.get("select_across") == "1":
            return self._begin(request, deed)
        keys = list(queryset.values_list("pk", flat=True)[: interventions.MOST_AT_ONCE + 1])
        if len(keys) > interventions.MOST_AT_ONCE:
            said = _("At most %(most)d workloads are decided on by one page: select fewer, or all that match.")
            self.message_user(request, said % {"most": interventions.MOST_AT_ONCE}, messages.ERROR)
            return None
        query = urlencode({"pk": keys, FILTERS: request.GET.urlencode()}, doseq=True)
        return HttpResponseRedirect(f"{self._page_of(deed)}?{query}")

    def _begin(self, request: HttpRequest, deed: Deed) -> HttpResponse | None:
        # As they are meant now: "in the last hour" must not move on while work is selected.
        criteria = Criteria.read(request.GET).pinned()
        if criteria.problems:
            said = _("The filter can't be read, so nothing was selected: %(problem)s")
            problem = next(iter(criteria.problems.values()))
            self.message_user(request, said % {"problem": problem}, messages.ERROR)
            return None
        action = authority.begin_bulk(deed.verb, actor=actor_name(request.user), criteria=criteria.query)
        url = reverse("admin:workloads_bulkaction_change", args=[action.pk], current_app=self.admin_site.name)
        return HttpResponseRedirect(f"{url}{GOING}")

    # A refusal may have recorded something (section 1 of the contract): no transaction may undo it.
    @transaction.non_atomic_requests
    def intervene_view(self, request: HttpRequest, deed: Deed) -> HttpResponse:
        """Show what is about to happen and ask for the reason; then do it, and say what became of each."""
        if not deed.is_open_to(request.user):
            raise PermissionDenied
        is_sent = request.method == "POST"
        sent = interventions.parse_items(request.POST.getlist("item")) if is_sent else None
        if is_sent and sent is None:
            said = _("The form was not what this page had sent, so nothing was done. Select the workloads again.")
            self.message_user(request, said, messages.ERROR)
            return HttpResponseRedirect(self._list_url(request))
        wanted: dict[int, int | None] = {**sent} if sent else interventions.parse_keys(request.GET.getlist("pk"))
        if not wanted or len(wanted) > interventions.MOST_AT_ONCE or (is_sent and not sent):
            said = _("Select 1 to %(most)d workloads.") % {"most": interventions.MOST_AT_ONCE}
            self.message_user(request, said, messages.ERROR)
            return HttpResponseRedirect(self._list_url(request))
        form = form_for(deed.verb, request.POST if is_sent else None)
        if sent and form.is_valid():
            actor = actor_name(request.user)
            self._tell(request, interventions.carry_out(deed.verb, sent, actor=actor, **form.cleaned_data))
            if len(sent) == 1:
                return HttpResponseRedirect(reverse("admin:workloads_workload_change", args=list(sent)))
            return HttpResponseRedirect(self._list_url(request))
        return self.render(request, "workload/intervene", self._asked(request, deed, form, wanted))

    def _asked(self, request: HttpRequest, deed: Deed, form: Any, wanted: dict[int, int | None]) -> dict[str, Any]:
        items = interventions.find(deed.verb, wanted)
        chosen = [item for item in items if item.applies]
        late = sum(item.overall_has_passed for item in chosen) if deed.verb is Verb.REARM else 0
        said = ngettext(
            "The overall deadline of %(count)d of these has passed: it is refused unless that starts anew.",
            "The overall deadlines of %(count)d of these have passed: they are refused unless those start anew.",
            late,
        )
        return {
            "title": deed.title,
            "deed": deed,
            "form": form,
            "chosen": chosen,
            "others": [item for item in items if not item.applies],
            "effects": effects(deed.verb, {item.state for item in chosen}),
            "late": said % {"count": late} if late else "",
            "button": deed.button % {"number": len(chosen), "count": len(chosen)},
            "is_rearm": deed.verb is Verb.REARM,
            "back_url": self._list_url(request),
        }

    def _tell(self, request: HttpRequest, outcomes: list[interventions.Outcome]) -> None:
        refused = [outcome for outcome in outcomes if outcome.refusal is not None]
        for state, number in Counter(outcome.state for outcome in outcomes if outcome.changed).items():
            self.message_user(request, DONE[state] % {"number": number, "count": number}, messages.SUCCESS)
        if left := len(outcomes) - len(refused) - sum(outcome.changed for outcome in outcomes):
            said = ngettext("%(count)d workload was so already.", "%(count)d workloads were so already.", left)
            self.message_user(request, said % {"count": left}, messages.INFO)
        for outcome in refused[:MOST_MESSAGES]:
            self.message_user(request, f"{outcome.name}: {outcome.refusal}", messages.ERROR)
        more = len(refused) - MOST_MESSAGES
        if more > 0:
            said = ngettext("%(count)d more was refused.", "%(count)d more were refused.", more)
            self.message_user(request, said % {"count": more}, messages.ERROR)

    def _page_of(self, deed: Deed) -> str:
        return reverse(f"admin:{deed.url_name}", current_app=self.admin_site.name)

    def _list_url(self, request: HttpRequest) -> str:
        url = reverse("admin:workloads_workload_changelist", current_app=self.admin_site.name)
        filters = request.GET.get(FILTERS)
        return f"{url}?{filters}" if filters else url
