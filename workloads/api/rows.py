"""Where the interface reads: there, where the authority writes. A replica has not heard of what was just answered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import router
from django.db.models import Model, Prefetch, prefetch_related_objects
from django.db.models.query import QuerySet

from workloads.models import Dependency, Workload


def rows(model: type[Model]) -> QuerySet[Any]:
    """Return the rows of a model, from the database that it is written on."""
    return model._default_manager.using(router.db_for_write(model))


def dependencies() -> Prefetch[Any]:
    """Return what reads the dependencies of workloads along with them."""
    return Prefetch("dependencies", rows(Dependency))


def read_dependencies(workloads: Iterable[Workload]) -> None:
    """Read the dependencies of those workloads that have not had theirs read."""
    prefetch_related_objects([*workloads], dependencies())
