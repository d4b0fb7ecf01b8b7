"""The tables: columns, constraints and indexes, and the QuerySets that ask and never write.

What a workload *is* stands in `Admitted` and never changes after its insert. How it *stands* is `Workload`, the row
that every decision locks and rewrites: it holds no random key and no payload, so that a decision costs few bytes of
log. To readers they are one model: `Workload` inherits from `Admitted`, and every field of section 2 of the contract
is an attribute of `Workload`, and a name to filter by.

History rows hold no database constraint to their workload: the authority is their only writer, a constraint would
lock the parent's row once more for every event, and a pruned workload goes before its history. `workloads_verify`
looks for orphans instead. `docs/schema.md` has the measurements.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, Self, TypeVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from workloads.contract import AttemptStatus, WorkloadState
from workloads.fields import JSONTextField, RetryPolicyField, StringSetField, TimeoutsField

IDENTIFIER_LENGTH = 200
MADE_ID_LENGTH = 64
AUTHORITY_ALONE = "This row is written by workloads.authority alone, and history is never changed."
STATES = [(state.value, state.value) for state in WorkloadState]
STATUSES = [(status.value, status.value) for status in AttemptStatus]


def _identifier(name: Any, **options: Any) -> models.CharField[str, str]:
    return models.CharField(name, max_length=IDENTIFIER_LENGTH, **options)


def _made_id(name: Any, **options: Any) -> models.CharField[str, str]:
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


class WorkloadQuerySet(ReadOnlyQuerySet["Workload"]):
    """Questions about workloads."""

    def newest_first(self) -> Self:
        """Return the same workloads, those admitted last in front."""
        return self.order_by("-created_at", "-admitted_id")


class ReadOnly(models.Model):
    """A row that the authority alone writes."""

    objects: ClassVar = ReadOnlyQuerySet.as_manager()

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(AUTHORITY_ALONE)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(AUTHORITY_ALONE)


class Lane(models.Model):
    """Work that the same workers may claim: one tenant, application, definition, revision and capability set.

    A claim looks for the lanes that it may serve in this small table, and then for work in those alone.
    """

    lane_key = models.UUIDField(_("lane key"), unique=True, help_text=_("A digest of the other columns."))
    tenant_id = _identifier(_("tenant"))
    application_id = _identifier(_("application"))
    definition_id = _identifier(_("definition"))
    definition_revision = _identifier(_("revision"))
    capabilities = StringSetField(_("capabilities"))

    class Meta:
        verbose_name = _("lane")
        verbose_name_plural = _("lanes")

    def __str__(self) -> str:
        return f"{self.tenant_id}/{self.application_id}/{self.definition_id}@{self.definition_revision}"


class Admitted(ReadOnly):
    """What was admitted. Written once, with the first two events, and never changed."""

    id = models.BigAutoField(primary_key=True)
    workload_id = _made_id(_("workload id"))
    tenant_id = _identifier(_("tenant"))
    application_id = _identifier(_("application"))
    requested_by = _identifier(_("requested by"))
    idempotency_key = _identifier(_("idempotency key"))
    contract_version = models.PositiveIntegerField(_("contract version"))
    definition_id = _identifier(_("definition"))
    definition_revision = _identifier(_("revision"))
    environment = _identifier(_("environment"))
    input = JSONTextField(_("input"))
    input_hash = models.CharField(_("input hash"), max_length=64)
    trigger = _identifier(_("trigger"), blank=True)
    session_id = _identifier(_("session"), null=True, blank=True)
    capability_snapshot = StringSetField(_("capabilities"))
    connection_scopes = StringSetField(_("connection scopes"))
    grant = models.TextField(_("grant"), null=True, blank=True)
    retry_policy = RetryPolicyField(_("retry policy"))
    timeouts = TimeoutsField(_("timeouts"))
    not_before = models.DateTimeField(_("not before"), null=True, blank=True)
    created_at = models.DateTimeField(_("created"))
    lane = models.ForeignKey(Lane, models.PROTECT, related_name="+", db_constraint=False, db_index=False)
    ancestry_is_closed = models.BooleanField(
        _("ancestry is closed"),
        help_text=_("Everything it depends on, directly or not, existed when it was admitted: no cycle can reach it."),
    )

    class Meta:
        verbose_name = _("admitted work")
        verbose_name_plural = _("admitted work")
        # As a constraint: `unique=True` would make a second index on PostgreSQL, for LIKE.
        constraints = [models.UniqueConstraint(fields=["workload_id"], name="workloads_identity")]
        indexes = [
            models.Index(fields=["tenant_id", "application_id", "created_at", "id"], name="workloads_newest"),
        ]

    def __str__(self) -> str:
        return self.workload_id


class Workload(Admitted):
    """How a workload stands. Written by `workloads.authority.records` alone, under two guards."""

    admitted = models.OneToOneField(
        Admitted, models.CASCADE, parent_link=True, primary_key=True, related_name="standing", db_constraint=False
    )
    version = models.PositiveBigIntegerField(_("version"))
    state = models.CharField(_("state"), max_length=24, choices=STATES)
    priority = models.IntegerField(_("priority"))
    next_attempt_at = models.DateTimeField(_("next attempt"), null=True, blank=True)
    attempt_count = models.PositiveIntegerField(_("attempts"), default=0)
    retry_count = models.PositiveIntegerField(_("retries"), default=0)
    release_count = models.PositiveIntegerField(_("releases"), default=0)
    uncounted_releases = models.PositiveIntegerField(_("uncounted releases"), default=0)
    operator_retries = models.PositiveIntegerField(_("operator retries"), default=0)
    fencing_token = models.PositiveBigIntegerField(_("fencing token"), default=0)
    last_failure = models.TextField(_("last failure"), null=True, blank=True)
    updated_at = models.DateTimeField(_("updated"))
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True)
    overall_from = models.DateTimeField(_("overall deadline runs from"))

    claim_id = _made_id(_("claim"), null=True, blank=True)
    worker_id = _identifier(_("worker"), null=True, blank=True)
    claimed_at = models.DateTimeField(_("claimed"), null=True, blank=True)
    last_heartbeat = models.DateTimeField(_("last heartbeat"), null=True, blank=True)
    expires_at = models.DateTimeField(_("lease ends"), null=True, blank=True)
    attempt_id = _made_id(_("attempt"), null=True, blank=True)
    started_at = models.DateTimeField(_("started"), null=True, blank=True)

    event_count = models.PositiveIntegerField(_("events"), default=0)
    checkpoint_count = models.PositiveIntegerField(_("checkpoints"), default=0)

    dependency_standing = models.CharField(_("dependencies"), max_length=10, default="met")
    due_at = models.DateTimeField(_("clock is due"), null=True, blank=True)
    queued_lane_id = models.BigIntegerField(_("queued in lane"), null=True, blank=True)
    waiting_lane_id = models.BigIntegerField(_("waiting in lane"), null=True, blank=True)

    objects: ClassVar = WorkloadQuerySet.as_manager()

    class Meta:
        verbose_name = _("workload")
        verbose_name_plural = _("workloads")
        permissions = [("rearm_workload", "Can re-arm a workload")]
        indexes = [
            models.Index(
                fields=["queued_lane_id", "-priority", "next_attempt_at", "admitted"],
                name="workloads_queued",
                condition=Q(queued_lane_id__isnull=False),
            ),
            models.Index(
                fields=["waiting_lane_id", "next_attempt_at"],
                name="workloads_waiting",
                condition=Q(waiting_lane_id__isnull=False),
            ),
            models.Index(fields=["due_at", "admitted"], name="workloads_due", condition=Q(due_at__isnull=False)),
        ]


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
    actor = _identifier(_("actor"))
    evidence = JSONTextField(_("evidence"))

    class Meta:
        verbose_name = _("event")
        verbose_name_plural = _("events")
        ordering = ["record", "sequence"]
        constraints = [models.UniqueConstraint(fields=["record", "sequence"], name="workloads_event_sequence")]

    def __str__(self) -> str:
        return f"{self.sequence}: {self.from_state or '∅'} → {self.to_state}"


class Attempt(ReadOnly):
    """One claim of a workload, and how it ended."""

    record = _record("attempts")
    number = models.PositiveIntegerField(_("number"))
    attempt_id = _made_id(_("attempt id"))
    claim_id = _made_id(_("claim"))
    worker_id = _identifier(_("worker"))
    fencing_token = models.PositiveBigIntegerField(_("fencing token"))
    status = models.CharField(_("status"), max_length=12, choices=STATUSES)
    claimed_at = models.DateTimeField(_("claimed"))
    started_at = models.DateTimeField(_("started"), null=True, blank=True)
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)
    ended_by = models.CharField(
        _("ended by"), max_length=8, blank=True, help_text=_("The voice that ended it: worker, operator or clock.")
    )
    error = models.TextField(_("error"), null=True, blank=True)
    failure_kind = _identifier(_("failure kind"), null=True, blank=True)
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
    checkpoint_id = _made_id(_("checkpoint id"))
    attempt_id = _made_id(_("attempt id"))
    key = _identifier(_("key"), null=True, blank=True)
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
    result_id = _identifier(_("result id"))
    attempt_id = _made_id(_("attempt id"))
    produced_by = _identifier(_("produced by"))
    output = JSONTextField(_("output"))
    output_hash = models.CharField(_("output hash"), max_length=64)
    artifacts = JSONTextField(_("artifacts"))
    schema_version = models.PositiveIntegerField(_("schema version"))
    claim_id = _made_id(_("claim"))
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
    depends_on = _identifier(_("depends on"))
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


class ClaimRequest(models.Model):
    """A claim call that named itself, so that its repeat gets the same claims."""

    request_key = models.UUIDField(_("request key"), unique=True, help_text=_("A digest of worker and request id."))
    worker_id = _identifier(_("worker"))
    request_id = _identifier(_("request id"))
    verb = models.CharField(_("verb"), max_length=12)
    workload_id = models.CharField(_("workload id"), max_length=IDENTIFIER_LENGTH, blank=True)
    granted = JSONTextField(_("granted"), help_text=_("The claims handed out: pairs of workload key and claim id."))

    class Meta:
        verbose_name = _("claim request")
        verbose_name_plural = _("claim requests")

    def __str__(self) -> str:
        return f"{self.worker_id}: {self.request_id}"


class Tombstone(models.Model):
    """What is left of a pruned workload: its identity is taken, and so is its result's."""

    workload_id = _made_id(_("workload id"))
    tenant_id = _identifier(_("tenant"))
    application_id = _identifier(_("application"))
    state = models.CharField(_("state"), max_length=24, choices=STATES)
    finished_at = models.DateTimeField(_("finished"), null=True)
    result_key = models.UUIDField(_("result key"), unique=True, null=True)
    pruned_at = models.DateTimeField(_("pruned"))

    class Meta:
        verbose_name = _("tombstone")
        verbose_name_plural = _("tombstones")
        constraints = [models.UniqueConstraint(fields=["workload_id"], name="workloads_tombstone_identity")]

    def __str__(self) -> str:
        return self.workload_id


class ApplicationLock(models.Model):
    """A row to lock while an admission looks whether it would close a cycle."""

    lock_key = models.UUIDField(_("lock key"), unique=True, help_text=_("A digest of tenant and application."))

    class Meta:
        verbose_name = _("application lock")
        verbose_name_plural = _("application locks")

    def __str__(self) -> str:
        return str(self.lock_key)


class PassRun(models.Model):
    """When a pass last ran. One row; `explain` reads its age."""

    id = models.PositiveSmallIntegerField(primary_key=True)
    ran_at = models.DateTimeField(_("ran"))

    class Meta:
        verbose_name = _("pass")
        verbose_name_plural = _("passes")

    def __str__(self) -> str:
        return f"{self.ran_at:%Y-%m-%dT%H:%M:%SZ}"
