"""What the authority keeps for itself: claim calls, tombstones, locks, and when a pass ran."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from workloads.fields import JSONTextField
from workloads.models.rows import IDENTIFIER_LENGTH, STATES, identifier, made_id


class ClaimRequest(models.Model):
    """A claim call that named itself, so that its repeat gets the same claims."""

    request_key = models.UUIDField(_("request key"), unique=True, help_text=_("A digest of worker and request id."))
    worker_id = identifier(_("worker"))
    request_id = identifier(_("request id"))
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

    workload_id = made_id(_("workload id"))
    tenant_id = identifier(_("tenant"))
    application_id = identifier(_("application"))
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
