"""Calls to the authority over a database that may go away: repeated until answered, one log line for each change."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

from django.db import Error, InterfaceError, OperationalError, connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from workloads.errors import WORKLOAD_CONFLICT, WorkloadError
from workloads.models import Workload
from workloads.worker.lease import monotonic
from workloads.worker.news import pause_s
from workloads.worker.port import Unanswered
from workloads.worker.watch import answered_within

T = TypeVar("T")

logger = logging.getLogger("workloads.worker")

OTHER_ERRORS: Final = 8
"""So often is a call repeated over an error that does not look like a database that is away."""
CONNECT_S: Final = 5
DEAD_PEER_S: Final = 15


class Link:
    """Whether the database answers, as all threads together see it. It logs changes, not failures.

    It answers again when it answers all that it did not answer: while one call fails and others pass, it is one loss.
    What came of a question that was asked before the last change (`asked_at`) says nothing of the time since.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._lost_at: float | None = None
        self._back_at = 0.0
        self._unanswered: set[int] = set()

    def lost(self, error: BaseException, *, asked_at: float) -> None:
        """Note that the database does not answer this thread; the first note is logged."""
        with self._guard:
            if self._lost_at is None:
                if asked_at < self._back_at:
                    return
                self._lost_at = monotonic()
                said = " ".join(str(error).split()) or type(error).__name__
                logger.warning("The database does not answer (%s). Trying again until it does.", said)
            self._unanswered.add(threading.get_ident())

    def gave_up(self) -> None:
        """Note that this thread asks no longer for what was not answered."""
        with self._guard:
            self._unanswered.discard(threading.get_ident())

    def answers(self, *, asked_at: float) -> None:
        """Note that the database answers this thread; when it answers all, after a loss, that is logged."""
        if self._lost_at is None:
            return
        with self._guard:
            self._unanswered.discard(threading.get_ident())
            if self._lost_at is not None and asked_at >= self._lost_at and not self._unanswered:
                self._back_at = monotonic()
                logger.warning("The database answers again, after %.1f s.", self._back_at - self._lost_at)
                self._lost_at = None


def until_answered(
    call: Callable[[], T],
    *,
    link: Link,
    wait: Callable[[float], object],
    give_up: Callable[[], bool],
    left_s: Callable[[], float] | None = None,
) -> T:
    """Return what `call` answers, repeating it on a new connection while the database does not answer.

    A WorkloadError is an answer and is raised. `wait` takes seconds and may return early. When `give_up` says so after
    a failure, Unanswered is raised. The first repetition is silent and at once: a connection that the server has ended
    while it was idle is no loss of the database. A server that says nothing is waited for DEAD_PEER_S seconds, and no
    longer than `left_s` says that an answer is of use. Inside a transaction of the caller nothing can be repeated.
    """
    if connections[alias()].in_atomic_block:
        return call()
    turn = 0
    while True:
        turn += 1
        asked_at = monotonic()
        try:
            with answered_within(DEAD_PEER_S if left_s is None else min(DEAD_PEER_S, left_s())):
                answer = call()
        except WorkloadError as refusal:
            link.answers(asked_at=asked_at)
            if refusal.code != WORKLOAD_CONFLICT or turn > OTHER_ERRORS or give_up():
                raise
            wait(pause_s(turn))
        except Error as error:
            drop_connection()
            if turn == 1 and not give_up():
                continue
            link.lost(error, asked_at=asked_at)
            is_away = isinstance(error, (OperationalError, InterfaceError))
            if give_up() or (not is_away and turn > OTHER_ERRORS):
                link.gave_up()
                raise Unanswered(str(error)) from error
            wait(pause_s(turn - 1))
        else:
            link.answers(asked_at=asked_at)
            return answer


def alias() -> str:
    """Return the database on which the authority writes."""
    return router.db_for_write(Workload)


def drop_connection() -> None:
    """Close this thread's connection to the authority's database, so that the next call opens another."""
    try:
        connections[alias()].close()
    except Error:
        # What can't be closed properly is forgotten.
        del connections[alias()]


_lent = threading.local()


