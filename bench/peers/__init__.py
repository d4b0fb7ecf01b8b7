"""What is measured side by side: one module for each, with the same little interface (`peers.base.Peer`).

A module of this package is imported twice: by `rates.py`, which reads what it says about itself, and by `peer.py` in
the environment that has the package. So what it needs is imported inside its methods.
"""

from __future__ import annotations

import importlib

from peers.base import Peer

NAMES = (
    "ours",
    "pgqueuer",
    "awa",
    "oban",
    "chancy",
    "dbos",
    "absurd",
    "procrastinate",
    "django_ox",
    "django_q2",
    "django_tasks_db",
    "steady_queue",
    "celery",
)
"""In the order of the tables; also the names of the modules."""


def find(name: str) -> type[Peer]:
    """Return the class that one module holds for a peer."""
    peer: type[Peer] = importlib.import_module(f"peers.{name}").THIS
    return peer
