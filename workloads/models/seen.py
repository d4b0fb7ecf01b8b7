"""Which workers have been seen of late. Nothing that decides reads this table."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from workloads.fields import StringSetField
from workloads.models.rows import identifier


class SeenWorker(models.Model):
    """A worker's last signs of life in one place, written at most every ten seconds.

    No row refers to it and it refers to none: it may be deleted at any time, and comes again with the next sign.
    """

    worker_key = models.UUIDField(_("worker key"), unique=True, help_text=_("A digest of place and worker id."))
    worker_id = identifier(_("worker"))
    incarnation = identifier(_("incarnation"), blank=True, help_text=_("What tells a worker from one before it."))
    is_remote = models.BooleanField(_("over HTTP"), default=False)
    tenant_id = identifier(_("tenant"), null=True, blank=True, help_text=_("Empty: it claims work of all."))
    application_id = identifier(_("application"), null=True, blank=True, help_text=_("Empty: it claims work of all."))
    capabilities = StringSetField(_("capabilities"))
    definitions = StringSetField(_("definitions"), null=True, help_text=_("Empty: it claims work of all."))
    first_seen_at = models.DateTimeField(_("first seen"))
    seen_at = models.DateTimeField(_("last seen"))
    asked_at = models.DateTimeField(_("last asked for work"), null=True, blank=True)
    claimed_at = models.DateTimeField(_("last claim"), null=True, blank=True)
    heartbeat_at = models.DateTimeField(_("last heartbeat"), null=True, blank=True)

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["seen_at"], name="workloads_seen"),
            models.Index(fields=["worker_id"], name="workloads_seen_worker"),
        ]

    def __str__(self) -> str:
        return self.worker_id
