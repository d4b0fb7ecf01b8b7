"""What a list shows of each workload, read without payloads, and so that a spoilt row shows as such."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from django.contrib.admin.views.main import ChangeList
from django.db.models import ExpressionWrapper, F, QuerySet, TextField
from django.db.models.functions import Left
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _

from workloads.admin import finding
from workloads.admin.criteria import Criteria
from workloads.admin.display import SHORT_CHARS
from workloads.contract import WorkloadState
from workloads.models import Admitted, Workload

# The columns that a list shows. Input, grant and the whole of the last failure stay where they are.
ADMITTED: Final = (
    "workload_id",
    "tenant_id",
    "application_id",
    "definition_id",
    "definition_revision",
    "retry_policy",
    "created_at",
)
STANDING: Final = (
    "state",
    "next_attempt_at",
    "attempt_count",
    "uncounted_releases",
    "operator_retries",
    "dependency_standing",
)


def _failure_head() -> Left:
    return Left("last_failure", SHORT_CHARS + 1)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One workload in a list: what was admitted, and how it stands. Either is empty where it is missing or unreadable.

    It is not a model's instance: its two halves are read apart, so that work that has lost one shows in the list too.
    """

    pk: int
    admitted: Mapping[str, Any]
    standing: Mapping[str, Any]

    # Django's admin asks what a row's model is.
    _meta: ClassVar[Any] = Workload._meta

    def __str__(self) -> str:
        return self.admitted.get("workload_id") or f"#{self.pk}"

    def serializable_value(self, name: str) -> Any:
        return self.pk

    @property
    def state(self) -> str:
        return str(self.standing.get("state") or "")

    @property
    def used(self) -> int | None:
        """How many attempts count against the budget; None if that can't be told."""
        return _sum(self.standing.get("attempt_count"), self.standing.get("uncounted_releases"), sign=-1)

    @property
    def budget(self) -> int | None:
        """How many attempts it may have; None if that can't be told."""
        return _sum(_most_attempts(self.admitted.get("policy")), self.standing.get("operator_retries"))

    @property
    def faults(self) -> list[str]:
        """What is spoilt in it, for people."""
        found = []
        if not self.admitted:
            found.append(_("What was admitted is missing or can’t be read."))
        elif self.admitted["created_at"] is None:
            found.append(_("When it was admitted can’t be read."))
        if self.admitted and self.standing and self.budget is None:
            found.append(_("Its retry policy can’t be read."))
        if not self.standing:
            found.append(_("How it stands is missing or can’t be read."))
        elif self.state not in _STATES:
            found.append(_("Its state is none that this version knows."))
        if self.state == WorkloadState.READY and self.standing["next_attempt_at"] is None:
            found.append(_("When it may be claimed is missing or can’t be read."))
        if self.standing and self.used is None:
            found.append(_("The number of its attempts can’t be read."))
        return found


_STATES: Final = frozenset(state.value for state in WorkloadState)


def _sum(first: Any, second: Any, sign: int = 1) -> int | None:
    # SQLite keeps text in a column of numbers.
    return first + sign * second if isinstance(first, int) and isinstance(second, int) else None


def _most_attempts(text: str | None) -> int | None:
    try:
        most = json.loads(text or "")["max_attempts"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return most if isinstance(most, int) and not isinstance(most, bool) else None


def read_rows(keys: Sequence[int]) -> list[Row]:
    """Return the workloads with these keys, in their order; what is gone meanwhile is left out."""
    policy = ExpressionWrapper(F("retry_policy"), output_field=TextField())
    columns = [name for name in ADMITTED if name != "retry_policy"]
    # As text: a policy that can't be read would take the whole page down with it.
    admitted = _values(Admitted.objects.annotate(policy=policy).values("pk", "policy", *columns), keys)
    standing = _values(
        Workload.objects.annotate(failure_head=_failure_head()).values("pk", "failure_head", *STANDING), keys
    )
    return [
        Row(pk=key, admitted=admitted.get(key, {}), standing=standing.get(key, {}))
        for key in keys
        if key in admitted or key in standing
    ]


def _values(rows: QuerySet[Any], keys: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Return the rows by key; one that can't be read is empty."""
    try:
        return {row["pk"]: row for row in rows.filter(pk__in=list(keys))}
    except (ValueError, TypeError, AttributeError):
        return {key: row for key in keys for row in _one(rows, key)}


def _one(rows: QuerySet[Any], key: int) -> list[dict[str, Any]]:
    try:
        return list(rows.filter(pk=key))
    except (ValueError, TypeError, AttributeError):
        return [{}]


class WorkloadList(ChangeList):
    """The list in Django's admin, its pages found by `finding`."""

    criteria: Criteria
    page: finding.Page

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Return all that the address selects: what an action gets."""
        self.criteria = Criteria.read(request.GET)
        return self.criteria.rows()

    def get_results(self, request: HttpRequest) -> None:
        self.page = finding.find(self.criteria, request.GET.get("at", ""))
        self.result_list = read_rows(self.page.keys)
        self.has_filters = True
        self.has_active_filters = bool(self.criteria.given)
        self.multi_page = self.page.on is not None or self.page.back is not None
        # Django compares it with the rows of the page, to offer all that match.
        self.result_count = len(self.result_list) + (1 if self.multi_page else 0)
        self.full_result_count = None
        self.show_full_result_count = False
        self.show_admin_actions = bool(self.result_list)
        self.can_show_all = False

    def url_for_result(self, result: Any) -> str:
        return reverse(
            "admin:workloads_workload_change", args=[result.pk], current_app=self.model_admin.admin_site.name
        )
