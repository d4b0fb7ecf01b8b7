"""Rows into the database, many at a time, as each database is best given them.

PostgreSQL gets one statement for all rows of a table, their values as arrays, and what is written together in one round
trip. The others get what their drivers do for many rows.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, TypeVar

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from workloads.authority import clock
from workloads.authority.columns import field_of, kind_of, prepared, stood
from workloads.authority.records import ROWS_A_STATEMENT, Superseded, Transaction

Item = TypeVar("Item")

BYTES_A_STATEMENT: Final = 4 * 1024 * 1024
BYTES_TOGETHER: Final = 16 * 1024 * 1024


def parts(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of at most `size`."""
    rest = iter(items)
    while part := list(itertools.islice(rest, size)):
        yield part


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement over so many `rows`: with `is_exact`, it must change every one of them.

    With `many`, `params` are those of each row.
    """

    sql: str
    params: Sequence[Any]
    rows: int
    is_exact: bool = False
    many: bool = False


@dataclass(slots=True)
class Statements:
    """What is written together: on PostgreSQL in one round trip. No row may be changed twice by it."""

    tx: Transaction
    waiting: list[Statement] = field(default_factory=list)
    question: tuple[str, Sequence[Any]] | None = None

    def insert(self, model: type[models.Model], rows: Sequence[dict[str, Any]], *, unless: str = "") -> None:
        """Add rows, as `insert` takes them; with `unless`, all of them must be new (not on MariaDB)."""
        for statement in _inserts(self.tx, model, rows, unless=unless):
            self.waiting.append(replace(statement, is_exact=True) if unless else statement)

    def update(
        self, model: type[models.Model], names: Sequence[str], keys: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        """Add changes of rows, as `execute_many` takes them."""
        self.waiting += _updates(self.tx, model, names, keys, rows)

    def ask(self, sql: str, params: Sequence[Any]) -> None:
        """Let `run` return what this query finds. It must not be about what is written here."""
        self.question = (sql, params)

    def run(self) -> list[tuple[Any, ...]]:
        """Write it all. Raises Superseded if a row that was to be changed is not there as it was judged, or one that
        had to be new is not.
        """
        found = self._run_together() if self._fit_together else self._run_in_turn()
        self.waiting, self.question = [], None
        return found

    @property
    def _fit_together(self) -> bool:
        if self.tx.connection.vendor != "postgresql" or len(self.waiting) + bool(self.question) < 2:
            return False
        return sum(len(v) for s in self.waiting for v in s.params if isinstance(v, str)) <= BYTES_TOGETHER

    def _run_in_turn(self) -> list[tuple[Any, ...]]:
        for statement in self.waiting:
            _run(self.tx, statement)
        return self.tx.execute(*self.question) if self.question else []

    def _run_together(self) -> list[tuple[Any, ...]]:
        asked = "" if self.question is None else f" LEFT JOIN ({self.question[0]}) q ON true"
        sql, params, wanted = self.as_one("q.*" if asked else "1", asked)
        rows = self.tx.execute(sql, [*params, *(self.question[1] if self.question else ())])
        if list(rows[0][: len(wanted)]) != wanted:
            raise Superseded
        found = [row[len(wanted) :] for row in rows] if asked else []
        # One row stands there for none.
        return [row for row in found if row[0] is not None]

    def as_one(self, answer: str, source: str = "") -> tuple[str, list[Any], list[int]]:
        """Return it as one statement, its parameters, and what its first columns must be; `answer` follows."""
        named: list[str] = []
        counts: list[str] = []
        wanted: list[int] = []
        for number, statement in enumerate(self.waiting):
            if statement.is_exact:
                named.append(f"s{number} AS ({statement.sql} RETURNING 1)")
                counts.append(f"(SELECT count(*) FROM s{number})")
                wanted.append(statement.rows)
            else:
                # Nothing is added to what has not been changed: it would meet what another writer has added.
                as_judged = " AND ".join([f"{count} = {n}" for count, n in zip(counts, wanted, strict=True)])
                named.append(f"s{number} AS ({statement.sql}{f' WHERE {as_judged}' if as_judged else ''})")
        params = [value for s in self.waiting for value in s.params]
        return (
            f"WITH {', '.join(named)} SELECT {', '.join([*counts, answer])} FROM (SELECT 1) one{source}",
            params,
            wanted,
        )


def can_run_ahead(connection: BaseDatabaseWrapper) -> bool:
    """Tell whether `run_ahead` may be used: on PostgreSQL, by a driver that can send without waiting for answers."""
    if connection.vendor != "postgresql":
        return False
    of_django: Any = connection
    pipeline = getattr(of_django.Database, "Pipeline", None)
    return pipeline is not None and bool(pipeline.is_supported())


def run_ahead(tx: Transaction, many: Iterable[Statements], *, within: dt.timedelta) -> None:
    """Write one after another, on PostgreSQL: it works on one while the next is made and sent.

    Raises Superseded as `run` does, and if what had to be new and changed in one of them took longer than `within`.
    """
    sent = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(tx.connection.connection.pipeline())
        for statements in many:
            # Read from left to right: how long it took comes behind the counts.
            sql, params, wanted = statements.as_one("clock_timestamp() - statement_timestamp()")
            cursor = stack.enter_context(tx.connection.cursor())
            cursor.execute(sql, params)
            sent.append((cursor, wanted))
        for cursor, wanted in sent:
            ((*changed, took),) = cursor.fetchall()
            if changed != wanted or took > within:
                raise Superseded


def _run(tx: Transaction, statement: Statement) -> None:
    with tx.connection.cursor() as cursor:
        if statement.many:
            cursor.executemany(statement.sql, statement.params)
        else:
            cursor.execute(statement.sql, statement.params)
        if statement.is_exact and cursor.rowcount != statement.rows:
            raise Superseded


def insert(tx: Transaction, model: type[models.Model], rows: Sequence[dict[str, Any]], *, unless: str = "") -> None:
    """Insert rows (values by attribute name, the same names in each).

    With `unless`, a unique column's name, a row whose value is taken is left out: it waits for a writer of the same
    value, ignores no other error, and leaves the transaction whole. Statements are cut below the packet size.
    """
    for statement in _inserts(tx, model, rows, unless=unless):
        _run(tx, statement)


def insert_new(
    tx: Transaction, model: type[models.Model], rows: Sequence[dict[str, Any]], *, unless: str, answer: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Insert rows as `insert` does; return the columns `answer` of those whose value was not taken, and behind them the
    clock as it was read when the row went in (for `clock.from_db`).

    Not on MariaDB, which does not tell new rows from the others.
    """
    answers = [*[column_name(tx.connection, model, name) for name in answer], clock.sql(tx.connection.vendor)]
    found: list[tuple[Any, ...]] = []
    for statement in _inserts(tx, model, rows, unless=unless):
        found += tx.execute(f"{statement.sql} RETURNING {', '.join(answers)}", statement.params)
    return found


