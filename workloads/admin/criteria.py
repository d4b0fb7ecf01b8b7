"""Which workloads are meant: the parameters of the list's address, read once, for the list and for what acts on it."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from django.db.models import F, Q, Value
from django.db.models.functions import Left, Lower
from django.db.models.lookups import Contains, Exact
from django.http import QueryDict
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.text import get_text_list
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from workloads.contract import WorkloadState
from workloads.errors import WorkloadError
from workloads.lifecycle import arguments
from workloads.lifecycle.states import HELD, PARKED
from workloads.models import Workload, WorkloadQuerySet

S = WorkloadState
LONGEST_TEXT: Final = 200
STATES: Final[Mapping[str, tuple[str, ...]]] = {
    **{state.value: (state.value,) for state in WorkloadState},
    "parked": tuple(state.value for state in WorkloadState if state in PARKED),
    "held": tuple(state.value for state in WorkloadState if state in HELD),
}
COLUMNS: Final[Mapping[str, str]] = {
    "definition": "definition_id",
    "revision": "definition_revision",
    "tenant": "tenant_id",
    "application": "application_id",
    "worker": "worker_id",
    "admitted": "created_at",
    "finished": "finished_at",
    "due": "next_attempt_at",
    "started": "started_at",
}
RANGES: Final = ("admitted", "finished", "due", "started")
NAMES: Final = (
    "q",
    "state",
    "definition",
    "revision",
    "tenant",
    "application",
    "worker",
    "failure_kind",
    "failure",
    "blocked",
    "due",
    *(f"{name}_{end}" for name in RANGES for end in ("from", "to")),
)
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {"blocked": ("yes",), "due": ("now", "later")}
# What text in a failure is looked for beside: something that an index narrows, and a range of time.
NARROWING: Final = ("q", "state", "definition", "tenant", "application", "worker")
TIMES: Final = tuple(name for name in NAMES if name.endswith(("_from", "_to")))
# The page's own: where it begins, and what Django's admin adds to an address.
OF_THE_PAGE: Final = frozenset({"at", "p", "all", "o", "e", "_popup", "_to_field", "_changelist_filters"})

SENTENCES: Final[Mapping[str, str | Promise]] = {
    "q": gettext_lazy("The id or the idempotency key is “%(value)s”."),
    "state": gettext_lazy("The state is %(value)s."),
    "definition": gettext_lazy("The definition is “%(value)s”."),
    "revision": gettext_lazy("The definition’s revision is “%(value)s”."),
    "tenant": gettext_lazy("The tenant is “%(value)s”."),
    "application": gettext_lazy("The application is “%(value)s”."),
    "worker": gettext_lazy("It is held by the worker “%(value)s”."),
    "failure_kind": gettext_lazy("The last failure is of the kind “%(value)s”."),
    "failure": gettext_lazy("The last failure holds the words “%(value)s”."),
    "blocked=yes": gettext_lazy("It waits for other work."),
    "due=now": gettext_lazy("It may be claimed now: nothing that it depends on is missing, and it is due."),
    "due=later": gettext_lazy("It is scheduled: nothing that it depends on is missing, and it is not yet due."),
    "admitted_from": gettext_lazy("It was admitted no earlier than %(value)s."),
    "admitted_to": gettext_lazy("It was admitted before %(value)s."),
    "finished_from": gettext_lazy("It finished, or was parked, no earlier than %(value)s."),
    "finished_to": gettext_lazy("It finished, or was parked, before %(value)s."),
    "due_from": gettext_lazy("It waits, and is due no earlier than %(value)s."),
    "due_to": gettext_lazy("It waits, and is due before %(value)s."),
    "started_from": gettext_lazy("Its attempt started no earlier than %(value)s."),
    "started_to": gettext_lazy("Its attempt started before %(value)s."),
}

_MADE_ID: Final = re.compile(r"[0-9a-f]{32}")
_AGO: Final = re.compile(r"([0-9]{1,5})([smhd])")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class _Unreadable(Exception):
    """Why a parameter can't be read, for people."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Criteria:
    """A selection of workloads. All of its conditions hold together; without one, it is all work.

    `given` is what stands in the address under these names, read or not; `values` is what it was read as; `problems`
    says of each parameter that can't be read why. With a problem nothing is selected: the rest would select more than
    was asked for, and somebody may act on all that match.
    """

    given: tuple[tuple[str, str], ...]
    values: Mapping[str, Any]
    problems: Mapping[str, str]
    now: dt.datetime

    @classmethod
    def read(cls, address: QueryDict, *, now: dt.datetime | None = None) -> Criteria:
        """Return what the parameters of an address select. A parameter left empty is one not given.

        `now` is what times such as `24h`, that long ago, count from: unless given, the present.
        """
        now = now or timezone.now()
        given: list[tuple[str, str]] = []
        values: dict[str, Any] = {}
        problems: dict[str, str] = {}
        strangers = sorted(set(address) - set(NAMES) - OF_THE_PAGE)
        for name in (*NAMES, *strangers):
            texts = list(dict.fromkeys(text.strip() for text in address.getlist(name) if text.strip()))
            if not texts:
                continue
            if name == "definition" and len(texts) == 1 and not address.get("revision", "").strip():
                texts[0], at, revision = texts[0].partition("@")
                if at:
                    address = address.copy()
                    address["revision"] = revision
            given += ((name, text) for text in texts)
            try:
                values[name] = _read(name, texts, now)
            except _Unreadable as reason:
                problems[name] = str(reason)
        if "failure" in values and not (set(NARROWING) & values.keys() and set(TIMES) & values.keys()):
            problems["failure"] = _("Text is looked for only beside another filter and a time: add both.")
        return cls(given=tuple(given), values=values, problems=problems, now=now)

    @property
    def query(self) -> str:
        """The selection as an address has it. Read again, it is the same selection, problems included."""
        return urlencode(self.given)

    def pinned(self) -> Criteria:
        """Return the same selection with the instants that `24h`, `now` and the like mean, to be kept for later."""
        given = []
        for name, text in self.given:
            if name in TIMES and name not in self.problems:
                given.append((name, self.values[name].isoformat()))
            elif name == "due" and name not in self.problems and not {"due_from", "due_to"} & self.values.keys():
                given.append(("due_to" if text == "now" else "due_from", self.now.isoformat()))
            else:
                given.append((name, text))
        return Criteria.read(QueryDict(urlencode(given)), now=self.now)

    @property
    def states(self) -> tuple[str, ...]:
        """The states that the selection is of; none where it is of any."""
        return self.values.get("state", ())

    def conditions(self) -> dict[str, Q]:
        """Return what must hold, by parameter; a range's two ends are one condition."""
        found: dict[str, Q] = {}
        for name, value in self.values.items():
            if name in TIMES:
                name, _underscore, end = name.rpartition("_")
                condition = Q(**{f"{COLUMNS[name]}__{'gte' if end == 'from' else 'lt'}": value})
                if name == "due":
                    condition &= _WAITS
                name = f"{name}_range"
            elif name == "q":
                condition = _named(value)
            elif name == "state":
                condition = Q(state__in=value)
            elif name == "failure_kind":
                head = f"{value}: "
                condition = Q(Exact(Left(F("last_failure"), len(head)), head))
            elif name == "failure":
                # MariaDB compares byte for byte, `icontains` included.
                condition = Q(Contains(Lower("last_failure"), Lower(Value(value))))
            elif name == "blocked":
                condition = Q(state=S.READY.value) & ~Q(dependency_standing="met")
            elif name == "due":
                sign = "lte" if value == "now" else "gt"
                condition = _WAITS & Q(**{f"next_attempt_at__{sign}": self.now})
            else:
                condition = Q(**{COLUMNS[name]: value})
            found[name] = found[name] & condition if name in found else condition
        return found

    def rows(self) -> WorkloadQuerySet:
        """Return the workloads that are selected, in no order; none while there are problems."""
        rows: WorkloadQuerySet = Workload.objects.all()
        return rows.none() if self.problems else rows.filter(*self.conditions().values())

    @property
    def said(self) -> list[str]:
        """One sentence for each condition."""
        return list(self.sentences().values())

    def sentences(self) -> dict[str, str]:
        """Return one sentence for each condition, by parameter."""
        found = {}
        for name, value in self.values.items():
            if name in self.problems:
                continue
            key = f"{name}={value}" if name in CHOICES else name
            if name in TIMES:
                value = _when(dict(self.given)[name], value)
            elif name == "state":
                value = get_text_list(list(value))
            found[name] = str(SENTENCES[key]) % {"value": value}
        return found


