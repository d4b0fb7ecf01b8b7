"""The page of workers: who was seen how long ago, what each holds, takes and fails."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import avoid_wrapping, format_html, format_html_join
from django.utils.translation import gettext as _

from workloads import authority
from workloads.admin.base import ReadingAdmin
from workloads.admin.display import NOTHING, code, instant, relative, short
from workloads.admin.worker_rows import (
    MOST_EVENTS,
    Held,
    Work,
    after,
    covers,
    latest,
    mark_of,
    read_held,
    read_shares,
    seen_workers,
    unseen,
)
from workloads.lifecycle.signs import WORKER_IS_GONE
from workloads.models import SeenWorker

LATE: Final = dt.timedelta(minutes=1)
ROWS_A_PAGE: Final = 50
MOST_COUNTED: Final = 10_000
SHOWN_NAMES: Final = 3


@dataclass(frozen=True, kw_only=True)
class Line:
    """One worker as the page shows it. Values are text, which the template escapes, or markup that is escaped."""

    row: SeenWorker
    now: dt.datetime
    work: Work
    link: str | None

    @cached_property
    def held(self) -> list[Held]:
        """What it holds in the place for which it asks."""
        return [held for held in self.work.held.get(self.row.worker_id, ()) if covers(self.row, held.place)]

    @property
    def standing(self) -> str:
        """Whether it was seen of late, as a word in its colour."""
        age = self.now - self.seen_at
        if age < LATE:
            return tell("good", _("present"))
        if age < WORKER_IS_GONE:
            return tell("warning", _("late"))
        return tell("bad", _("gone with work")) if self.held else tell("quiet", _("gone"))

    @property
    def name(self) -> str:
        """Its id."""
        return code(self.row.worker_id)

    @property
    def kind(self) -> str:
        """How it claims."""
        return _("over HTTP") if self.row.is_remote else _("in the site’s own code")

    @property
    def place(self) -> str:
        """For whose work it asks."""
        tenant_id, application_id = self.row.tenant_id, self.row.application_id
        if tenant_id is None and application_id is None:
            return _("for all tenants")
        if application_id is None:
            return _("for all of the tenant %(tenant)s") % {"tenant": tenant_id}
        if tenant_id is None:
            return _("for the application %(application)s of all tenants") % {"application": application_id}
        said = _("for the application %(application)s of the tenant %(tenant)s")
        return said % {"application": application_id, "tenant": tenant_id}

    @property
    def incarnation(self) -> str:
        """What tells it from one before it of the same name."""
        return code(self.row.incarnation) if self.row.incarnation else ""

    @property
    def seen_at(self) -> dt.datetime:
        """When it was last seen: a claim that it holds tells that too."""
        signs = (at for held in self.held for at in (held.claimed_at, held.heartbeat_at))
        return latest(*signs, self.row.seen_at) or self.row.seen_at

    @property
    def seen(self) -> str:
        """How long ago it was seen."""
        return self._ago(self.seen_at)

    @property
    def asked(self) -> str:
        """How long ago it asked for work."""
        return self._ago(self.row.asked_at)

    @property
    def claimed(self) -> str:
        """How long ago it was given work."""
        return self._ago(latest(self.row.claimed_at, *(held.claimed_at for held in self.held)))

    @property
    def beat(self) -> str:
        """How long ago it kept a lease."""
        return self._ago(latest(self.row.heartbeat_at, *(held.heartbeat_at for held in self.held)))

    def _ago(self, at: dt.datetime | None) -> str:
        return NOTHING if at is None else relative(at, self.now, 1)

    @property
    def holds(self) -> str:
        """How many claims it holds, with a link to them."""
        return say_held(sum(held.count for held in self.held), self.work.held_is_cut, self.link)

    @property
    def failed(self) -> str:
        """How many of its recent attempts ended badly."""
        shares = [share for share in self.work.shares.get(self.row.worker_id, ()) if covers(self.row, share.place)]
        begun, failed = sum(share.begun for share in shares), sum(share.failed for share in shares)
        if not begun:
            return NOTHING
        values = {"failed": failed, "begun": begun, "percent": round(100 * failed / begun)}
        # No line ends within a figure.
        return avoid_wrapping(_("%(failed)d of %(begun)d (%(percent)d %%)") % values)

    @property
    def definitions(self) -> str:
        """Which work it asks for."""
        if self.row.definitions_text is None:  # type: ignore[attr-defined]  # annotated by `seen_workers`
            return _("all")
        return names_of(self.row.definitions_text)  # type: ignore[attr-defined]  # as above

    @property
    def capabilities(self) -> str:
        """What it can."""
        return names_of(self.row.capabilities_text)  # type: ignore[attr-defined]  # annotated by `seen_workers`


def tell(tone: str, word: str) -> str:
    """Return a word in a colour."""
    return format_html('<span class="workloads-word workloads-{}">{}</span>', tone, word)


def say_held(count: int, is_cut: bool, link: str | None) -> str:
    """Return how many claims are held, linked to the list of them."""
    said = _("at least %(count)d") % {"count": count} if is_cut else str(count)
    return format_html('<a href="{}">{}</a>', link, said) if link and (count or is_cut) else said


def names_of(text: str) -> str:
    """Return the names of a stored set: the first few, and the rest to be opened."""
    try:
        names = sorted(str(name) for name in json.loads(text))
    except (ValueError, TypeError):
        return format_html("{} {}", tell("bad", _("unreadable")), code(short(text, 80)))
    if not names:
        return _("none")
    if len(names) <= SHOWN_NAMES:
        return ", ".join(names)
    head = _("%(names)s and %(count)d more") % {
        "names": ", ".join(names[:SHOWN_NAMES]),
        "count": len(names) - SHOWN_NAMES,
    }
    rest = format_html_join("", "<li>{}</li>", ([name] for name in names))
    return format_html('<details><summary>{}</summary><ul class="workloads-names">{}</ul></details>', head, rest)


def counts(now: dt.datetime) -> list[tuple[str, str]]:
    """Return how many workers are how late, each as a word and a sentence. Counting stops at 10,000."""
    rows = SeenWorker.objects.order_by()
    parts = (
        ("good", _("present"), _("seen within a minute: %(count)s"), rows.filter(seen_at__gt=now - LATE)),
        (
            "warning",
            _("late"),
            _("not seen for a minute: %(count)s"),
            rows.filter(seen_at__gt=now - WORKER_IS_GONE, seen_at__lte=now - LATE),
        ),
        ("quiet", _("gone"), _("not seen for five minutes: %(count)s"), rows.filter(seen_at__lte=now - WORKER_IS_GONE)),
    )
    return [(tell(tone, word), said % {"count": _capped(found)}) for tone, word, said, found in parts]


def _capped(rows: QuerySet[SeenWorker]) -> str:
    count = rows[: MOST_COUNTED + 1].count()
    return _("more than %(count)d") % {"count": MOST_COUNTED} if count > MOST_COUNTED else str(count)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unseen:
    """A name that holds claims and stands in no row."""

    name: str
    holds: str
    claimed: str
    beat: str


@admin.register(SeenWorker)
class WorkersAdmin(ReadingAdmin):
    """Which workers there are. Whoever may view them may look, and nobody may do anything to them here."""

    class Media:
        css = {"all": ("workloads/admin.css", "workloads/workers.css")}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request) or request.method not in {"GET", "HEAD"}:
            raise PermissionDenied
        now = authority.read_clock()
        sought = request.GET.get("q", "").strip().replace("\0", "")
        rows = seen_workers()
        if sought:
            rows = rows.filter(worker_id__startswith=sought)
        found = list(after(rows, request.GET.get("after", ""))[: ROWS_A_PAGE + 1])
        shown = found[:ROWS_A_PAGE]
        work = Work()
        work.held, work.held_is_cut = read_held({row.worker_id for row in shown})
        work.shares, work.shares_since = read_shares(now)
        is_first = "after" not in request.GET and not sought
        others, others_are_cut = self._unseen(request, now) if is_first else ([], False)
        following = {"q": sought, "after": mark_of(shown[-1])} if len(found) > ROWS_A_PAGE else None
        context = {
            "title": _("Workers"),
            "lines": [self._line(request, row, now, work) for row in shown],
            "counts": counts(now),
            "sought": sought,
            "is_first": is_first,
            "next_query": urlencode(following) if following else None,
            "most_events": MOST_EVENTS,
            "shares_since": instant(work.shares_since) if work.shares_since else None,
            "others": others,
            "others_are_cut": others_are_cut,
        }
        return self.render(request, "workers", context | (extra_context or {}))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        # A worker has no page of its own: its line says all.
        if not self.has_view_permission(request):
            raise PermissionDenied
        keys = SeenWorker.objects.filter(pk=object_id) if object_id.isdecimal() and len(object_id) < 19 else None
        name = keys.values_list("worker_id", flat=True).first() if keys is not None else None
        address = reverse("admin:workloads_seenworker_changelist", current_app=self.admin_site.name)
        return HttpResponseRedirect(f"{address}?{urlencode({'q': name})}" if name else address)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return self.change_view(request, object_id)

    def _line(self, request: HttpRequest, row: SeenWorker, now: dt.datetime, work: Work) -> Line:
        return Line(row=row, now=now, work=work, link=self._link(request, row.worker_id, row))

    def _link(self, request: HttpRequest, name: str, row: SeenWorker | None = None) -> str | None:
        """Return the address of the list of what a worker holds, for whoever may see that."""
        if not request.user.has_perm(f"{self.opts.app_label}.view_workload"):
            return None
        named = {"worker": name}
        if row is not None:
            named |= {"tenant": row.tenant_id or "", "application": row.application_id or ""}
        address = reverse("admin:workloads_workload_changelist", current_app=self.admin_site.name)
        return f"{address}?{urlencode({key: value for key, value in named.items() if value})}"

    def _unseen(self, request: HttpRequest, now: dt.datetime) -> tuple[list[Unseen], bool]:
        names, is_cut = unseen()
        held, held_is_cut = read_held(names) if names else ({}, False)

        def ago(instants: Iterable[dt.datetime | None]) -> str:
            at = latest(*instants)
            return NOTHING if at is None else relative(at, now, 1)

        def lines() -> Iterator[Unseen]:
            for name in names:
                places: Sequence[Held] = held.get(name, ())
                yield Unseen(
                    name=code(name),
                    holds=say_held(sum(h.count for h in places), held_is_cut, self._link(request, name)),
                    claimed=ago(h.claimed_at for h in places),
                    beat=ago(h.heartbeat_at for h in places),
                )

        return list(lines()), is_cut
