"""What a workload waits for, and what waits for it: bounded numbers of both, each with how it stands."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from django.utils.html import format_html
from django.utils.translation import gettext as _

from workloads.admin.display import word
from workloads.admin.page_blockers import link
from workloads.admin.page_record import Record
from workloads.admin.page_rows import Row, read
from workloads.admin.page_table import Table
from workloads.admin.page_text import cell, spoilt
from workloads.models import Admitted, Dependency, Tombstone, Workload

MOST_RELATED: Final = 50
MOST_COUNTED: Final = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class _Other:
    """Another workload as it stands; `state` is None where its row is missing."""

    pk: int
    workload_id: str
    place: tuple[str, str]
    state: str | None


def tables(record: Record) -> list[Table]:
    """Return both sides, as far as there are any."""
    using = record.workload._state.db
    rows = Dependency.objects.using(using)
    place = (record.workload.tenant_id, record.workload.application_id)
    sides = [
        (_depends_on, rows.filter(dependent=record.pk).order_by("depends_on")),
        # In no order: the index has none beside the name, and a million rows would be sorted for fifty.
        (_dependents, rows.filter(depends_on=record.workload.workload_id).order_by()),
    ]
    found = []
    for make, side in sides:
        listed = read(side[: MOST_RELATED + 1], ("dependent_id", "depends_on", "required_state", "standing"))
        if listed:
            count = len(listed)
            if count > MOST_RELATED:
                count = side.values("pk")[: MOST_COUNTED + 1].count()
            found.append(make(using, listed[:MOST_RELATED], place, _note(count)))
    return found


def _note(count: int) -> str:
    if count > MOST_COUNTED:
        return _("%(shown)d of more than %(count)d are shown.") % {"shown": MOST_RELATED, "count": MOST_COUNTED}
    if count > MOST_RELATED:
        return _("%(shown)d of %(count)d are shown.") % {"shown": MOST_RELATED, "count": count}
    return ""


def _depends_on(using: str | None, rows: list[Row], place: tuple[str, str], note: str) -> Table:
    ids = {row.text("depends_on") for row in rows}
    found = {other.workload_id: other for other in _others(using, workload_id__in=ids)}
    pruned = dict(
        Tombstone.objects.using(using)
        .filter(workload_id__in=ids - found.keys(), tenant_id=place[0], application_id=place[1])
        .values_list("workload_id", "state")
    )
    return Table(
        anchor="dependencies",
        title=_("Depends on"),
        headings=[_("Workload"), _("State"), _("Required state"), _("Standing")],
        rows=[
            [
                cell(row, "depends_on", link(row.text("depends_on"))),
                _state(found.get(row.text("depends_on")), place, pruned.get(row.text("depends_on"))),
                cell(row, "required_state", word(row.text("required_state"))),
                cell(row, "standing", _standing(row.text("standing"))),
            ]
            for row in rows
        ],
        note=note,
    )


def _dependents(using: str | None, rows: list[Row], place: tuple[str, str], note: str) -> Table:
    keys = {row["dependent_id"] for row in rows}
    found = {other.pk: other for other in _others(using, pk__in=keys)}
    return Table(
        anchor="dependents",
        title=_("Waits for this"),
        headings=[_("Workload"), _("State"), _("Required state of this"), _("Standing")],
        rows=[
            [
                link(other.workload_id) if (other := found.get(row["dependent_id"])) else f"#{row['dependent_id']}",
                _state(other, place, None) if other else spoilt(""),
                cell(row, "required_state", word(row.text("required_state"))),
                cell(row, "standing", _standing(row.text("standing"))),
            ]
            for row in rows
        ],
        note=note,
    )


def _others(using: str | None, **wanted: Collection[Any]) -> list[_Other]:
    names = ("id", "workload_id", "tenant_id", "application_id")
    admitted = read(Admitted.objects.using(using).filter(**wanted), names)
    keys = {row["id"] for row in admitted}
    if "pk__in" in wanted:
        keys |= set(wanted["pk__in"])
    standing = read(Workload.objects.using(using).filter(pk__in=keys).order_by(), ("admitted_id", "state"))
    states = {row["admitted_id"]: row.text("state") for row in standing}
    return [
        _Other(
            pk=row["id"],
            workload_id=row.text("workload_id"),
            place=(row.text("tenant_id"), row.text("application_id")),
            state=states.get(row["id"]),
        )
        for row in admitted
    ]


def _state(other: _Other | None, place: tuple[str, str], pruned: str | None) -> Any:
    if other is None:
        if pruned is not None:
            return format_html("{} {}", word(pruned), _("pruned since"))
        return _("There is none under this id.")
    if other.state is None:
        return spoilt("")
    if other.place != place:
        return format_html("{} {}", word(other.state), _("of another application: it does not count"))
    return word(other.state)


def _standing(standing: str) -> str:
    names = {
        "met": _("as required"),
        "waiting": _("waited for"),
        "missing": _("not admitted yet"),
        "unmeetable": _("can't be met any more"),
    }
    return names.get(standing, standing)
