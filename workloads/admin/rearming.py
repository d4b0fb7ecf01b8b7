"""Re-arming from the admin: what is about to happen, the reason, and what became of each workload."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from django import forms
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.core.exceptions import ValidationError
from django.db import DatabaseError
from django.utils.translation import gettext as _, gettext_lazy

from workloads import authority
from workloads.admin.display import NOTHING, short, word
from workloads.admin.listing import without_payloads
from workloads.errors import WORKLOAD_CONFLICT, WORKLOAD_NOT_FOUND, WorkloadError
from workloads.lifecycle import arguments, secrets
from workloads.lifecycle.states import PARKED
from workloads.models import Workload

MOST_AT_ONCE: Final = 200
_LARGEST_KEY: Final = 2**63 - 1

logger = logging.getLogger("workloads.admin")


class RearmForm(forms.Form):
    """What an operator says to re-arm work."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        widget=forms.Textarea(attrs={"rows": 3, "maxlength": arguments.MAX_REASON_CHARS, "class": "vLargeTextField"}),
        help_text=gettext_lazy("Stays in the history of each workload, with your name."),
    )
    restart_overall = forms.BooleanField(
        label=gettext_lazy("Start the overall deadline anew"),
        required=False,
        help_text=gettext_lazy("Needed where it has passed: else such work is refused."),
    )

    def clean_reason(self) -> str:
        """Return the reason as the authority takes it; what it would refuse is said at the field."""
        # Browsers send two characters for each line's end, and count one.
        reason: str = self.cleaned_data["reason"].replace("\r\n", "\n")
        try:
            arguments.reason(reason)
            secrets.check_text(reason, field="reason")
        except WorkloadError as refusal:
            raise ValidationError(refusal.message, code=refusal.code) from refusal
        return reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One workload to be re-armed. `seen` is the version that the operator decides on."""

    workload: Workload
    seen: int

    @property
    def state(self) -> str:
        return word(self.workload.state)

    @property
    def failure(self) -> str:
        return short(self.workload.failure_head or NOTHING)  # type: ignore[attr-defined]

    @property
    def is_parked(self) -> bool:
        return self.workload.state in PARKED

    @property
    def has_moved(self) -> bool:
        """Whether it is no longer what the operator saw."""
        return self.seen != self.workload.version

    @property
    def budget(self) -> int:
        return self.workload.retry_policy.max_attempts + self.workload.operator_retries

    @property
    def used(self) -> int:
        return self.workload.attempt_count - self.workload.uncounted_releases


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of one workload; `refusal` is None where it was re-armed."""

    name: str
    refusal: str | None


def parse_keys(texts: Iterable[str]) -> dict[int, int | None]:
    """Return the keys in `pk` or `pk:version` texts, with the versions; what is neither is left out."""
    found: dict[int, int | None] = {}
    for text in texts:
        key, _colon, version = text.partition(":")
        numbers = [int(part) if part.isascii() and part.isdigit() and len(part) < 20 else -1 for part in (key, version)]
        if 0 < numbers[0] <= _LARGEST_KEY:
            found[numbers[0]] = numbers[1] if 0 < numbers[1] <= _LARGEST_KEY else None
    return found


def find(wanted: dict[int, int | None]) -> list[Item]:
    """Return the workloads with these keys, oldest first. Without a version, the present one is what is seen."""
    rows = without_payloads(Workload.objects.filter(pk__in=list(wanted))).order_by("pk")
    return [Item(workload=row, seen=wanted[row.pk] or row.version) for row in rows]


def rearm(
    wanted: dict[int, int | None], *, user: AbstractBaseUser | AnonymousUser, reason: str, restart_overall: bool
) -> list[Outcome]:
    """Re-arm each workload that still stands as it was seen; say of each what became of it."""
    names = dict(Workload.objects.filter(pk__in=list(wanted)).values_list("pk", "workload_id"))
    actor = actor_name(user)
    outcomes = []
    for key, seen in sorted(wanted.items()):
        if key not in names:
            outcomes.append(Outcome(name=f"#{key}", refusal=_("It no longer exists.")))
            continue
        refusal = None
        try:
            authority.rearm(
                names[key], actor=actor, reason=reason, expected_version=seen, restart_overall=restart_overall
            )
        except WorkloadError as error:
            refusal = _explained(error)
        except DatabaseError:
            logger.exception("%s could not be re-armed.", names[key])
            refusal = _("The database did not take it; try again.")
        outcomes.append(Outcome(name=names[key], refusal=refusal))
    return outcomes


def _explained(error: WorkloadError) -> str:
    if error.code == WORKLOAD_CONFLICT:
        said = _("It has moved on since you looked at it; look again.")
    elif error.code == WORKLOAD_NOT_FOUND:
        said = _("It no longer exists.")
    else:
        said = error.message
    return f"{said} ({error.code})"


def actor_name(user: AbstractBaseUser | AnonymousUser) -> str:
    """Return the name under which a person's decision stands in the history.

    The user name; where that can't be an actor, or would pass for one of the authority's, the user's key.
    """
    name = user.get_username()
    try:
        arguments.identifier(name, "actor")
    except WorkloadError:
        return f"user:{user.pk}"
    return f"user:{user.pk}" if name.startswith("authority.") else name
