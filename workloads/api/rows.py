"""Where the interface reads: there, where the authority writes. A replica has not heard of what was just answered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from django.db import router
from django.db.models import Model, Prefetch, prefetch_related_objects
from django.db.models.query import QuerySet

from workloads.models import Dependency, Workload

# Where Django keeps the rows that were read along with a row, and under which name.
_READ: Final = "_prefetched_objects_cache"
_NAME: Final = "dependencies"


def rows(model: type[Model]) -> QuerySet[Any]:
    """Return the rows of a model, from the database that it is written on."""
    return model._default_manager.using(router.db_for_write(model))


def dependencies() -> Prefetch[Any]:
    """Return what reads the dependencies of workloads along with them."""
    return Prefetch(_NAME, rows(Dependency))


def read_dependencies(workloads: Iterable[Workload]) -> None:
    """Read the dependencies of those workloads that have not had theirs read."""
    unread = [row for row in workloads if _NAME not in vars(row).get(_READ, ())]
    if unread:
        prefetch_related_objects(unread, dependencies())


def have_no_dependencies(workloads: Iterable[Workload]) -> None:
    """Take it for read that these workloads have no dependencies, as one knows who has just admitted them without."""
    for row in workloads:
        vars(row).setdefault(_READ, {})[_NAME] = rows(Dependency).none()
