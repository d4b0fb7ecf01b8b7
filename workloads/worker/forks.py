"""What a handler's fork must not take along: the worker's connections, and the attempt itself.

A child process begins as a copy of the thread that forked. It shares the sockets of every connection that the worker
has open, so that one byte from it, or the goodbye of a connection that its memory gives up, ends or garbles what the
worker says.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

_guard = threading.Lock()
_open: Final[weakref.WeakSet[BaseDatabaseWrapper]] = weakref.WeakSet()
_inherited: Final[list[BaseDatabaseWrapper]] = []
"""Held while a fork is under way, and in a child for ever: what is never given up is never closed."""
_is_watching = False


def watch() -> None:
    """From now on, leave a child process of this one with none of the connections that are open here."""
    global _is_watching
    with _guard:
        _open.update(connections.all(initialized_only=True))
        if _is_watching:
            return
        _is_watching = True
    connection_created.connect(_note, dispatch_uid="workloads.worker.forks")
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


def _note(connection: BaseDatabaseWrapper, **_: Any) -> None:
    with _guard:
        _open.add(connection)


def _before() -> None:
    _guard.acquire()
    _inherited.extend(_open)


def _after_in_parent() -> None:
    _inherited.clear()
    _guard.release()


def _after_in_child() -> None:
    _guard.release()
    for connection in connections.all(initialized_only=True):
        # Forgotten, not closed: the next use opens another.
        del connections[connection.alias]
