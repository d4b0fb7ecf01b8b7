"""A table of a workload's page, as its template shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One part of the page. A cell is text, which the template escapes, or markup that is escaped already.

    `keys` name the rows, so that an address may end in `#attempt-3`.
    """

    anchor: str
    title: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    keys: Sequence[str] = ()
    note: str = ""
    empty: str = ""

    @property
    def labelled(self) -> list[tuple[str, list[tuple[str, Any]]]]:
        """The rows, each with its name and each cell with its column's heading."""
        keys = self.keys or [""] * len(self.rows)
        cells = [list(zip(self.headings, row, strict=True)) for row in self.rows]
        return list(zip(keys, cells, strict=True))
