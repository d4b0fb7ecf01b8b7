"""What the tables share: columns for names, and rows that the authority alone writes."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, TypeVar

from django.db import models

from workloads.contract import AttemptStatus, WorkloadState

IDENTIFIER_LENGTH = 200
MADE_ID_LENGTH = 64
AUTHORITY_ALONE = "This row is written by workloads.authority alone, and history is never changed."
STATES = [(state.value, state.value) for state in WorkloadState]
STATUSES = [(status.value, status.value) for status in AttemptStatus]


def identifier(name: Any, **options: Any) -> models.CharField[str, str]:
    return models.CharField(name, max_length=IDENTIFIER_LENGTH, **options)


def made_id(name: Any, **options: Any) -> models.CharField[str, str]:
    return models.CharField(name, max_length=MADE_ID_LENGTH, **options)


Row = TypeVar("Row", bound=models.Model)


class ReadOnlyQuerySet(models.QuerySet[Row]):
    """Questions alone: the ways that Django has for writing are closed. What changes, `workloads.authority` changes."""

    def update(self, **kwargs: Any) -> NoReturn:
        raise TypeError(AUTHORITY_ALONE)

    def delete(self) -> NoReturn:
        raise TypeError(AUTHORITY_ALONE)

    def bulk_create(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(AUTHORITY_ALONE)

    def bulk_update(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(AUTHORITY_ALONE)


class ReadOnly(models.Model):
    """A row that the authority alone writes."""

    objects: ClassVar = ReadOnlyQuerySet.as_manager()

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(AUTHORITY_ALONE)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(AUTHORITY_ALONE)
