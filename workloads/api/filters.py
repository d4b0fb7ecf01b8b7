"""Which workloads a list is to hold: the query's parameters, each checked before it is asked for."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import django_filters
from django import forms
from django.db.models import F, Q, Value
from django.db.models.functions import Left, Lower
from django.db.models.lookups import Contains
from rest_framework.request import Request

from workloads.api import pages
from workloads.api.shapes import instant
from workloads.contract import WorkloadState
from workloads.errors import WorkloadError, invalid
from workloads.lifecycle import arguments, canonical
from workloads.models import Workload, WorkloadQuerySet

LONGEST_TEXT: Final = 200
_EXACT: Final = (
    "tenant_id",
    "application_id",
    "definition_id",
    "definition_revision",
    "environment",
    "requested_by",
    "idempotency_key",
    "worker_id",
)
_IDENTITY: Final = ("tenant_id", "application_id", "requested_by", "idempotency_key")
_RANGES: Final = ("created_after", "created_before", "finished_after", "finished_before")


class _Refusing(forms.Field):
    """A form's field that refuses as the contract does, whose errors name the parameter."""

    def read(self, value: str) -> Any:
        return value

    def clean(self, value: Any) -> Any:
        if value is None or value == "":
            return None
        try:
            return self.read(str(value))
        except WorkloadError as refusal:
            raise forms.ValidationError(refusal.message.partition(": ")[2]) from refusal


class IdentifierField(_Refusing):
    """An identifier."""

    def read(self, value: str) -> str:
        return arguments.identifier(value, "value")


class InstantField(_Refusing):
    """An instant. A plus sign that was not escaped has become a space."""

    def read(self, value: str) -> dt.datetime:
        return arguments.instant(instant(value.replace(" ", "+"), "value"), "value")


class PriorityField(_Refusing):
    """A priority."""

    def read(self, value: str) -> int:
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 10):
            raise invalid("value", "not an integer")
        return arguments.priority(int(value), "value")


class TextField(_Refusing):
    """Words to look for."""

    def read(self, value: str) -> str:
        if len(value) > LONGEST_TEXT or "\0" in value:
            raise invalid("value", f"not 1 to {LONGEST_TEXT} characters without NUL")
        return value


class Exact(django_filters.Filter):
    field_class = IdentifierField


class InstantFilter(django_filters.Filter):
    field_class = InstantField


class PriorityFilter(django_filters.Filter):
    field_class = PriorityField


class WordsFilter(django_filters.Filter):
    field_class = TextField


class WorkloadFilters(django_filters.FilterSet):
    """The parameters of a list of workloads. Ranges hold their lower end and not their upper one."""

    state = django_filters.MultipleChoiceFilter(
        choices=[(s.value, s.value) for s in WorkloadState], error_messages={"invalid_choice": "not a state"}
    )
    tenant_id = Exact()
    application_id = Exact()
    definition_id = Exact()
    definition_revision = Exact()
    environment = Exact()
    requested_by = Exact()
    idempotency_key = Exact()
    worker_id = Exact()
    priority_min = PriorityFilter(field_name="priority", lookup_expr="gte")
    priority_max = PriorityFilter(field_name="priority", lookup_expr="lte")
    created_after = InstantFilter(field_name="created_at", lookup_expr="gte")
    created_before = InstantFilter(field_name="created_at", lookup_expr="lt")
    finished_after = InstantFilter(field_name="finished_at", lookup_expr="gte")
    finished_before = InstantFilter(field_name="finished_at", lookup_expr="lt")
    next_attempt_before = InstantFilter(field_name="next_attempt_at", lookup_expr="lt")
    failure_kind = Exact(method="of_kind")
    blocked = django_filters.ChoiceFilter(
        choices=[("true", "true"), ("false", "false")],
        error_messages={"invalid_choice": "not true or false"},
        method="that_wait",
    )
    failure = WordsFilter(method="with_words")

    class Meta:
        model = Workload
        fields: tuple[str, ...] = ()

    def of_kind(self, rows: WorkloadQuerySet, name: str, kind: str) -> WorkloadQuerySet:
        """Keep those whose last failure was of this kind."""
        head = f"{kind}: "
        return rows.annotate(failure_head=Left(F("last_failure"), len(head))).filter(failure_head=head)

    def that_wait(self, rows: WorkloadQuerySet, name: str, value: str) -> WorkloadQuerySet:
        """Keep those that wait for others, or those that do not."""
        waits = Q(state=WorkloadState.READY.value) & ~Q(dependency_standing="met")
        return rows.filter(waits if value == "true" else ~waits)

    def with_words(self, rows: WorkloadQuerySet, name: str, words: str) -> WorkloadQuerySet:
        """Keep those whose last failure holds these words, in capitals or not."""
        # MariaDB compares byte for byte, `icontains` included.
        return rows.filter(Contains(Lower("last_failure"), Lower(Value(words))))


NAMES: Final = frozenset(WorkloadFilters.base_filters)
REPEATABLE: Final = frozenset({"state"})
_INDEXED: Final = frozenset({"state", *_EXACT}) - {"environment", "definition_revision"}


def apply(request: Request, rows: WorkloadQuerySet) -> WorkloadQuerySet:
    """Return the rows that the query's parameters ask for; WORKLOAD_INVALID names the parameter that can't be read."""
    given = request.query_params
    for name in WorkloadFilters.base_filters:
        # Django's forms take an empty value for none given: then a list would hold what nobody asked for.
        if "" in given.getlist(name):
            raise invalid(name, "is empty")
    filters = WorkloadFilters(given, queryset=rows)
    if not filters.is_valid():
        name, found = next(iter(filters.form.errors.items()))
        raise invalid(name, "; ".join(str(message) for message in found))
    if given.get("failure") and not (_INDEXED & given.keys() and set(_RANGES) & given.keys()):
        raise invalid(
            "failure", f"needs another filter ({', '.join(sorted(_INDEXED))}) and a time range ({', '.join(_RANGES)})"
        )
    rows = filters.qs
    scope = [filters.form.cleaned_data[name] for name in _IDENTITY]
    # The four together are the identity, which has an index; of the last three none has.
    return rows.filter(workload_id=canonical.workload_id(*scope)) if all(scope) else rows


def order_of(request: Request) -> pages.Order:
    """Return the order that the query asks for, newest first where it asks for none."""
    given = request.query_params.get("ordering", pages.NEWEST_FIRST)
    order = pages.ORDERS.get(given)
    if order is None:
        raise invalid("ordering", f"not one of {', '.join(pages.ORDERS)}")
    return order
