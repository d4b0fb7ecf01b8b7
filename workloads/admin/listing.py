"""What keeps the list of workloads fast at any size: no count of everything, no payloads, no unindexed order."""

from __future__ import annotations

from typing import Any, Final

from django.contrib.admin import ModelAdmin, SimpleListFilter
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.db.models.functions import Left
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from workloads.admin.display import SHORT_CHARS
from workloads.contract import WorkloadState
from workloads.lifecycle.states import HELD, PARKED

MOST_LISTED: Final = 10_000

# The columns that a list shows. Input, grant and the whole of the last failure stay where they are.
COLUMNS: Final = (
    "workload_id",
    "tenant_id",
    "application_id",
    "definition_id",
    "definition_revision",
    "retry_policy",
    "created_at",
    "version",
    "state",
    "next_attempt_at",
    "attempt_count",
    "uncounted_releases",
    "operator_retries",
    "finished_at",
    "worker_id",
    "expires_at",
    "dependency_standing",
)


def without_payloads(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return the same workloads, read in the columns of a list alone, with the beginning of the last failure."""
    return rows.only(*COLUMNS).annotate(failure_head=Left("last_failure", SHORT_CHARS + 1))


class CappedPaginator(Paginator):
    """Pages through the first 10,000 rows. Counting stops there, and so does the list, which says so."""

    @cached_property
    def _counted(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by().values("pk")[: MOST_LISTED + 1].count())

    @cached_property
    def count(self) -> int:
        return min(self._counted, MOST_LISTED)

    @property
    def is_cut(self) -> bool:
        """Whether there are rows that no page shows."""
        return self._counted > MOST_LISTED


class WorkloadList(ChangeList):
    """The list, newest first, without payloads."""

    def get_queryset(self, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        return without_payloads(super().get_queryset(*args, **kwargs))


class StateFilter(SimpleListFilter):
    """Narrows the list to one state, or to the states that ask the same of people."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> list[tuple[str, Any]]:
        groups = [("parked", _("Parked: may be re-armed")), ("held", _("Held by a worker"))]
        passing = {WorkloadState.CREATED, WorkloadState.RECOVERING, WorkloadState.FAILED}
        return groups + [(state.value, state.value) for state in WorkloadState if state not in passing]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        wanted = {"parked": PARKED, "held": HELD}.get(value)
        if wanted is None:
            return queryset.filter(state=value)
        return queryset.filter(state__in=sorted(wanted))


def search(rows: QuerySet[Any], term: str) -> QuerySet[Any]:
    """Return the workloads with this id; if it can be none, those with this idempotency key."""
    term = term.strip()
    if not term:
        return rows
    if term.startswith("workload_"):
        return rows.filter(workload_id=term)
    return rows.filter(idempotency_key=term)
