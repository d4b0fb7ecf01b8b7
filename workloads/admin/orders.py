"""The orders that a list may have, and where a page of one begins."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Q, QuerySet
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_START: Final = re.compile(r"([a-z]+)-(on|back)(?:-([0-9]{1,17}))?-([0-9]{1,18})", re.ASCII)

Place = tuple[Any, ...]
"""Where a row stands in an order: the value of the order's column, if it has one, and the key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """An order of rows: by a column and the key among equals, or by the key alone. It names its pages' links."""

    name: str
    column: str | None
    is_descending: bool
    said: str | Promise
    first: str | Promise
    back: str | Promise
    on: str | Promise

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column, "pk") if self.column else ("pk",)

    def sorted(self, rows: QuerySet[Any], *, falls: bool, lead: tuple[str, ...] = ()) -> QuerySet[Any]:
        """Return the rows in this order, or in its opposite. `lead` are columns that are the same in all of them."""
        return rows.order_by(*(f"-{name}" if falls else name for name in (*lead, *self.columns)))

    def beyond(self, place: Place, *, falls: bool, is_included: bool = False) -> Q:
        """Return the condition that a row comes after a place where values fall, or rise; as one range of an index."""
        *value, key = place
        after, before = ("lt", "gt") if falls else ("gt", "lt")
        if not value:
            return Q(**{f"pk__{after}{'e' if is_included else ''}": key})
        # Said as what is left out, which is next to nothing: else PostgreSQL guesses that few rows follow, and sorts.
        passed = Q(**{self.columns[0]: value[0], f"pk__{before}{'' if is_included else 'e'}": key})
        return Q(**{f"{self.columns[0]}__{after}e": value[0]}) & ~passed


NEWEST: Final = {
    "said": gettext_lazy("Those admitted last come first."),
    "first": gettext_lazy("Newest"),
    "back": gettext_lazy("Newer"),
    "on": gettext_lazy("Older"),
}
BY_KEY: Final = Order(name="key", column=None, is_descending=True, **NEWEST)
BY_ADMISSION: Final = Order(name="admitted", column="created_at", is_descending=True, **NEWEST)
BY_END: Final = Order(
    name="finished",
    column="finished_at",
    is_descending=True,
    said=gettext_lazy("Those that finished, or were parked, last come first."),
    first=gettext_lazy("Latest"),
    back=gettext_lazy("Later"),
    on=gettext_lazy("Earlier"),
)
BY_DUE: Final = Order(
    name="due",
    column="next_attempt_at",
    is_descending=False,
    said=gettext_lazy("Those due first come first."),
    first=gettext_lazy("First due"),
    back=gettext_lazy("Due earlier"),
    on=gettext_lazy("Due later"),
)


ORDERS: Final = {order.name: order for order in (BY_KEY, BY_ADMISSION, BY_END, BY_DUE)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Where a page begins: after a place, in the order or against it."""

    order: str
    is_backwards: bool
    place: Place

    @property
    def text(self) -> str:
        """It, as it stands in a link."""
        *value, key = self.place
        numbers = [(at - _EPOCH) // dt.timedelta(microseconds=1) for at in value]
        return "-".join(map(str, (self.order, "back" if self.is_backwards else "on", *numbers, key)))

    @classmethod
    def read(cls, text: str) -> Start | None:
        """Return what a link says; None where no list has made it."""
        found = _START.fullmatch(text)
        if found is None or found[1] not in ORDERS or (found[3] is None) is not (ORDERS[found[1]].column is None):
            return None
        value = [] if found[3] is None else [_EPOCH + dt.timedelta(microseconds=int(found[3]))]
        return cls(order=found[1], is_backwards=found[2] == "back", place=(*value, int(found[4])))
