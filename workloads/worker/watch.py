"""A watch over calls to the database: the connection of one that gets no answer in time is cut, by another thread.

A server that is frozen, or a proxy before one that is gone, keeps a connection open and says nothing on it. No option
of PostgreSQL's driver ends that wait, and MariaDB's would bound handlers too, so we end it: the statement is cancelled,
where a server is there to hear it, and the socket is shut down. The waiting thread then gets the error of a connection
that has ended.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from django.db import Error, connections, router
from django.db.backends.base.base import BaseDatabaseWrapper

from workloads.models import Workload

CANCEL_S: Final = 1.0


class Watched:
    """One thread's wait for the database, and the socket on which its answers come."""

    def __init__(self, connection: BaseDatabaseWrapper, seconds: float) -> None:
        self.seconds = seconds
        self.due_at = 0.0
        self.is_cut = False
        self._connection = connection
        self._inner: Any = None
        self._fd: int | None = None

    def look(self) -> None:
        """Take note of the connection as it is now. By the thread that waits, so that nobody closes it meanwhile."""
        inner = self._connection.connection
        if inner is self._inner:
            return
        self.close()
        self._inner = inner
        if hasattr(inner, "fileno"):
            with suppress(Exception):
                # A copy: its number is not given to another file while it is ours.
                self._fd = os.dup(inner.fileno())

    def cut(self) -> None:
        """End the wait. The server is told first: else its part of the wait, say for a lock, would go on without us."""
        inner, fd = self._inner, self._fd
        if hasattr(inner, "cancel_safe") and _can_cancel_in_time():
            with suppress(Exception):
                inner.cancel_safe(timeout=CANCEL_S)
        if fd is not None:
            with suppress(OSError), socket.socket(fileno=fd) as ours:
                ours.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the socket; one that is being cut is let go of by who cuts it."""
        if self._fd is not None and not self.is_cut:
            os.close(self._fd)
            self._fd = None


def _can_cancel_in_time() -> bool:
    """Tell whether a cancellation is bounded in time: with an old libpq it waits for the frozen server as well."""
    try:
        from psycopg import capabilities
    except ImportError:
        return False
    return capabilities.has_cancel_safe()


class Watch:
    """The thread that looks at the clock for all others. It sleeps until the first wait is due."""

    def __init__(self) -> None:
        self._forget()
        # A child process has none of our threads, and may have been forked while one of them held the lock.
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._changed = threading.Condition()
        self._waits: set[Watched] = set()
        self._wakes_at = float("inf")
        self._thread: threading.Thread | None = None

    def begin(self, wait: Watched) -> None:
        """Let a wait begin, or begin anew, with the next statement."""
        with self._changed:
            if wait.is_cut:
                return
            wait.look()
            wait.due_at = time.monotonic() + wait.seconds
            self._waits.add(wait)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="workloads-watch", daemon=True)
                self._thread.start()
            elif wait.due_at < self._wakes_at:
                self._changed.notify()

    def end(self, wait: Watched) -> None:
        """Let a wait be over."""
        with self._changed:
            self._waits.discard(wait)
            wait.close()

    def _run(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for wait in [w for w in self._waits if w.due_at <= now]:
                    wait.is_cut = True
                    self._waits.discard(wait)
                    # By a thread of its own: a server that is frozen takes its time to be told nothing.
                    threading.Thread(target=wait.cut, name="workloads-cut", daemon=True).start()
                self._wakes_at = min((w.due_at for w in self._waits), default=float("inf"))
                self._changed.wait(None if not self._waits else max(0.0, self._wakes_at - now))


_watch: Final = Watch()


@contextmanager
def answered_within(seconds: float) -> Iterator[None]:
    """Cut this thread's connection to the authority's database when a statement is not answered in so many seconds.

    What waits for it then gets the database's error. Each statement has the time anew, a COMMIT what is left of the
    last one's. Connecting is bounded by the connection's own options. Not for use inside a transaction.
    """
    connection = connections[router.db_for_write(Workload)]
    wait = Watched(connection, seconds)

    def anew(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        _watch.begin(wait)
        return execute(sql, params, many, context)

    _watch.begin(wait)
    try:
        with connection.execute_wrapper(anew):
            yield
    finally:
        _watch.end(wait)
        if wait.is_cut:
            # Answered at the last moment, perhaps: the connection is of no use all the same.
            with suppress(Error):
                connection.close()
