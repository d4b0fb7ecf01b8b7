"""How a reader narrows the list: links that are ready made, a form, and what is in force and can be taken away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext as _, gettext_lazy

from workloads.admin import finding
from workloads.admin.criteria import Criteria
from workloads.admin.display import instant
from workloads.admin.finding import Page
from workloads.admin.listing import Row
from workloads.admin.orders import Order, Place, Start
from workloads.contract import WorkloadState
from workloads.models import Admitted, Lane

MOST_LANES: Final = 1_000
MOST_SUGGESTED: Final = 100

SAVED: Final[tuple[tuple[str | Promise, str], ...]] = (
    (gettext_lazy("Dead letters of the last 24 hours"), "state=DEAD_LETTER&finished_from=24h"),
    (gettext_lazy("Running for longer than an hour"), "state=RUNNING&state=CHECKPOINTED&started_to=1h"),
    (gettext_lazy("Due for longer than 10 minutes"), "due_to=10m"),
    (gettext_lazy("Waiting for other work"), "blocked=yes"),
    (gettext_lazy("Scheduled"), "due=later"),
    (gettext_lazy("Cancelled, not yet confirmed"), "state=CANCELLATION_REQUESTED"),
)
_PASSING: Final = (WorkloadState.CREATED, WorkloadState.RECOVERING, WorkloadState.FAILED)
STATE_LINKS: Final[tuple[tuple[str, str | Promise], ...]] = (
    ("parked", gettext_lazy("Parked: may be re-armed")),
    ("held", gettext_lazy("Held by a worker")),
    *((state.value, state.value) for state in WorkloadState if state not in _PASSING),
)
AGO: Final = gettext_lazy("24h, or 2026-01-31, or 2026-01-31T15:30")
LABELS: Final[dict[str, str | Promise]] = {
    "q": gettext_lazy("Search"),
    "state": gettext_lazy("State"),
    "definition": gettext_lazy("Definition"),
    "revision": gettext_lazy("Revision"),
    "tenant": gettext_lazy("Tenant"),
    "application": gettext_lazy("Application"),
    "worker": gettext_lazy("Held by worker"),
    "failure_kind": gettext_lazy("Failure kind"),
    "failure": gettext_lazy("Words in the last failure"),
    "blocked": gettext_lazy("Waiting for other work"),
    "due": gettext_lazy("Due"),
    "admitted_from": gettext_lazy("Admitted from"),
    "admitted_to": gettext_lazy("Admitted to"),
    "finished_from": gettext_lazy("Finished from"),
    "finished_to": gettext_lazy("Finished to"),
    "due_from": gettext_lazy("Due from"),
    "due_to": gettext_lazy("Due to"),
    "started_from": gettext_lazy("Started from"),
    "started_to": gettext_lazy("Started to"),
}
GROUPS: Final[tuple[tuple[str | Promise, tuple[str, ...]], ...]] = (
    (gettext_lazy("What and whose"), ("definition", "revision", "application", "tenant")),
    (gettext_lazy("Failure and worker"), ("failure_kind", "failure", "worker")),
    (gettext_lazy("Times"), ("admitted_from", "admitted_to", "finished_from", "finished_to")),
)
_IN_FORM: Final = frozenset(name for _title, names in GROUPS for name in names)


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A link to a list. It is the one that is shown, or another."""

    title: Any
    url: str
    is_current: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """A field of the form."""

    name: str
    label: Any
    value: str
    problem: str = ""
    hint: Any = ""
    suggestions: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Some fields of the form under one title; open where one of them is in use."""

    title: Any
    fields: list[Field]

    @property
    def is_open(self) -> bool:
        return any(each.value for each in self.fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """What is in force, in a sentence, or why it can't be read; and the list without it."""

    text: str
    without: str
    is_problem: bool = False


