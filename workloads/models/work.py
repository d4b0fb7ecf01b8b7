"""What was admitted, how it stands, and in which lane it waits."""

from __future__ import annotations

from typing import ClassVar, Self

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from workloads.fields import JSONTextField, RetryPolicyField, StringSetField, TimeoutsField
from workloads.models.rows import STATES, ReadOnly, ReadOnlyQuerySet, identifier, made_id


class WorkloadQuerySet(ReadOnlyQuerySet["Workload"]):
    """Questions about workloads."""

    def newest_first(self) -> Self:
        """Return the same workloads, those admitted last in front."""
        return self.order_by("-created_at", "-admitted_id")


class Lane(models.Model):
    """Work that the same workers may claim: one tenant, application, definition, revision and capability set.

    A claim looks for the lanes that it may serve in this small table, and then for work in those alone.
    """

    lane_key = models.UUIDField(_("lane key"), unique=True, help_text=_("A digest of the other columns."))
    tenant_id = identifier(_("tenant"))
    application_id = identifier(_("application"))
    definition_id = identifier(_("definition"))
    definition_revision = identifier(_("revision"))
    capabilities = StringSetField(_("capabilities"))

    class Meta:
        verbose_name = _("lane")
        verbose_name_plural = _("lanes")

    def __str__(self) -> str:
        return f"{self.tenant_id}/{self.application_id}/{self.definition_id}@{self.definition_revision}"


class Admitted(ReadOnly):
    """What was admitted. Written once, with the first two events, and never changed."""

    id = models.BigAutoField(primary_key=True)
    workload_id = made_id(_("workload id"))
    tenant_id = identifier(_("tenant"))
    application_id = identifier(_("application"))
    requested_by = identifier(_("requested by"))
    idempotency_key = identifier(_("idempotency key"))
    contract_version = models.PositiveIntegerField(_("contract version"))
    definition_id = identifier(_("definition"))
    definition_revision = identifier(_("revision"))
    environment = identifier(_("environment"))
    input = JSONTextField(_("input"))
    input_hash = models.CharField(_("input hash"), max_length=64)
    trigger = identifier(_("trigger"), blank=True)
    session_id = identifier(_("session"), null=True, blank=True)
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
            models.Index(fields=["tenant_id", "created_at", "id"], name="workloads_newest_of_tenant"),
            models.Index(
                fields=["tenant_id", "application_id", "requested_by", "created_at", "id"],
                name="workloads_newest_of_user",
            ),
            models.Index(
                fields=["tenant_id", "application_id", "definition_id", "created_at", "id"],
                name="workloads_newest_of_kind",
            ),
            models.Index(fields=["idempotency_key"], name="workloads_key"),
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

    claim_id = made_id(_("claim"), null=True, blank=True)
    worker_id = identifier(_("worker"), null=True, blank=True)
    claimed_at = models.DateTimeField(_("claimed"), null=True, blank=True)
    last_heartbeat = models.DateTimeField(_("last heartbeat"), null=True, blank=True)
    expires_at = models.DateTimeField(_("lease ends"), null=True, blank=True)
    attempt_id = made_id(_("attempt"), null=True, blank=True)
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
        permissions = [
            ("rearm_workload", "Can re-arm a workload"),
            ("cancel_workload", "Can cancel a workload"),
            ("timeout_workload", "Can time out a workload"),
            ("view_payload", "Can read inputs, outputs and checkpoints"),
        ]
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
            # For lists. What is finished is written to the second once, and what is held to the third for its claim.
            models.Index(fields=["state", "admitted"], name="workloads_state"),
            models.Index(fields=["priority", "admitted"], name="workloads_priority"),
            models.Index(
                fields=["next_attempt_at", "admitted"],
                name="workloads_next",
                condition=Q(next_attempt_at__isnull=False),
            ),
            models.Index(
                fields=["finished_at", "admitted"], name="workloads_finished", condition=Q(finished_at__isnull=False)
            ),
            models.Index(fields=["worker_id"], name="workloads_held", condition=Q(worker_id__isnull=False)),
            # What waits for other work, and what once did: the rest is never written to it.
            models.Index(
                fields=["state", "admitted"], name="workloads_blocked", condition=~Q(dependency_standing="met")
            ),
        ]
