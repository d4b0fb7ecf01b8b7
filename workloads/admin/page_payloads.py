"""Payloads: input, output, artifacts and checkpoint states. Only those who have the right for it read them."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from workloads.admin import page_json
from workloads.admin.display import NOTHING, instant
from workloads.admin.page_record import MOST_PAYLOAD_CHARS, Record
from workloads.admin.page_rows import Row, read
from workloads.admin.page_text import cell, identifier, json_text, opened, spoilt
from workloads.models import Admitted, Checkpoint, Result

RIGHT: Final = "workloads.view_payload"
SHOWN_CHARS: Final = 4_000
OPEN_CHARS: Final = 600
_LARGEST: Final = 2**31 - 1


def may_read(request: HttpRequest) -> bool:
    """Whether this person may read payloads."""
    return request.user.has_perm(RIGHT)


def withheld() -> str:
    """Return what those are told who may not read payloads."""
    return _("It is not shown: reading inputs, outputs and checkpoints needs a right of its own, view_payload.")


def inline(record: Record, what: str, row: Row | None, name: str, most: int = MOST_PAYLOAD_CHARS) -> SafeString:
    """Return a payload for the page: folded where it is long; where it is longer, cut, with the way to all of it."""
    if not record.reads_payloads:
        return format_html('<p class="workloads-withheld">{}</p>', withheld())
    if row is None:
        return spoilt("")
    if name in row.faults:
        return spoilt(row.faults[name].stored)
    text = page_json.head(row.text(name), most=most, shown=min(most, SHOWN_CHARS))
    url = reverse("admin:workloads_workload_payload", args=[record.pk, what])
    if text.fault:
        return format_html(
            '{}<p class="workloads-note">{}</p>{}',
            spoilt(""),
            _("It is no JSON: %(fault)s") % {"fault": text.fault},
            opened(_("What is stored"), json_text(text.shown)),
        )
    if text.is_cut:
        said = _("This is its beginning.")
        more = format_html('<p class="workloads-note">{} <a href="{}">{}</a></p>', said, url, _("Show the whole"))
        return opened(
            _("Its beginning; the whole is on a page of its own"), format_html("{}{}", json_text(text.shown), more)
        )
    if len(text.shown) <= OPEN_CHARS:
        return json_text(text.shown)
    return opened(_("%(size)d bytes") % {"size": text.size}, json_text(text.shown))


def result(record: Record) -> list[tuple[str, Any]]:
    """Return the result by name; empty while there is none."""
    row = record.result
    if row is None:
        return []

    def shown(name: str, label: str) -> tuple[str, Any]:
        return label, cell(row, name, identifier(row.text(name)))

    facts = [
        (_("Output"), inline(record, "output", row, "output")),
        (
            _("Artifacts"),
            NOTHING if row.values.get("artifacts") == "[]" else inline(record, "artifacts", row, "artifacts"),
        ),
        shown("result_id", _("Result id")),
        shown("attempt_id", _("Attempt")),
        shown("produced_by", _("Produced by")),
        shown("claim_id", _("Claim")),
        shown("fencing_token", _("Fencing token")),
        shown("schema_version", _("Schema version")),
        (_("At"), cell(row, "at", instant(row.instant("at")))),
    ]
    return [*facts, shown("output_hash", _("Output's hash"))] if record.reads_payloads else facts


def read_whole(rows: QuerySet[Any], key: int, what: str) -> str | None:
    """Return the stored text of a payload of one of `rows`; None where there is none of this name."""
    kind, _slash, number = what.partition("/")
    if kind not in ("input", "output", "artifacts", "checkpoints") or not rows.filter(pk=key).exists():
        return None
    found: list[Row] = []
    # To the longest there may be: as a head, so that nothing decodes it.
    if kind == "checkpoints":
        if number.isascii() and number.isdigit() and len(number) < 10:
            states = Checkpoint.objects.using(rows.db).filter(record=key, sequence=int(number))
            found = read(states, (), {"state": _LARGEST})
        return found[0].text("state") if found else None
    if number:
        return None
    model_rows: QuerySet[Any]
    if kind == "input":
        model_rows = Admitted.objects.using(rows.db).filter(pk=key)
    else:
        model_rows = Result.objects.using(rows.db).filter(record=key)
    found = read(model_rows, (), {kind: _LARGEST})
    return found[0].text(kind) if found else None
