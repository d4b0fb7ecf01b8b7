"""Whether a database connection that was kept is alive, told without a question to the database where that is plain."""

from __future__ import annotations

import select
import time
from typing import Any, Final

from django.db import connections

LATELY_S: Final = 5.0
"""After so long without a call a connection may have been lost in silence, and is asked."""


def trust_those_in_use() -> None:
    """Spare PostgreSQL the question that CONN_HEALTH_CHECKS puts before a request's first query, where all is well.

    A server that ends a session says so, or closes the socket, and either is there to be read. A connection on which
    there is nothing to read, and which served a call within the last `LATELY_S` seconds, is taken for alive.
    """
    now = time.monotonic()
    known: Any = connections.all(initialized_only=True)
    for connection in known:
        session = connection.connection
        if connection.vendor != "postgresql" or session is None or not connection.health_check_enabled:
            continue
        of_late, when = vars(connection).get("workloads_served", (None, 0.0))
        if of_late is session and now - when < LATELY_S and not connection.health_check_done and _is_quiet(session):
            connection.health_check_done = True
        vars(connection)["workloads_served"] = (session, now)


def _is_quiet(session: Any) -> bool:
    try:
        poll = select.poll()
        poll.register(session.fileno(), select.POLLIN)
        return not poll.poll(0)
    except Exception:
        # It is closed, or no socket: the question will tell.
        return False
