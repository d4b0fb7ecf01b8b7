"""How what people and machines wrote stands on a workload's page: no character of it hides, and none moves another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from workloads.admin.display import NOTHING, SHORT_CHARS, short
from workloads.admin.page_rows import Row

MOST_STORED: Final = 200

_BIDIRECTIONAL: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_HIDDEN: Final = (*(set(range(0x20)) - {9, 10, 13}), 0x7F, *range(0x80, 0xA0), *_BIDIRECTIONAL)

_NUMBERS: Final[Mapping[int, str]] = {point: f"[U+{point:04X}]" for point in _HIDDEN}
# In JSON such a character may stand as its escape: the same value.
_ESCAPES: Final[Mapping[int, str]] = {point: f"\\u{point:04x}" for point in _HIDDEN}


def visible(text: str) -> str:
    """Return the text with each control character, and each that turns text around, as its number."""
    return text.translate(_NUMBERS)


def visible_json(text: str) -> str:
    """Return JSON text, of the same value, without characters that can't be seen or that turn others around."""
    return text.translate(_ESCAPES)


def prose(text: str | None) -> str:
    """Return what somebody wrote: short as it is, longer text under its first line; in its own direction."""
    if not text:
        return NOTHING
    whole = visible(text)
    first = short(whole)
    if first == whole:
        return format_html('<div class="workloads-prose" dir="auto">{}</div>', whole)
    return format_html(
        '<div class="workloads-prose" dir="auto"><details><summary>{}</summary>'
        '<pre class="workloads-text" tabindex="0" dir="auto">{}</pre></details></div>',
        first,
        whole,
    )


def quoted(text: str) -> SafeString:
    """Return the words of a person, set off."""
    return format_html('<blockquote class="workloads-said" dir="auto">{}</blockquote>', visible(text))


def identifier(text: str) -> SafeString:
    """Return a name or id, which one click selects whole."""
    return format_html('<code class="workloads-code workloads-id">{}</code>', visible(text))


def listed_by(parameter: str, text: str, name: str, **others: str) -> SafeString:
    """Return a name with the way to the list of the workloads that have it, and these others."""
    if not text:
        return format_html("{}", NOTHING)
    url = f"{reverse('admin:workloads_workload_changelist')}?{urlencode({**others, parameter: text})}"
    label = _("List of workloads: %(name)s %(value)s") % {"name": name, "value": short(visible(text), 60)}
    return format_html(
        '{} <a class="workloads-alike" href="{}" aria-label="{}">{}</a>', identifier(text), url, label, _("List")
    )


def json_text(text: str) -> SafeString:
    """Return JSON text, indented already, as a block."""
    return format_html('<pre class="workloads-text" tabindex="0">{}</pre>', visible_json(text))


def opened(summary: str, content: Any) -> SafeString:
    """Return content under a summary, to be opened."""
    return format_html('<details class="workloads-fold"><summary>{}</summary>{}</details>', summary, content)


def spoilt(stored: str) -> SafeString:
    """Return the mark of a value that can't be right, with what is stored."""
    shown = visible(short(stored, min(MOST_STORED, SHORT_CHARS)))
    if not shown:
        return format_html('<strong class="workloads-spoilt">{}</strong>', _("spoilt"))
    return format_html('<strong class="workloads-spoilt">{}</strong> <code>{}</code>', _("spoilt"), shown)


def cell(row: Row | None, name: str, shown: Any) -> Any:
    """Return a value as shown; where its column is spoilt, say so in its place."""
    fault = row.faults.get(name) if row is not None else None
    return shown if fault is None else spoilt(fault.stored)
