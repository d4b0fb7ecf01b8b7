"""An operator's decision on many workloads at once: what was selected, and what could not be done."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from workloads.fields import JSONTextField
from workloads.models.rows import identifier

VERBS = [
    ("rearm", _("re-arm")),
    ("cancel", _("cancel")),
    ("force_cancel", _("cancel by force")),
    ("time_out", _("time out")),
]
STAGES = [
    ("selecting", _("selecting")),
    ("asking", _("to be confirmed")),
    ("running", _("under way")),
    ("done", _("done")),
    ("stopped", _("stopped")),
]


class BulkAction(models.Model):
    """One decision on all that matched a filter, carried out in batches, each of which is one transaction."""

    verb = models.CharField(_("action"), max_length=16, choices=VERBS)
    stage = models.CharField(_("stage"), max_length=16, choices=STAGES)
    actor = identifier(_("begun by"))
    confirmed_by = identifier(_("confirmed by"), blank=True)
    stopped_by = identifier(_("stopped by"), blank=True)
    reason = models.TextField(_("reason"), blank=True)
    restart_overall = models.BooleanField(_("overall deadline starts anew"), default=False)
    criteria = models.TextField(_("filter"), blank=True, help_text=_("As in the address of the list."))
    states = JSONTextField(_("states"), default=dict, help_text=_("How many were selected in each state."))
    upto = models.BigIntegerField(_("up to"), help_text=_("The last key that may be selected."))
    selected_upto = models.BigIntegerField(_("selected up to"), default=0)
    done_upto = models.BigIntegerField(_("done up to"), default=0)
    selected_count = models.PositiveIntegerField(_("selected"), default=0)
    done_count = models.PositiveIntegerField(_("done"), default=0)
    refused_count = models.PositiveIntegerField(_("refused"), default=0)
    refusals = JSONTextField(_("refusals"), default=dict, help_text=_("How many were refused with each code."))
    items_are_kept = models.BooleanField(_("items are kept"), default=True)
    created_at = models.DateTimeField(_("begun"))
    updated_at = models.DateTimeField(_("last went on"))

    class Meta:
        verbose_name = _("bulk action")
        verbose_name_plural = _("bulk actions")
        # Who may look at workloads may look at what was decided on them.
        default_permissions = ()
        indexes = [models.Index(fields=["items_are_kept", "updated_at"], name="workloads_bulk_kept")]

    def __str__(self) -> str:
        return f"{self.get_verb_display()} {self.pk}"

    @property
    def left_count(self) -> int:
        """How many of the selected have not been tried."""
        return self.selected_count - self.done_count - self.refused_count


class BulkItem(models.Model):
    """One selected workload, as it was then. `code` is None until it was tried; with what is done the item goes."""

    action_id = models.BigIntegerField(_("bulk action"))
    record = models.BigIntegerField(_("workload"))
    version = models.PositiveBigIntegerField(_("version"))
    state = models.CharField(_("state"), max_length=24)
    code = models.CharField(_("refusal"), max_length=64, null=True)
    message = models.TextField(_("message"), blank=True)

    class Meta:
        verbose_name = _("item of a bulk action")
        verbose_name_plural = _("items of bulk actions")
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["action_id", "record"], name="workloads_bulk_item_once")]

    def __str__(self) -> str:
        return f"{self.action_id}: {self.record}"
