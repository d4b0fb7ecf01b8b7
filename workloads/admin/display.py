"""How single values look in the admin: states, instants, JSON, long text. All of it escaped."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.timesince import timesince, timeuntil
from django.utils.translation import gettext as _, npgettext_lazy

from workloads.admin.zones import offset
from workloads.contract import WorkloadState

NOTHING: Final = "–"
SHORT_CHARS: Final = 160

S = WorkloadState
TONES: Final[Mapping[str, str]] = {
    S.READY: "waiting",
    S.CLAIMED: "active",
    S.RUNNING: "active",
    S.CHECKPOINTED: "active",
    S.SUCCEEDED: "good",
    S.CANCELLATION_REQUESTED: "warning",
    S.CANCELLED: "quiet",
    S.DEAD_LETTER: "bad",
    S.TIMED_OUT: "bad",
    S.FAILED: "bad",
    "WORKER_LOST": "warning",
    "RELEASED": "quiet",
}


# After "in" and before "ago" many languages say "3 days" otherwise than alone.
UNITS: Final[dict[str, Any]] = {
    "year": npgettext_lazy("in or ago", "%(num)d year", "%(num)d years", "num"),
    "month": npgettext_lazy("in or ago", "%(num)d month", "%(num)d months", "num"),
    "week": npgettext_lazy("in or ago", "%(num)d week", "%(num)d weeks", "num"),
    "day": npgettext_lazy("in or ago", "%(num)d day", "%(num)d days", "num"),
    "hour": npgettext_lazy("in or ago", "%(num)d hour", "%(num)d hours", "num"),
    "minute": npgettext_lazy("in or ago", "%(num)d minute", "%(num)d minutes", "num"),
}


def word(state: str) -> SafeString:
    """Return a state or status as the contract's word, in its colour."""
    # A long word may break at its underscores.
    parts = format_html_join(mark_safe("_<wbr>"), "{}", ([part] for part in state.split("_")))
    tone = TONES.get(state, "quiet")
    return format_html('<span class="workloads-word workloads-{}" data-state="{}">{}</span>', tone, state, parts)


def code(text: str) -> SafeString:
    """Return an identifier in type that tells its characters apart."""
    return format_html('<code class="workloads-code">{}</code>', text)


def instant(at: dt.datetime | None) -> str:
    """Return an instant in the reader's time zone, to the millisecond, with its offset from UTC; "–" for none.

    `datetime` holds it exactly, in UTC; on hovering, it shows to the microsecond. The zone is the one in use where this
    is called: that of `zones.in_zone` on the admin's pages.
    """
    if at is None:
        return NOTHING
    local = _local(at)
    text = f"{local:%Y-%m-%d %H:%M:%S}.{local.microsecond // 1000:03d} {offset(local)}"
    return _time(at, local, text)


def clock_time(at: dt.datetime) -> str:
    """Return the time of day in the reader's time zone, with its offset from UTC."""
    local = _local(at)
    return f"{local:%H:%M:%S} {offset(local)}"


def relative(at: dt.datetime, now: dt.datetime, units: int = 2) -> str:
    """Return how far `at` lies from `now`, in its greatest units; the instant shows on hovering, as in `instant`."""
    if abs(at - now) < dt.timedelta(minutes=1):
        seconds = abs(int((at - now).total_seconds()))
        said = _("%(count)d s") % {"count": seconds}
    else:
        measure = timeuntil if at > now else timesince
        said = measure(at, now, time_strings=UNITS, depth=units)
    text = _("in %(time)s") % {"time": said} if at > now else _("%(time)s ago") % {"time": said}
    return _time(at, _local(at), text)


def _local(at: dt.datetime) -> dt.datetime:
    """Return the instant in the reader's zone; in UTC where that zone's year would be none."""
    try:
        return timezone.localtime(at)
    except OverflowError:
        return at.astimezone(dt.UTC)


def _time(at: dt.datetime, local: dt.datetime, text: str) -> SafeString:
    exact = f"{at.astimezone(dt.UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
    title = f"{local:%Y-%m-%d %H:%M:%S.%f} {offset(local)}"
    return format_html('<time datetime="{}" title="{}">{}</time>', exact, title, text)


def short(text: str, most: int = SHORT_CHARS) -> str:
    """Return the text's first line, cut to `most` characters, its mark included."""
    line = text.split("\n", 1)[0]
    if line == text and len(text) <= most:
        return text
    return f"{line[: most - 1].rstrip()}…"


def folded(text: str | None) -> str:
    """Return short text as it is, and longer text under its first line, to be opened."""
    if not text:
        return NOTHING
    head = short(text)
    if head == text:
        return text
    whole = format_html('<pre class="workloads-text" tabindex="0">{}</pre>', text)
    return format_html("<details><summary>{}</summary>{}</details>", head, whole)


def pairs(mapping: Mapping[str, Any]) -> str:
    """Return names with their values, one under another."""
    if not mapping:
        return NOTHING
    rows = ((name, _detail(value)) for name, value in mapping.items())
    return format_html('<dl class="workloads-pairs">{}</dl>', format_html_join("", "<dt>{}</dt><dd>{}</dd>", rows))


def _detail(value: Any) -> Any:
    if isinstance(value, SafeString):
        return value
    if isinstance(value, list):
        return listed(value)
    return folded(value) if isinstance(value, str) else json.dumps(value)


def listed(values: Iterable[str], most: int = 20) -> str:
    """Return names, sorted and separated; beyond `most`, how many more there are."""
    names = sorted(values)
    if not names:
        return NOTHING
    said = ", ".join(names[:most])
    if len(names) > most:
        return _("%(names)s and %(count)d more") % {"names": said, "count": len(names) - most}
    return said
