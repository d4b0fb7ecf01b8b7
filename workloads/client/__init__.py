"""The authority from another machine: its verbs over HTTP, and a worker that runs the site's handlers there.

Needs httpx (`pip install workloads[client]`), no Django and no settings.
"""

from workloads.client.authority import RemoteAuthority
from workloads.client.records import AttemptRecord, EventRecord, WorkloadRecord
from workloads.client.worker import RemoteWorker
from workloads.worker.port import Unanswered

__all__ = ["AttemptRecord", "EventRecord", "RemoteAuthority", "RemoteWorker", "Unanswered", "WorkloadRecord"]
