"""The authority from another machine: its verbs over HTTP, and a worker that runs the site's handlers there.

Needs httpx (`pip install workloads[client]`), no Django and no settings.
"""

from workloads.client.authority import RemoteAuthority
from workloads.client.line import Unanswered
from workloads.client.records import AttemptRecord, EventRecord, WorkloadRecord

__all__ = ["AttemptRecord", "EventRecord", "RemoteAuthority", "Unanswered", "WorkloadRecord"]
