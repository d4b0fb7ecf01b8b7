"""The worker: runs the site's handlers on work that it claims from the authority.

A handler is a function registered for a definition; `docs/worker.md` tells the story. The modules, from the bottom:
`lease` (what this computer knows of a claim), `watch` (a call that is not answered), `calls` (asking a database that
may go away), `news` (waiting), `forks` (what a child process must not have), `failures` (what an exception means),
`attempt` (what a handler is given), `registry`, `heartbeats`, `handover` (threads and what they are to do),
`completions` (said together), `reports` (one attempt), `loop` (all of it).
"""

from workloads.worker.attempt import Attempt
from workloads.worker.failures import WorkloadFailure, register_failure_kind
from workloads.worker.lease import Cancelled, LeaseLost, Released, Stopped
from workloads.worker.loop import Summary, Worker
from workloads.worker.registry import handler

__all__ = [
    "Attempt",
    "Cancelled",
    "LeaseLost",
    "Released",
    "Stopped",
    "Summary",
    "Worker",
    "WorkloadFailure",
    "handler",
    "register_failure_kind",
]
