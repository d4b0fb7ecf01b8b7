"""What has happened to a workload: events, attempts, checkpoints, its result, and what it waits for."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from workloads.fields import JSONTextField
from workloads.models.rows import STATES, STATUSES, ReadOnly, identifier, made_id
from workloads.models.work import Workload


def _record(related_name: str) -> Any:
    return models.ForeignKey(
        Workload,
        models.DO_NOTHING,
        related_name=related_name,
        db_column="record",
        db_constraint=False,
        db_index=False,
        verbose_name=_("workload"),
    )


class Event(ReadOnly):
    """One step of a workload, as it was decided: who, when, from where to where, on what evidence."""

    record = _record("events")
    sequence = models.PositiveIntegerField(_("sequence"))
    from_state = models.CharField(_("from"), max_length=24, blank=True)
    to_state = models.CharField(_("to"), max_length=24, choices=STATES)
    at = models.DateTimeField(_("at"))
    actor = identifier(_("actor"))
    evidence = JSONTextField(_("evidence"))

    class Meta:
        verbose_name = _("event")
        verbose_name_plural = _("events")
        ordering = ["record", "sequence"]
        constraints = [models.UniqueConstraint(fields=["record", "sequence"], name="workloads_event_sequence")]
        indexes = [
            # What was claimed and what failed of late, for figures.
            models.Index(
                fields=["at"],
                name="workloads_event_recent",
                condition=Q(to_state__in=["CLAIMED", "FAILED", "TIMED_OUT", "RECOVERING"]),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.sequence}: {self.from_state or '∅'} → {self.to_state}"


class Attempt(ReadOnly):
    """One claim of a workload, and how it ended."""

    record = _record("attempts")
    number = models.PositiveIntegerField(_("number"))
    attempt_id = made_id(_("attempt id"))
    claim_id = made_id(_("claim"))
    worker_id = identifier(_("worker"))
    fencing_token = models.PositiveBigIntegerField(_("fencing token"))
    status = models.CharField(_("status"), max_length=12, choices=STATUSES)
    claimed_at = models.DateTimeField(_("claimed"))
    started_at = models.DateTimeField(_("started"), null=True, blank=True)
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)
    ended_by = models.CharField(
        _("ended by"), max_length=8, blank=True, help_text=_("The voice that ended it: worker, operator or clock.")
    )
    error = models.TextField(_("error"), null=True, blank=True)
    failure_kind = identifier(_("failure kind"), null=True, blank=True)
    effect = models.CharField(_("effect"), max_length=8, null=True, blank=True)
    outcome_state = models.CharField(_("outcome"), max_length=24, null=True, blank=True)
    outcome_decision = models.CharField(_("decision"), max_length=40, null=True, blank=True)
    outcome_next_attempt_at = models.DateTimeField(_("next attempt"), null=True, blank=True)

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        ordering = ["record", "number"]
        constraints = [models.UniqueConstraint(fields=["record", "number"], name="workloads_attempt_number")]

    def __str__(self) -> str:
        return f"{self.number}: {self.status}"


class Checkpoint(ReadOnly):
    """What an attempt saved, for itself and for later attempts."""

    record = _record("checkpoints")
    sequence = models.PositiveIntegerField(_("sequence"))
    checkpoint_id = made_id(_("checkpoint id"))
    attempt_id = made_id(_("attempt id"))
    key = identifier(_("key"), null=True, blank=True)
    state = JSONTextField(_("state"))
    at = models.DateTimeField(_("at"))

    class Meta:
        verbose_name = _("checkpoint")
        verbose_name_plural = _("checkpoints")
        ordering = ["record", "sequence"]
        constraints = [models.UniqueConstraint(fields=["record", "sequence"], name="workloads_checkpoint_sequence")]

    def __str__(self) -> str:
        return f"{self.sequence}: {self.key or self.checkpoint_id}"


class Result(ReadOnly):
    """The one result of a workload that succeeded."""

    record = models.OneToOneField(
        Workload,
        models.DO_NOTHING,
        related_name="result",
        db_column="record",
        db_constraint=False,
        primary_key=True,
        verbose_name=_("workload"),
    )
    result_key = models.UUIDField(_("result key"), unique=True, help_text=_("A digest of tenant and result id."))
    result_id = identifier(_("result id"))
    attempt_id = made_id(_("attempt id"))
    produced_by = identifier(_("produced by"))
    output = JSONTextField(_("output"))
    output_hash = models.CharField(_("output hash"), max_length=64)
    artifacts = JSONTextField(_("artifacts"))
    schema_version = models.PositiveIntegerField(_("schema version"))
    claim_id = made_id(_("claim"))
    fencing_token = models.PositiveBigIntegerField(_("fencing token"))
    at = models.DateTimeField(_("at"))

    class Meta:
        verbose_name = _("result")
        verbose_name_plural = _("results")

    def __str__(self) -> str:
        return self.result_id

    @property
    def provenance(self) -> dict[str, Any]:
        """The claim that produced the result."""
        return {"claim_id": self.claim_id, "fencing_token": self.fencing_token}


class Dependency(ReadOnly):
    """One workload that another waits for, by its id, and how that stands. `standing` is derived, not recorded."""

    dependent = models.ForeignKey(
        Workload,
        models.DO_NOTHING,
        related_name="dependencies",
        db_constraint=False,
        db_index=False,
        verbose_name=_("dependent"),
    )
    depends_on = identifier(_("depends on"))
    required_state = models.CharField(_("required state"), max_length=24, choices=STATES)
    standing = models.CharField(_("standing"), max_length=10)

    class Meta:
        verbose_name = _("dependency")
        verbose_name_plural = _("dependencies")
        ordering = ["dependent", "depends_on"]
        constraints = [models.UniqueConstraint(fields=["dependent", "depends_on"], name="workloads_dependency_once")]
        indexes = [models.Index(fields=["depends_on"], name="workloads_dependents")]

    def __str__(self) -> str:
        return f"{self.depends_on} in {self.required_state}"
