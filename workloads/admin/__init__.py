"""The admin: how workloads stand, why they do not run, and re-arming. It reads, and lets the authority write."""

from workloads.admin.access import AccessAdmin
from workloads.admin.workload import WorkloadAdmin

__all__ = ["AccessAdmin", "WorkloadAdmin"]