_WAITS: Final = Q(state=S.READY.value, dependency_standing="met")


def _named(term: str) -> Q:
    """Return the condition that work has this id; if it can be none, that it has this idempotency key.

    The id of a claim or an attempt is looked for among what is held now: no index holds the others.
    """
    if term.startswith("workload_"):
        return Q(workload_id=term)
    if _MADE_ID.fullmatch(term):
        held = Workload.objects.filter(Q(claim_id=term) | Q(attempt_id=term), state__in=STATES["held"])
        # Asked now: as a condition beside the key's, it would have no index.
        if keys := list(held.values_list("pk", flat=True)[:2]):
            return Q(pk__in=keys)
    return Q(idempotency_key=term)


def _read(name: str, texts: list[str], now: dt.datetime) -> Any:
    """Return what a parameter's texts mean."""
    if name not in NAMES:
        raise _Unreadable(_("There is no such filter."))
    if name == "state":
        unknown = [text for text in texts if text not in STATES]
        if unknown:
            raise _Unreadable(_("There is no state “%(state)s”.") % {"state": unknown[0]})
        chosen = {state for text in texts for state in STATES[text]}
        return tuple(state.value for state in WorkloadState if state.value in chosen)
    if len(texts) > 1:
        raise _Unreadable(_("It is given more than once, and only one can hold."))
    text = texts[0]
    if name in CHOICES:
        if text not in CHOICES[name]:
            raise _Unreadable(_("It can be %(choices)s alone.") % {"choices": get_text_list(list(CHOICES[name]))})
        return text
    if name in TIMES:
        return _time(name, text, now)
    if name == "failure":
        if len(text) > LONGEST_TEXT or "\0" in text:
            raise _Unreadable(_("It is longer than %(most)d characters, or holds NUL.") % {"most": LONGEST_TEXT})
        return text
    if not arguments.is_identifier(text):
        raise _Unreadable(_("Nothing can have this name: it is too long, or holds control characters."))
    return text


