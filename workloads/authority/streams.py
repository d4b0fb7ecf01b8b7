"""Reading a range of keys from a table in constant memory, in order, each value decoded alone. `verification` reads so.

The ORM stops at the first value that it can't decode and does not say which; here such a value is named, and spoils no
other row.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any, Final

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from workloads.authority.columns import field_of
from workloads.authority.records import ROWS_A_STATEMENT, Transaction
from workloads.authority.statements import parts
from workloads.errors import WorkloadError
from workloads.lifecycle import canonical
from workloads.models import Admitted, Tombstone, Workload

ROWS: Final = 1_000
TEXT_BYTES: Final = 4 * 1024 * 1024
MOST_ORPHANS: Final = 1_000


class Unreadable(Exception):
    """A stored value that is none of its column's; the text names the column."""


class Reader:
    """Columns of a table that a statement lists under the name `table`, and how to decode them."""

    def __init__(
        self, connection: BaseDatabaseWrapper, model: type[models.Model], names: Sequence[str], table: str
    ) -> None:
        self.connection = connection
        self.kind = str(model._meta.model_name)
        self.columns = []
        listed = []
        for name in names:
            column = field_of(model, name)
            expression = column.get_col(table)
            converters = connection.ops.get_db_converters(expression) + expression.get_db_converters(connection)
            self.columns.append((name, converters, expression))
            listed.append(column_of(connection, model, name, table))
        self.listed = ", ".join(listed)

    def __len__(self) -> int:
        return len(self.columns)

    def decode(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return the values by name, as Python's; a value that is none of its column's is Unreadable."""
        row: dict[str, Any] = {}
        for (name, converters, expression), value in zip(self.columns, values, strict=True):
            try:
                for convert in converters:
                    value = convert(value, expression, self.connection)
            except Exception as error:
                raise Unreadable(f"{name} of its {self.kind}: {type(error).__name__}: {error}") from error
            row[name] = value
        return row


def column_of(connection: BaseDatabaseWrapper, model: type[models.Model], name: str, table: str) -> str:
    """Return a column as a statement names it."""
    return f"{table}.{connection.ops.quote_name(str(field_of(model, name).column))}"


def bytes_of(connection: BaseDatabaseWrapper, column: str) -> str:
    """Return the expression for about how long a text is, which does not unpack it."""
    return f"LENGTH({column})" if connection.vendor == "sqlite" else f"OCTET_LENGTH({column})"


class Stream:
    """The rows of a history table whose workload's key lies after `after` and up to `last` (None: no end).

    `of` hands out one workload's, which are asked for in the order of their keys. Owners that are not among `known` are
    gathered in `orphans`.
    """

    def __init__(
        self,
        tx: Transaction,
        model: type[models.Model],
        names: Sequence[str],
        *,
        after: int,
        last: int | None,
        known: Container[int],
        owner: str = "record_id",
        order: str = "sequence",
        sized: Sequence[str] = (),
    ) -> None:
        self.tx = tx
        self.table = model._meta.db_table
        self.reader = Reader(tx.connection, model, names, "t")
        self.kind = self.reader.kind
        self.orphans: dict[int, None] = {}
        self.is_cut = False
        self._after, self._last, self._known = after, last, known
        self._owner = column_of(tx.connection, model, owner, "t")
        self._order = column_of(tx.connection, model, order, "t")
        self._sizes = [f"{name}_bytes" for name in sized]
        lengths = [bytes_of(tx.connection, column_of(tx.connection, model, name, "t")) for name in sized]
        self._listed = ", ".join([self._owner, self._order, self.reader.listed, *lengths])
        self._rows = self._all()
        self._head = next(self._rows, None)

    def _all(self) -> Iterator[tuple[Any, ...]]:
        where, params = f"{self._owner} > %s", [self._after]
        while True:
            until = "" if self._last is None else f" AND {self._owner} <= {int(self._last)}"
            rows = self.tx.execute(
                f"SELECT {self._listed} FROM {self.table} t WHERE {where}{until} "
                f"ORDER BY {self._owner}, {self._order} LIMIT {ROWS}",
                params,
            )
            yield from self._meet(rows)
            if len(rows) < ROWS:
                return
            # Spelt out twice: the first bounds the range of the index.
            where = f"{self._owner} >= %s AND ({self._owner} > %s OR {self._order} > %s)"
            owner, order = rows[-1][:2]
            params = [owner, owner, order]

    def _meet(self, rows: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
        return rows

    def of(self, pk: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of the workload with this key, decoded; an unreadable one ends it with Unreadable."""
        self._pass_over(pk)
        while self._head is not None and self._head[0] == pk:
            row, self._head = self._head, next(self._rows, None)
            yield self._decode(row)

    def _decode(self, row: tuple[Any, ...]) -> dict[str, Any]:
        end = 2 + len(self.reader)
        return self.reader.decode(row[2:end]) | dict(zip(self._sizes, row[end:], strict=True))

    def _pass_over(self, pk: int | None) -> None:
        while self._head is not None and (pk is None or self._head[0] < pk):
            owner = self._head[0]
            # What is left of a known workload was not asked for to its end.
            if owner not in self._known and owner not in self.orphans:
                self.is_cut = len(self.orphans) >= MOST_ORPHANS
                if not self.is_cut:
                    self.orphans[owner] = None
            self._head = next(self._rows, None)

    def close(self) -> None:
        """Pass over what was not asked for."""
        self._pass_over(None)


class Targets(Stream):
    """The rows of dependencies, each with the workload that it names: `target` is (tenant, application, state, whether
    it was pruned), or None.
    """

    def _meet(self, rows: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
        found: dict[str, tuple[str, str, str, bool]] = {}
        for part in parts(sorted({row[1] for row in rows}), ROWS_A_STATEMENT):
            marks = ", ".join(["%s"] * len(part))
            # What is alive stands last, and wins over its tombstone.
            for is_pruned, tables in (
                (True, f"{Tombstone._meta.db_table} a"),
                (False, f"{Admitted._meta.db_table} a JOIN {Workload._meta.db_table} w ON w.admitted_id = a.id"),
            ):
                for workload_id, *target in self.tx.execute(
                    f"SELECT a.workload_id, a.tenant_id, a.application_id, state FROM {tables} "
                    f"WHERE a.workload_id IN ({marks})",
                    part,
                ):
                    found[workload_id] = (*target, is_pruned)
        return [(*row, found.get(row[1])) for row in rows]

    def _decode(self, row: tuple[Any, ...]) -> dict[str, Any]:
        return super()._decode(row[:-1]) | {"target": row[-1]}


class Texts:
    """Canonical texts to be checked: noted as they are met, then read, a few megabytes at a time.

    `faults` are (key of the workload, name of what is promised, message).
    """

    def __init__(self, tx: Transaction, model: type[models.Model], key: str, name: str, faults: list[Any]) -> None:
        self.tx = tx
        self.name = name
        self.what = name if model is Admitted else f"{name} of its {model._meta.model_name}"
        key = column_of(tx.connection, model, key, "t")
        self.select = f"SELECT {key}, {column_of(tx.connection, model, name, 't')} FROM {model._meta.db_table} t"
        self.where = f"WHERE {key} IN"
        self.faults = faults
        self.noted: dict[int, tuple[int, str | None]] = {}
        self.size = 0

    def add(self, key: int, owner: int, size: int, digest: str | None = None) -> None:
        """Note a text to be checked, and the digest that is recorded of it."""
        self.noted[key] = (owner, digest)
        self.size += size
        if self.size >= TEXT_BYTES or len(self.noted) >= ROWS_A_STATEMENT:
            self.flush()

    def flush(self) -> None:
        """Read and check what is noted."""
        noted, self.noted, self.size = self.noted, {}, 0
        if not noted:
            return
        for key, text in self.tx.execute(f"{self.select} {self.where} ({', '.join(['%s'] * len(noted))})", list(noted)):
            owner, digest = noted[key]
            try:
                is_canonical = canonical.canonical(canonical.parse(text), field=self.name) == text
            except (TypeError, ValueError, RecursionError, WorkloadError) as error:
                self.faults.append((owner, "unreadable", f"{self.what}: {type(error).__name__}: {error}"))
                continue
            if not is_canonical:
                self.faults.append((owner, "canonical", f"{self.what} is not in its canonical form"))
            elif digest is not None and canonical.digest(text) != digest:
                self.faults.append((owner, "hash", f"{self.name}_hash is not that of its {self.name}"))