class Filters:
    """What the list's page says of its filters."""

    def __init__(self, criteria: Criteria, rows: list[Row], request: HttpRequest) -> None:
        self.criteria = criteria
        self.rows = rows
        self.address = request.build_absolute_uri(self._url(criteria.given))
        self.everything = "?"

    def _url(self, given: Any) -> str:
        return f"?{urlencode(list(given))}"

    def _without(self, *names: str) -> list[tuple[str, str]]:
        return [(name, text) for name, text in self.criteria.given if name not in names]

    def saved(self) -> list[Link]:
        """Return the links that are ready made."""
        return [Link(title=title, url=f"?{query}", is_current=self.criteria.query == query) for title, query in SAVED]

    def states(self) -> list[Link]:
        """Return a link for each state, and for what can be said of several; the other conditions stay."""
        chosen = [text for name, text in self.criteria.given if name == "state"]
        rest = self._without("state")
        links = [Link(title=_("All"), url=self._url(rest), is_current=not chosen)]
        return links + [
            Link(title=title, url=self._url([*rest, ("state", value)]), is_current=chosen == [value])
            for value, title in STATE_LINKS
        ]

    def conditions(self) -> Iterator[Condition]:
        """Yield what is in force, and what can't be read, each once."""
        sentences = self.criteria.sentences()
        for name in dict(self.criteria.given):
            problem = self.criteria.problems.get(name)
            text = sentences.get(name, "")
            if problem is not None:
                text = _("%(filter)s: %(problem)s") % {"filter": LABELS.get(name, name), "problem": problem}
            yield Condition(text=text, without=self._url(self._without(name)), is_problem=problem is not None)

    def groups(self) -> list[Group]:
        """Return the form's fields."""
        given, suggested = dict(self.criteria.given), self._suggested()
        return [
            Group(
                title=title,
                fields=[
                    Field(
                        name=name,
                        label=LABELS[name],
                        value=given.get(name, ""),
                        problem=self.criteria.problems.get(name, ""),
                        hint=AGO if name.endswith(("_from", "_to")) else "",
                        suggestions=suggested.get(name, []),
                    )
                    for name in names
                ],
            )
            for title, names in GROUPS
        ]

    def beside_form(self) -> list[tuple[str, str]]:
        """Return the conditions that the form has no field for, and keeps."""
        return self._without(*_IN_FORM)

    def beside_search(self) -> list[tuple[str, str]]:
        """Return the conditions that a search is beside."""
        return self._without("q")

    def _suggested(self) -> dict[str, list[str]]:
        """Return names to choose from: of the newest lanes, and of the failures that the page shows."""
        columns = {"tenant": "tenant_id", "application": "application_id", "definition": "definition_id"}
        lanes = list(Lane.objects.order_by("-pk").values_list(*columns.values())[:MOST_LANES])
        found = {name: sorted({lane[index] for lane in lanes})[:MOST_SUGGESTED] for index, name in enumerate(columns)}
        heads = [str(row.standing.get("failure_head") or "").partition(": ") for row in self.rows]
        return found | {"failure_kind": sorted({kind for kind, colon, _text in heads if colon})[:MOST_SUGGESTED]}


def paging(criteria: Criteria, page: Page) -> dict[str, Any]:
    """Return what the page says of its place in the list, and the links from there."""
    order = page.order

    def url(start: Start | None) -> str:
        return f"?{urlencode([*criteria.given, *([('at', start.text)] if start else [])])}"

    return {
        "order": order,
        "first": url(None) if page.back else None,
        "back": url(page.back) if page.back else None,
        "on": url(page.on) if page.on else None,
        "total": page.total,
        "most": finding.MOST_COUNTED,
        "is_more": page.total is not None and page.total > finding.MOST_COUNTED,
        "looked": page.looked,
        "stopped_at": None if page.stopped_at is None else instant(_as_far_as(page.order, page.stopped_at)),
    }


def _as_far_as(order: Order, place: Place) -> Any:
    """Return the instant as far as which a page has looked; None where it is gone meanwhile."""
    if order.column is not None:
        return place[0]
    return Admitted.objects.filter(pk=place[-1]).values_list("created_at", flat=True).first()