@contextmanager
def lent_connection() -> Iterator[None]:
    """Run a body on a connection of its own, so that what it does to it does not befall the worker's own calls.

    It is kept for the thread's next body. What a body leaves uncommitted is rolled back. Where it touches nothing,
    nobody is asked.
    """
    using = alias()
    own = own_connection()
    kept = getattr(_lent, "connection", None)
    if kept is None:
        del connections[using]
        own_connection()
    else:
        connections[using] = kept
    try:
        yield
    finally:
        _lent.connection = tidy_connections()
        connections[using] = own
        own.queries_log.clear()


def close_connections() -> None:
    """Close all connections of this thread."""
    connections.close_all()
    if (kept := getattr(_lent, "connection", None)) is not None:
        del _lent.connection
        with suppress(Error):
            kept.close()


def tidy_connections() -> BaseDatabaseWrapper:
    """Leave this thread with connections that are fit for the next body: none old, broken, or inside a transaction.

    Nor do they remember what was asked. Returns the one to the authority's database.
    """
    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
        if connection.connection is None and not connection.in_atomic_block:
            # Nothing is open. The next use opens it.
            continue
        try:
            if connection.in_atomic_block or not connection.get_autocommit():
                connection.close()
                del connections[connection.alias]
            else:
                # The server may be asked, and say nothing.
                with answered_within(DEAD_PEER_S):
                    if connection.connection is not None:
                        # A transaction that was begun by hand, unseen by Django, would take in whatever comes next.
                        connection.connection.rollback()
                    connection.close_if_unusable_or_obsolete()
        except Exception:
            # Whatever was done to it, the next use opens another.
            del connections[connection.alias]
    return own_connection()


def own_connection(*, bound_s: float | None = None) -> BaseDatabaseWrapper:
    """Let this thread's connection notice a dead server, and keep it open between attempts. Returns it.

    With `bound_s` no wait on it lasts longer than about so many seconds. What the site's options say is left as it is,
    save a pool, which would be shared. Does nothing for a thread that has done it before.
    """
    connection = connections[alias()]
    settings = connection.settings_dict
    if settings.get("WORKLOADS_OWN") or connection.in_atomic_block:
        return connection
    options = {name: value for name, value in settings["OPTIONS"].items() if name != "pool"}
    if connection.vendor == "postgresql":
        options = {
            "connect_timeout": CONNECT_S,
            "keepalives_idle": DEAD_PEER_S,
            "keepalives_interval": CONNECT_S,
            "keepalives_count": 3,
            "tcp_user_timeout": int(1000 * (DEAD_PEER_S if bound_s is None else max(1.0, bound_s))),
        } | options
    elif connection.vendor == "mysql":
        options = {"connect_timeout": CONNECT_S} | options
        if bound_s is not None:
            seconds = max(1, round(bound_s))
            options |= {"read_timeout": seconds, "write_timeout": seconds}
    elif bound_s is not None:
        options["timeout"] = min(bound_s, float(options.get("timeout", 5.0)))
    connection.close()
    connection.settings_dict = settings | {
        "OPTIONS": options,
        "CONN_MAX_AGE": settings["CONN_MAX_AGE"] or None,
        "CONN_HEALTH_CHECKS": True,
        "WORKLOADS_OWN": True,
    }
    return connection


@contextmanager
def bounded(bound_s: float) -> Iterator[None]:
    """Run the block in one transaction in which no statement takes longer than `bound_s` seconds.

    On PostgreSQL the bound ends with the transaction, so that a pooler's connections are left as they were; elsewhere
    it is `own_connection` that sets it. A server that is not there to keep the bound is left at twice of it. Nor does
    the server wait much longer for a next statement: a process that is halted here would hold the rows until it wakes.
    """
    using = alias()
    idle_s = max(1, math.ceil(bound_s))
    with answered_within(max(1.0, 2 * bound_s)), transaction.atomic(using=using):
        if connections[using].vendor == "postgresql":
            with connections[using].cursor() as cursor:
                cursor.execute(
                    f"SET LOCAL statement_timeout = {max(1, int(bound_s * 1000))}; "
                    f"SET LOCAL idle_in_transaction_session_timeout = {idle_s * 1000}"
                )
        elif connections[using].vendor == "mysql":
            with connections[using].cursor() as cursor:
                cursor.execute(f"SET SESSION idle_transaction_timeout = {idle_s}")
        yield
