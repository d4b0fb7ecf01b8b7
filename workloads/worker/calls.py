"""Calls to the authority over a database that may go away: repeated until answered, one log line for each change."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from django.db import Error, InterfaceError, OperationalError, connections, router, transaction

from workloads.errors import WORKLOAD_CONFLICT, WorkloadError
from workloads.models import Workload
from workloads.worker.lease import monotonic

T = TypeVar("T")

logger = logging.getLogger("workloads.worker")

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 10.0
OTHER_ERRORS: Final = 8
"""So often is a call repeated over an error that does not look like a database that is away."""
CONNECT_S: Final = 5
DEAD_PEER_S: Final = 15


class Unanswered(Exception):
    """The authority could not be asked, and asking is given up. Whether it has heard is not known."""


class Link:
    """Whether the database answers, as all threads together see it. It logs changes, not failures."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._lost_at: float | None = None

    @property
    def is_lost(self) -> bool:
        """Tell whether the last that was heard of the database is that it does not answer."""
        return self._lost_at is not None

    def lost(self, error: BaseException) -> None:
        """Note that the database does not answer; the first note is logged."""
        with self._guard:
            if self._lost_at is None:
                self._lost_at = monotonic()
                said = " ".join(str(error).split()) or type(error).__name__
                logger.warning("The database does not answer (%s). Trying again until it does.", said)

    def answers(self) -> None:
        """Note that the database answers; the first note after a loss is logged."""
        if self._lost_at is None:
            return
        with self._guard:
            if self._lost_at is not None:
                logger.warning("The database answers again, after %.1f s.", monotonic() - self._lost_at)
                self._lost_at = None


def pause_s(turn: int) -> float:
    """Return how many seconds to wait before repetition `turn` (1, 2, 3…): doubling, bounded, spread by chance."""
    longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(turn - 1, 10))
    return longest * random.uniform(0.5, 1)


def until_answered(
    call: Callable[[], T], *, link: Link, wait: Callable[[float], object], give_up: Callable[[], bool]
) -> T:
    """Return what `call` answers, repeating it on a new connection while the database does not answer.

    A WorkloadError is an answer and is raised. `wait` takes seconds and may return early. When `give_up` says so after
    a failure, Unanswered is raised. The first repetition is silent and at once: a connection that the server has ended
    while it was idle is no loss of the database. Inside a transaction of the caller nothing can be repeated.
    """
    if connections[alias()].in_atomic_block:
        return call()
    turn = 0
    while True:
        turn += 1
        try:
            answer = call()
        except WorkloadError as refusal:
            link.answers()
            if refusal.code != WORKLOAD_CONFLICT or turn > OTHER_ERRORS or give_up():
                raise
            wait(pause_s(turn))
        except Error as error:
            drop_connection()
            if turn == 1:
                continue
            link.lost(error)
            is_away = isinstance(error, (OperationalError, InterfaceError))
            if give_up() or (not is_away and turn > OTHER_ERRORS):
                raise Unanswered(str(error)) from error
            wait(pause_s(turn - 1))
        else:
            link.answers()
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


def tidy_connections() -> None:
    """Leave this thread with connections that are fit for the next attempt: none old, broken, or inside a transaction.

    What a body left uncommitted is rolled back: a report must not join it.
    """
    for connection in connections.all(initialized_only=True):
        try:
            if connection.in_atomic_block or (connection.connection is not None and not connection.get_autocommit()):
                connection.close()
                del connections[connection.alias]
            else:
                connection.close_if_unusable_or_obsolete()
        except Error:
            del connections[connection.alias]
    own_connection()


def own_connection(*, bound_s: float | None = None) -> None:
    """Let this thread's connection notice a dead server, and keep it open between attempts.

    With `bound_s` no wait on it lasts longer than about so many seconds. What the site's options say is left as it is,
    save a pool, which would be shared. Does nothing for a thread that has done it before.
    """
    connection = connections[alias()]
    settings = connection.settings_dict
    if settings.get("WORKLOADS_OWN") or connection.in_atomic_block:
        return
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


@contextmanager
def bounded(bound_s: float) -> Iterator[None]:
    """Run the block in one transaction in which no statement takes longer than `bound_s` seconds.

    On PostgreSQL the bound ends with the transaction, so that a pooler's connections are left as they were; elsewhere
    it is `own_connection` that sets it.
    """
    using = alias()
    with transaction.atomic(using=using):
        if connections[using].vendor == "postgresql":
            with connections[using].cursor() as cursor:
                cursor.execute(f"SET LOCAL statement_timeout = {max(1, int(bound_s * 1000))}")
        yield