def execute_many(
    tx: Transaction,
    model: type[models.Model],
    names: Sequence[str],
    keys: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> None:
    """Change the columns `names` of the rows that the columns `keys` find; given are, for each, the values of both.

    Raises Superseded unless every row is found.
    """
    for statement in _updates(tx, model, names, keys, rows):
        _run(tx, statement)


def column_name(connection: BaseDatabaseWrapper, model: type[models.Model], name: str) -> str:
    """Return a column as a statement names it."""
    return connection.ops.quote_name(str(field_of(model, name).column))


def _inserts(
    tx: Transaction, model: type[models.Model], rows: Sequence[dict[str, Any]], *, unless: str
) -> Iterator[Statement]:
    if not rows:
        return
    names = list(rows[0])
    listed = ", ".join([column_name(tx.connection, model, name) for name in names])
    head = f"INSERT INTO {model._meta.db_table} ({listed}) "
    tail = ""
    if unless:
        target = column_name(tx.connection, model, unless)
        tail = (
            f" ON DUPLICATE KEY UPDATE {target} = {target}"
            if tx.connection.vendor == "mysql"
            else f" ON CONFLICT ({target}) DO NOTHING"
        )
    if tx.connection.vendor == "postgresql":
        yield from _selects(model, head, names, rows, tail)
        return
    columns = [[prepared(tx.connection, model, name, row[name]) for row in rows] for name in names]
    marks = "(" + ", ".join(["%s"] * len(names)) + ")"
    for start, end in _cuts(columns):
        values = [value for row in zip(*[column[start:end] for column in columns], strict=True) for value in row]
        yield Statement(f"{head}VALUES {', '.join([marks] * (end - start))}{tail}", values, end - start)


def _selects(
    model: type[models.Model], head: str, names: Sequence[str], rows: Sequence[dict[str, Any]], tail: str
) -> Iterator[Statement]:
    """Yield inserts for PostgreSQL: columns are arrays, but what all rows share is said once."""
    columns = [[row[name] for row in rows] for name in names]
    shared = [_all_the_same(values) for values in columns]
    # As many rows as there are must come from somewhere.
    shared[0] = shared[0] and not (len(rows) > 1 and all(shared))
    kinds = [kind_of(model, name) for name in names]
    texts = [
        kind.prepare(values[:1]) * len(rows) if same else kind.prepare(values)
        for kind, values, same in zip(kinds, columns, shared, strict=True)
    ]
    for start, end in _cuts(texts):
        listed: list[str] = []
        marks: list[str] = []
        arrays: list[str] = []
        given: list[Any] = []
        for name, kind, values, made, same in zip(names, kinds, columns, texts, shared, strict=True):
            if same:
                listed.append(stood(model, name, values[0], given))
            else:
                listed.append(f"v.c{len(arrays)}")
                marks.append(f"%s::{kind.name}[]")
                arrays.append(kind.array(made[start:end]))
        source = f" FROM unnest({', '.join(marks)}) AS v({_numbered(len(arrays))})" if arrays else ""
        yield Statement(f"{head}SELECT {', '.join(listed)}{source}{tail}", [*given, *arrays], end - start)


@cache
def _numbered(count: int) -> str:
    return ", ".join([f"c{n}" for n in range(count)])


def _all_the_same(values: Sequence[Any]) -> bool:
    """Tell whether the values are equal and of types whose equals are written alike."""
    return not isinstance(values[0], (dict, list)) and values.count(values[0]) == len(values)


def _cuts(columns: Sequence[Sequence[Any]]) -> Iterator[tuple[int, int]]:
    """Yield where the rows of these columns are cut, so that each part can be one statement."""
    lengths = [[len(v) if isinstance(v, str) else 0 for v in column] for column in columns if _has_text(column)]
    sizes = [4 * sum(of_row) for of_row in zip(*lengths, strict=True)] or [0] * len(columns[0])
    start = size = 0
    for end, bytes_here in enumerate(sizes):
        if end > start and (end - start >= ROWS_A_STATEMENT or size + bytes_here > BYTES_A_STATEMENT):
            yield start, end
            start, size = end, 0
        size += bytes_here
    yield start, len(sizes)


def _has_text(column: Sequence[Any]) -> bool:
    return isinstance(next((value for value in column if value is not None), None), str)


def _updates(
    tx: Transaction,
    model: type[models.Model],
    names: Sequence[str],
    keys: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> Iterator[Statement]:
    if not rows:
        return
    table = model._meta.db_table
    every = (*names, *keys)
    quoted = {name: column_name(tx.connection, model, name) for name in every}
    if tx.connection.vendor != "postgresql":
        changes = ", ".join([f"{quoted[name]} = %s" for name in names])
        found = " AND ".join([f"{quoted[name]} = %s" for name in keys])
        fields = [field_of(model, name) for name in every]
        each = [[f.get_db_prep_save(v, tx.connection) for f, v in zip(fields, row, strict=True)] for row in rows]
        many = len(each) > 1
        sql = f"UPDATE {table} SET {changes} WHERE {found}"
        yield Statement(sql, each if many else each[0], len(each), is_exact=True, many=many)
        return
    if len(rows) == 1:
        params: list[Any] = []
        marks = [f"{quoted[name]} = {stood(model, name, v, params)}" for name, v in zip(every, rows[0], strict=True)]
        changes, found = ", ".join(marks[: len(names)]), " AND ".join(marks[len(names) :])
        yield Statement(f"UPDATE {table} SET {changes} WHERE {found}", params, 1, is_exact=True)
        return
    for part in parts(rows, ROWS_A_STATEMENT):
        sets: list[str] = []
        finds: list[str] = []
        given: list[Any] = []
        varied: list[str] = []
        kinds: list[tuple[str, str]] = []
        for place, (name, values) in enumerate(zip(every, zip(*part, strict=True), strict=True)):
            is_key = place >= len(names)
            if not is_key and values.count(values[0]) == len(part):
                # What all rows share is said once.
                sets.append(f"{quoted[name]} = {stood(model, name, values[0], given)}")
                continue
            kind = kind_of(model, name)
            (finds if is_key else sets).append(f"{'t.' if is_key else ''}{quoted[name]} = v.c{place}")
            varied.append(kind.array(kind.prepare(values)))
            kinds.append((f"%s::{kind.name}[]", f"c{place}"))
        yield Statement(
            f"UPDATE {table} t SET {', '.join(sets)} FROM unnest({', '.join([mark for mark, _ in kinds])}) "
            f"AS v({', '.join([name for _, name in kinds])}) WHERE {' AND '.join(finds)}",
            [*given, *varied],
            len(part),
            is_exact=True,
        )
