"""Queries that nearly every request puts: the ORM builds each once for a connection, not anew for each call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from copy import copy
from itertools import chain
from typing import Any, NamedTuple

from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model
from django.db.models.sql.compiler import SQLCompiler
from django.db.models.sql.constants import MULTI

from workloads.api.rows import rows


class _Built(NamedTuple):
    compiler: SQLCompiler
    sql: str
    prepare: Callable[..., Any]
    converters: dict[int, Any]


class Compiled:
    """Rows of a model that have one of some values in the column `by`, as tuples of `columns`.

    Only of a column of text may several values be given. The rows are read where the model is written, in the model's
    own order, and hold what `values_list` would give.
    """

    def __init__(self, model: type[Model], *, by: str, columns: tuple[str, ...]) -> None:
        self._model = model
        self._by = by
        self._columns = columns

    def read(self, values: Collection[Any]) -> list[tuple[Any, ...]]:
        """Return the rows that have one of these values, None not among them: one query."""
        if not values:
            return []
        connection = connections[router.db_for_write(self._model)]
        size = 1 << (len(values) - 1).bit_length()
        # Kept with the connection, and gone when it is gone.
        kept: dict[tuple[Compiled, int], _Built] = vars(connection).setdefault("workloads_compiled", {})
        built = kept.get((self, size))
        if built is None:
            built = kept[self, size] = self._build(connection, next(iter(values)), size)
        params = [built.prepare(value, connection, prepared=False) for value in values]
        # There are a few sizes alone, so that there are a few statements: the last value fills the places left.
        params += params[-1:] * (size - len(params))
        # One of its own for each call: a connection may be lent from thread to thread.
        compiler = copy(built.compiler)
        vars(compiler)["as_sql"] = lambda: (built.sql, params)
        found: Iterable[Any] = chain.from_iterable(compiler.execute_sql(MULTI) or ())
        if built.converters:
            found = compiler.apply_converters(found, built.converters)
        return [tuple(row) for row in found]

    def _build(self, connection: BaseDatabaseWrapper, value: Any, size: int) -> _Built:
        column: Any = self._model._meta.get_field(self._by)
        # Of several values there are as many places as there are different ones: any will do.
        by = {self._by: value} if size == 1 else {f"{self._by}__in": [str(number) for number in range(size)]}
        picked = rows(self._model).filter(**by).values_list(*self._columns)
        compiler: Any = picked.query.get_compiler(connection=connection)
        sql, params = compiler.as_sql()
        assert len(params) == size
        converters = compiler.get_converters([selected[0] for selected in compiler.select])
        return _Built(compiler, sql, column.get_db_prep_value, converters)
