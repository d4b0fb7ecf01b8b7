"""The tables: columns, constraints and indexes, and the QuerySets that ask and never write.

What a workload *is* stands in `Admitted` and never changes after its insert. How it *stands* is `Workload`, the row
that every decision locks and rewrites: it holds no random key and no payload, so that a decision costs few bytes of
log. To readers they are one model: `Workload` inherits from `Admitted`, and every field of section 2 of the contract
is an attribute of `Workload`, and a name to filter by.

History rows hold no database constraint to their workload: the authority is their only writer, a constraint would
lock the parent's row once more for every event, and a pruned workload goes before its history. `workloads_verify`
looks for orphans instead. `docs/schema.md` has the measurements.
"""

from workloads.models.access import Access
from workloads.models.bulk import BulkAction, BulkItem
from workloads.models.history import Attempt, Checkpoint, Dependency, Event, Result
from workloads.models.kept import ApplicationLock, ClaimRequest, PassRun, Tombstone
from workloads.models.rows import IDENTIFIER_LENGTH, MADE_ID_LENGTH, ReadOnly, ReadOnlyQuerySet
from workloads.models.seen import SeenWorker
from workloads.models.work import Admitted, Lane, Workload, WorkloadQuerySet

__all__ = [
    "IDENTIFIER_LENGTH",
    "MADE_ID_LENGTH",
    "Access",
    "Admitted",
    "ApplicationLock",
    "Attempt",
    "BulkAction",
    "BulkItem",
    "Checkpoint",
    "ClaimRequest",
    "Dependency",
    "Event",
    "Lane",
    "PassRun",
    "ReadOnly",
    "ReadOnlyQuerySet",
    "Result",
    "SeenWorker",
    "Tombstone",
    "Workload",
    "WorkloadQuerySet",
]
