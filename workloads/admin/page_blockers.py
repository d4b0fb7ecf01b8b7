"""Why a workload is not running, in the reader's language: a sentence for each code that `explain` gives."""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, ngettext

from workloads import authority
from workloads.admin.display import code, instant, listed, pairs, relative
from workloads.admin.page_timeline import deadline_names
from workloads.contract import Blocker
from workloads.errors import WorkloadError

MOST_LINKS: Final = 50
_MADE: Final = re.compile(r"workload_[0-9a-f]{24}")

logger = logging.getLogger("workloads.admin")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """One reason as it is shown. `more` is what the sentence does not say."""

    code: str
    sentence: str
    more: str = ""


def link(workload_id: str) -> SafeString:
    """Return a workload's id with the way to its page; what can be no id stands without."""
    if not _MADE.fullmatch(workload_id):
        return code(workload_id)
    url = reverse("admin:workloads_workload_change", args=[workload_id])
    return format_html('<a href="{}">{}</a>', url, code(workload_id))


def reasons(workload_id: str, now: dt.datetime) -> list[Reason] | None:
    """Return why the work does not run; None where its record can't be judged."""
    try:
        found = authority.explain(workload_id)
    except WorkloadError:
        # Pruned since the page began.
        return []
    except Exception:
        # A spoilt row is read by nobody; what is spoilt in it the page says elsewhere.
        logger.exception("%s can't be explained.", workload_id)
        return None
    return [reason(blocker, now) for blocker in found]


def reason(blocker: Blocker, now: dt.datetime) -> Reason:
    """Return a reason in the reader's language; where its code is not known, as the authority says it."""
    said = _SENTENCES.get(blocker.code)
    if said is not None:
        try:
            sentence, told = said(blocker.details, now)
        except (KeyError, TypeError, ValueError, OverflowError):
            # Another version's details.
            pass
        else:
            rest = {name: value for name, value in blocker.details.items() if name not in told and value is not None}
            return Reason(code=blocker.code, sentence=sentence, more=_more(rest))
    given = {name: value for name, value in blocker.details.items() if value is not None}
    return Reason(code=blocker.code, sentence=blocker.message, more=_more(given))


def _more(details: Mapping[str, Any]) -> str:
    shown = {name: value for name, value in details.items() if value is not False}
    dependencies = shown.pop("dependencies", None)
    parts: list[str] = [pairs(shown)] if shown else []
    if isinstance(dependencies, list):
        links = format_html_join("", "<li>{}</li>", ((link(str(each)),) for each in dependencies[:MOST_LINKS]))
        rest = len(dependencies) - MOST_LINKS
        more = ngettext("%(count)d more", "%(count)d more", rest) % {"count": rest} if rest > 0 else ""
        parts.append(format_html("<ul>{}</ul>{}", links, more))
    return format_html_join("", "{}", ((part,) for part in parts))


Told = tuple[str, set[str]]


def _at(details: Mapping[str, Any], name: str) -> dt.datetime:
    return dt.datetime.fromisoformat(details[name])


def _not_due(details: Mapping[str, Any], now: dt.datetime) -> Told:
    at = _at(details, "next_attempt_at")
    said = _("It is not due yet: its next attempt may begin {when}, at {at}.")
    return format_html(said, when=relative(at, now), at=instant(at)), {"next_attempt_at"}


def _unmet(details: Mapping[str, Any], now: dt.datetime) -> Told:
    count = len(details["dependencies"])
    said = ngettext(
        "It waits for %(count)d other workload, which is not in the state required:",
        "It waits for %(count)d other workloads, which are not in the states required:",
        count,
    )
    return said % {"count": count}, set()


def _no_worker(details: Mapping[str, Any], now: dt.datetime) -> Told:
    missing = details.get("missing")
    if missing:
        said = format_html(
            _("No worker seen of late has all that it needs. Nobody has: {names}."), names=listed(missing)
        )
    else:
        said = format_html("{}", _("No worker seen of late asks for such work and has all that it needs."))
    if details.get("since") is not None:
        when = relative(_at(details, "since"), now)
        said = format_html(_("{sentence} The last that could run it was seen {when}."), sentence=said, when=when)
    return said, {"missing", "since"}


