"""Pages by key: each begins where the one before it ended, so that page 10,000 costs what page 1 does."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Q
from django.db.models.query import QuerySet
from rest_framework.request import Request

from workloads.errors import WorkloadError, invalid
from workloads.lifecycle import arguments
from workloads.lifecycle.canonical import iso

PAGE_SIZE: Final = 50
MOST_ROWS: Final = 500
PARAMETERS: Final = frozenset({"cursor", "page_size"})
LONGEST_CURSOR: Final = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """Where a page begins: after, or before, the row with these values of the order's columns."""

    order: str
    is_backwards: bool
    values: tuple[Any, ...]

    def encode(self) -> str:
        """Return it as it stands in a link."""
        values = [iso(value) if isinstance(value, dt.datetime) else value for value in self.values]
        text = json.dumps([self.order, int(self.is_backwards), *values], separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str, order: Order) -> Cursor:
        """Return the cursor of a link; WORKLOAD_INVALID if this order made none such."""
        try:
            if len(text) > LONGEST_CURSOR:
                raise ValueError
            name, backwards, *values = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            if name != order.name or backwards not in (0, 1) or len(values) != len(order.readers):
                raise ValueError
            read = tuple(reader(value) for reader, value in zip(order.readers, values, strict=True))
        except (ValueError, TypeError):
            raise invalid("cursor", "is none that this list has given") from None
        return cls(order=order.name, is_backwards=bool(backwards), values=read)


def integer(value: Any) -> int:
    """Read an integer that a column can hold."""
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise ValueError
    return value


def instant(value: Any) -> dt.datetime:
    """Read an instant."""
    if not isinstance(value, str):
        raise TypeError
    try:
        return arguments.instant(dt.datetime.fromisoformat(value), "cursor")
    except WorkloadError:
        raise ValueError from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """An order of rows: by one column, and by the key among equals; or by the key alone."""

    name: str
    columns: tuple[str, ...]
    readers: tuple[Callable[[Any], Any], ...]
    is_descending: bool = False

    def page(
        self,
        request: Request,
        parts: Sequence[QuerySet[Any]],
        said: Callable[[Any], dict[str, Any]],
        read: Callable[[Any], QuerySet[Any]] = lambda rows: rows,
    ) -> dict[str, Any]:
        """Return one page of the rows, and links to the next and the previous.

        The rows come in parts, which may have some in common: each is read in its order, as far as a page may need.
        `read` says how: what is left out, what is brought along.
        """
        size = _page_size(request)
        given = request.query_params.get("cursor")
        cursor = None if given is None else Cursor.decode(given, self)
        is_backwards = cursor is not None and cursor.is_backwards
        if cursor is not None:
            parts = [rows.filter(self._beyond(cursor)) for rows in parts]
        found = self._first(parts, size + 1, read, falls=self.is_descending != is_backwards)
        has_more = len(found) > size
        found = found[:size]
        if is_backwards:
            found.reverse()
        has_next, has_previous = (True, has_more) if is_backwards else (has_more, cursor is not None)
        return {
            "next": self._link(request, found, -1, is_backwards=False) if has_next else None,
            "previous": self._link(request, found, 0, is_backwards=True) if has_previous else None,
            "results": [said(row) for row in found],
        }

    def _first(
        self, parts: Sequence[QuerySet[Any]], count: int, read: Callable[[Any], QuerySet[Any]], *, falls: bool
    ) -> list[Any]:
        """Return the first rows of all parts together."""
        ordering = [f"-{name}" if falls else name for name in self.columns]
        found: dict[Any, Any] = {}
        # One condition for all of them would have no index that keeps the order.
        for rows in parts:
            for row in read(rows.order_by(*ordering))[:count]:
                found.setdefault(row.pk, row)
        return sorted(found.values(), key=self._values, reverse=falls)[:count]

    def _values(self, row: Any) -> tuple[Any, ...]:
        return tuple(getattr(row, name) for name in self.columns)

    def _beyond(self, cursor: Cursor) -> Q:
        """Return the condition that a row stands after the cursor; written so that one index range answers it."""
        sign, not_beyond = ("lt", "gte") if self.is_descending != cursor.is_backwards else ("gt", "lte")
        *first, key = self.columns
        *value, last = cursor.values
        if not first:
            return Q(**{f"{key}__{sign}": last})
        # Said as what is left out, which is next to nothing: else PostgreSQL guesses that few rows follow, and sorts
        # them all.
        passed = Q(**{first[0]: value[0], f"{key}__{not_beyond}": last})
        return Q(**{f"{first[0]}__{sign}e": value[0]}) & ~passed

    def _link(self, request: Request, found: Sequence[Any], index: int, *, is_backwards: bool) -> str | None:
        if not found:
            return None
        cursor = Cursor(order=self.name, is_backwards=is_backwards, values=self._values(found[index]))
        query = request.query_params.copy()
        query["cursor"] = cursor.encode()
        return request.build_absolute_uri(f"{request.path}?{query.urlencode()}")


def _page_size(request: Request) -> int:
    given = request.query_params.get("page_size")
    if given is None:
        return PAGE_SIZE
    if not (given.isascii() and given.isdecimal() and 1 <= len(given) <= 4 and 1 <= int(given) <= MOST_ROWS):
        raise invalid("page_size", f"not from 1 to {MOST_ROWS}")
    return int(given)


BY_SEQUENCE: Final = Order(name="sequence", columns=("sequence",), readers=(integer,))
BY_NUMBER: Final = Order(name="number", columns=("number",), readers=(integer,))
BY_KEY: Final = Order(name="key", columns=("pk",), readers=(integer,))


def _orders() -> dict[str, Order]:
    read = {"created_at": instant, "finished_at": instant, "next_attempt_at": instant, "priority": integer}
    return {
        sign + column: Order(
            name=sign + column,
            columns=(column, "pk"),
            readers=(reader, integer),
            is_descending=bool(sign),
        )
        for column, reader in read.items()
        for sign in ("", "-")
    }


ORDERS: Final = _orders()
NEWEST_FIRST: Final = "-created_at"
