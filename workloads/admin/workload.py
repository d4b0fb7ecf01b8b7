"""The admin of workloads: a list and a page that read, and what they let an operator do."""

from __future__ import annotations

from django.contrib import admin

from workloads.admin.list_view import ListOfWorkloads
from workloads.admin.overview import OverviewOfWorkloads
from workloads.admin.page_view import PageOfAWorkload
from workloads.models import Workload


@admin.register(Workload)
class WorkloadAdmin(OverviewOfWorkloads, ListOfWorkloads, PageOfAWorkload):
    """Nothing is added, changed or deleted here. What an operator may do needs a permission of its own."""
