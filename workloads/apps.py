"""How Django installs the app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class WorkloadsConfig(AppConfig):
    """The app `workloads`, with its system checks."""

    name = "workloads"
    verbose_name = _("Workloads")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from workloads import checks, signals, wakeups

        checks.register_all()
        signals.work_queued.connect(wakeups.announce, dispatch_uid="workloads.wakeups")