def _paused(details: Mapping[str, Any], now: dt.datetime) -> Told:
    return _("Work of this kind is paused: none is handed out."), set()


def _limited(details: Mapping[str, Any], now: dt.datetime) -> Told:
    return _("As much work of this kind as is allowed at once is running."), set()


def _behind(details: Mapping[str, Any], now: dt.datetime) -> Told:
    count = details["count"]
    if details.get("more"):
        said = _("More than %(count)d other workloads go first: more urgent, or longer due.")
    else:
        said = ngettext(
            "%(count)d other workload goes first: more urgent, or longer due.",
            "%(count)d other workloads go first: more urgent, or longer due.",
            count,
        )
    return said % {"count": count}, {"count", "more"}


def _used_up(details: Mapping[str, Any], now: dt.datetime) -> Told:
    count = details["count"]
    said = ngettext(
        "Its %(count)d attempt is used up; a claim will dead-letter it.",
        "Its %(count)d attempts are used up; a claim will dead-letter it.",
        count,
    )
    return said % {"count": count}, {"count"}


def _parked(details: Mapping[str, Any], now: dt.datetime) -> Told:
    said = _("It rests since {since}, until an operator re-arms or cancels it.")
    sentence = format_html(said, since=instant(_at(details, "since")))
    if details.get("decision"):
        sentence = format_html(
            _("{sentence} It was decided by the rule {decision}."),
            sentence=sentence,
            decision=code(details["decision"]),
        )
    return sentence, {"since", "decision"}


def _claimed(details: Mapping[str, Any], now: dt.datetime) -> Told:
    return _by_worker(
        _("{worker} holds it; its lease ends {when}."), _("{worker} held it; its lease ended {when}."), details, now
    )


def _unconfirmed(details: Mapping[str, Any], now: dt.datetime) -> Told:
    said = _("{worker} was asked to stop and has not confirmed it; its lease ends {when}.")
    late = _("{worker} was asked to stop and has not confirmed it; its lease ended {when}.")
    return _by_worker(said, late, details, now)


def _by_worker(said: str, late: str, details: Mapping[str, Any], now: dt.datetime) -> Told:
    at = _at(details, "expires_at")
    sentence = format_html(said if at > now else late, worker=code(details["worker_id"]), when=relative(at, now))
    return sentence, {"worker_id", "expires_at"}


def _deadline(details: Mapping[str, Any], now: dt.datetime) -> Told:
    at = _at(details, "deadline_at")
    said = _("Its {deadline} passed {when}; the next pass or call times it out.")
    sentence = format_html(said, deadline=deadline_names()[details["deadline"]], when=relative(at, now))
    return sentence, {"deadline", "deadline_at"}


def _no_pass(details: Mapping[str, Any], now: dt.datetime) -> Told:
    command = code("manage.py workloads_pass")
    if details.get("since") is None:
        return format_html(_("It needs a pass to go on, and none has ever run: start {command}."), command=command), {
            "since"
        }
    said = _("It needs a pass to go on, and the last ran {when}: start {command}.")
    return format_html(said, when=relative(_at(details, "since"), now), command=command), {"since"}


_SENTENCES: Final[dict[str, Callable[[Mapping[str, Any], dt.datetime], Told]]] = {
    "not_due": _not_due,
    "dependencies_unmet": _unmet,
    "no_capable_worker_seen": _no_worker,
    "paused": _paused,
    "limited": _limited,
    "behind_others": _behind,
    "attempt_budget_used": _used_up,
    "parked": _parked,
    "claimed": _claimed,
    "cancellation_unconfirmed": _unconfirmed,
    "deadline_passed": _deadline,
    "pass_not_running": _no_pass,
}
