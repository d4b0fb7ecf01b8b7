"""Who may do what over HTTP."""

from __future__ import annotations

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.utils.translation import gettext_lazy as _

from workloads.fields import StringSetField
from workloads.models.rows import identifier

ROLES = ("requester", "worker", "operator", "viewer")


class Access(models.Model):
    """What a user may do over HTTP, in one application of a tenant, or in all of the tenant's.

    The site writes these rows, in its admin or with `manage.py workloads_access`; without one, a user may do nothing.
    """

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="workload_access", verbose_name=_("user")
    )
    tenant_id = identifier(_("tenant"))
    application_id = identifier(
        _("application"), blank=True, help_text=_("Empty: all applications of the tenant, those to come included.")
    )
    is_requester = models.BooleanField(
        _("requester"), default=False, help_text=_("May admit work, and read and cancel what it admitted.")
    )
    is_worker = models.BooleanField(
        _("worker"), default=False, help_text=_("May claim work, and make every call with a fence.")
    )
    is_operator = models.BooleanField(
        _("operator"), default=False, help_text=_("May read, explain, cancel, re-arm and time out all work.")
    )
    is_viewer = models.BooleanField(_("viewer"), default=False, help_text=_("May read and explain all work."))
    reads_payloads = models.BooleanField(
        _("reads payloads"),
        default=False,
        help_text=_("A viewer sees inputs, outputs, artifacts and checkpoints too. The other roles do anyway."),
    )
    capabilities = StringSetField(
        _("capabilities"),
        default=frozenset,
        blank=True,
        help_text=_("The most that a worker may present, and that a requester may ask for."),
    )
    worker_prefix = identifier(
        _("worker prefix"), blank=True, help_text=_("What every worker id of this user must begin with.")
    )

    class Meta:
        verbose_name = _("access")
        verbose_name_plural = _("access")
        ordering = ["user", "tenant_id", "application_id"]
        constraints = [
            models.UniqueConstraint(fields=["user", "tenant_id", "application_id"], name="workloads_access_once")
        ]

    def __str__(self) -> str:
        return f"{self.user}: {self.tenant_id}/{self.application_id or '*'}"

    def roles(self) -> list[str]:
        """Return the names of the roles that it gives."""
        return [role for role in ROLES if getattr(self, f"is_{role}")]

    def clean(self) -> None:
        """Refuse a worker whose ids could be another user's: a fence would not tell the two apart."""
        super().clean()
        if not self.roles():
            raise ValidationError(_("Access without a role gives nothing."))
        if not self.is_worker:
            return
        others = Access.objects.filter(tenant_id=self.tenant_id, is_worker=True).exclude(user=self.user_id)
        for other in others.select_related("user"):
            apart = self.application_id and other.application_id and self.application_id != other.application_id
            if not apart and (
                self.worker_prefix.startswith(other.worker_prefix) or other.worker_prefix.startswith(self.worker_prefix)
            ):
                raise ValidationError(
                    {
                        "worker_prefix": _(
                            "%(user)s has the prefix “%(prefix)s” here: neither may begin with the other, so that no "
                            "worker can use another’s fence."
                        )
                        % {"user": other.user, "prefix": other.worker_prefix}
                    }
                )