def _time(name: str, text: str, now: dt.datetime) -> dt.datetime:
    """Return the instant that a text means: so long ago, or an instant, or a date, whose end it is as an upper end."""
    try:
        ago = _AGO.fullmatch(text)
        at = now - dt.timedelta(seconds=int(ago[1]) * _SECONDS[ago[2]]) if ago else _instant(text)
        if _DATE.fullmatch(text) and name.endswith("_to"):
            at += dt.timedelta(days=1)
        return arguments.instant(at if timezone.is_aware(at) else timezone.make_aware(at), name)
    except (ValueError, OverflowError, WorkloadError):
        raise _Unreadable(
            _(
                "It is neither a date as 2026-01-31, nor an instant as 2026-01-31T15:30 or 2026-01-31T15:30:00+01:00 "
                "in the years 2000 to 2899, nor a time that has passed as 10m, 24h or 7d."
            )
        ) from None


def _instant(text: str) -> dt.datetime:
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        # A plus sign that was not escaped has become a space.
        return dt.datetime.fromisoformat("+".join(text.rsplit(" ", 1)))


def _when(text: str, at: dt.datetime) -> str:
    local = timezone.localtime(at).isoformat(sep=" ", timespec="seconds")
    ago = _AGO.fullmatch(text)
    if ago is None:
        return local
    count = int(ago[1])
    return _ago(count, ago[2]) % {"count": count, "at": local}


def _ago(count: int, unit: str) -> str:
    if unit == "s":
        return ngettext("%(count)d second ago (%(at)s)", "%(count)d seconds ago (%(at)s)", count)
    if unit == "m":
        return ngettext("%(count)d minute ago (%(at)s)", "%(count)d minutes ago (%(at)s)", count)
    if unit == "h":
        return ngettext("%(count)d hour ago (%(at)s)", "%(count)d hours ago (%(at)s)", count)
    return ngettext("%(count)d day ago (%(at)s)", "%(count)d days ago (%(at)s)", count)
