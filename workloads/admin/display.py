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
from django.utils.translation import gettext as _

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
    """Return an instant in the site's time zone, to the millisecond; the exact one shows on hovering."""
    if at is None:
        return NOTHING
    local = timezone.localtime(at)
    text = f"{local:%Y-%m-%d %H:%M:%S}.{local.microsecond // 1000:03d}"
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), local.isoformat(), text)


def relative(at: dt.datetime, now: dt.datetime, units: int = 2) -> str:
    """Return how far `at` lies from `now`, in its greatest units; the exact instant shows on hovering."""
    if abs(at - now) < dt.timedelta(minutes=1):
        seconds = abs(int((at - now).total_seconds()))
        said = _("%(count)d s") % {"count": seconds}
    else:
        said = timeuntil(at, now, depth=units) if at > now else timesince(at, now, depth=units)
    text = _("in %(time)s") % {"time": said} if at > now else _("%(time)s ago") % {"time": said}
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), timezone.localtime(at), text)


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
    return format_html('<details><summary>{}</summary><pre class="workloads-text">{}</pre></details>', head, text)


def pretty(value: Any) -> SafeString:
    """Return a JSON value, indented."""
    text = json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True)
    return format_html('<pre class="workloads-text" tabindex="0">{}</pre>', text)


def pretty_head(text: str, most: int) -> SafeString:
    """Return JSON text indented if it has at most `most` characters, and else its beginning."""
    if len(text) <= most:
        return pretty(json.loads(text))
    note = _("cut: the record holds more")
    return format_html('<pre class="workloads-text" tabindex="0">{}…</pre><em>{}</em>', text[:most], note)


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
