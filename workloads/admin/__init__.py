"""The admin: how workloads stand, why they do not run, what operators do. It reads, and lets the authority write."""

from workloads.admin.access import AccessAdmin
from workloads.admin.bulk import BulkActionAdmin
from workloads.admin.workers import WorkersAdmin
from workloads.admin.workload import WorkloadAdmin

__all__ = ["AccessAdmin", "BulkActionAdmin", "WorkersAdmin", "WorkloadAdmin"]
