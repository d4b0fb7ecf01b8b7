"""What befalls a connection between two of its statements: another's commit, or its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError, connection, connections

_BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


class At:
    """Calls `act` once, at a place among the statements: 0 is before the first, n after the n-th.

    With `before`, place n is before statement n, counted from 1. On SQLite the others wait from a transaction's first
    statement to its end: the places between are one.
    """

    def __init__(self, place: int, act: Callable[[], Any], *, before: bool = False) -> None:
        self.place = place
        self.act = act
        self.before = before
        self.statements = 0
        self.has_acted = False

    def __call__(self, execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        if self.before:
            self.statements += 1
            self._reached()
            return execute(sql, params, many, context)
        if self.statements == 0:
            self._reached()
        answer = execute(sql, params, many, context)
        if not (connection.vendor == "sqlite" and connection.in_atomic_block and not sql.startswith("BEGIN")):
            self.statements += 1
            self._reached()
        return answer

    def _reached(self) -> None:
        if not self.has_acted and self.statements == self.place:
            self.has_acted = True
            self.act()


class Watcher:
    """A connection beside the one under test: sees who waits, and ends connections."""

    def __init__(self) -> None:
        self.connection = connection.copy()
        self.vendor = connection.vendor

    def ask(self, sql: str, *params: Any) -> Any:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, params)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

    def somebody_waits(self) -> bool:
        return self.vendor == "postgresql" and bool(self.ask(_BLOCKED))

    def cut(self) -> None:
        """End the connection under test; on SQLite, which has none to end, what it was to do fails."""
        inner = connections["default"].connection
        if self.vendor == "postgresql":
            pid = inner.info.backend_pid
            self.ask("SELECT pg_terminate_backend(%s)", pid)
            self._until_gone("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid)
        elif self.vendor == "mysql":
            pid = inner.thread_id()
            self.ask(f"KILL {int(pid)}")
            self._until_gone("SELECT count(*) FROM information_schema.processlist WHERE id = %s", pid)
        else:
            raise OperationalError("the connection is gone")

    def _until_gone(self, sql: str, pid: int) -> None:
        until = time.monotonic() + 10
        while self.ask(sql, pid):
            assert time.monotonic() < until
            time.sleep(0.002)

    def close(self) -> None:
        self.connection.close()


class Beside:
    """Runs `call` on a connection of its own, to its end or until it must wait for the connection under test."""

    def __init__(self, call: Callable[[], Any], watcher: Watcher) -> None:
        self.call = call
        self.watcher = watcher
        self.answer: Any = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.answer = self.call()
        except BaseException as error:
            self.error = error
        finally:
            connections["default"].close()

    def start(self) -> None:
        """Start the call; return once it is done, or waits."""
        self.thread.start()
        if self.watcher.vendor != "postgresql":
            # Who waits is not to be seen there at once.
            self.thread.join({"mysql": 0.15}.get(self.watcher.vendor, 0.05))
            return
        until = time.monotonic() + 5
        while self.thread.is_alive() and time.monotonic() < until:
            self.thread.join(0.004)
            if self.thread.is_alive() and self.watcher.somebody_waits():
                return

    def result(self) -> Any:
        """Return the call's answer once it has ended; what it raised is raised."""
        self.thread.join(30)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.answer


@contextmanager
def answer_lost(watcher: Watcher, number: int = 1) -> Iterator[None]:
    """Let the connection under test end right after its COMMIT of this number was obeyed, before it was told so."""
    commit = connection._commit
    seen = 0

    def obeyed_and_gone() -> None:
        nonlocal seen
        commit()
        seen += 1
        if seen == number:
            watcher.cut()
            raise OperationalError("the connection ended while COMMIT was under way")

    connection._commit = obeyed_and_gone
    try:
        yield
    finally:
        connection._commit = commit
