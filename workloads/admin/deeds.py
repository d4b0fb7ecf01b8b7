"""What operators may do from the admin, in words: who may, what it is called, what it will do to work in each state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django import forms
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _, gettext_lazy, ngettext_lazy

from workloads.contract import WorkloadState
from workloads.errors import (
    WORKLOAD_CONFLICT,
    WORKLOAD_NOT_FOUND,
    WORKLOAD_TIMED_OUT,
    WORKLOAD_TRANSITION_DENIED,
    WorkloadError,
)
from workloads.lifecycle import arguments, secrets
from workloads.lifecycle.interventions import Verb, leads_to
from workloads.lifecycle.states import FINAL, HELD, PARKED

S = WorkloadState


@dataclass(frozen=True, kw_only=True, slots=True)
class Deed:
    """One thing that an operator may do. `path` is its address below the list's; `right` the permission that it needs.

    The rest are words, translated when they are shown; those of the button take a number.
    """

    verb: Verb
    path: str
    right: str
    offer: Any
    entry: Any
    title: Any
    title_of_many: Any
    button: Any
    nothing: Any

    @property
    def url_name(self) -> str:
        return f"workloads_workload_{self.verb}"

    def is_open_to(self, user: Any) -> bool:
        """Whether this person may do it: by the right of its own, and that to look."""
        return user.has_perms(("workloads.view_workload", self.right))


DEEDS: Final[Mapping[Verb, Deed]] = {
    deed.verb: deed
    for deed in (
        Deed(
            verb=Verb.REARM,
            path="rearm/",
            right="workloads.rearm_workload",
            offer=gettext_lazy("Re-arm…"),
            entry=gettext_lazy("Re-arm selected workloads…"),
            title=gettext_lazy("Re-arm workloads"),
            title_of_many=gettext_lazy("Re-arm all that match"),
            button=ngettext_lazy("Re-arm %(count)s workload", "Re-arm %(count)s workloads", "number"),
            nothing=gettext_lazy("None of these is parked, so there is nothing to re-arm."),
        ),
        Deed(
            verb=Verb.CANCEL,
            path="cancel/",
            right="workloads.cancel_workload",
            offer=gettext_lazy("Cancel…"),
            entry=gettext_lazy("Cancel selected workloads…"),
            title=gettext_lazy("Cancel workloads"),
            title_of_many=gettext_lazy("Cancel all that match"),
            button=ngettext_lazy("Cancel %(count)s workload", "Cancel %(count)s workloads", "number"),
            nothing=gettext_lazy("None of these can be cancelled any more."),
        ),
        Deed(
            verb=Verb.FORCE_CANCEL,
            path="force-cancel/",
            right="workloads.cancel_workload",
            offer=gettext_lazy("Cancel by force…"),
            entry=gettext_lazy("Cancel selected workloads by force…"),
            title=gettext_lazy("Cancel workloads by force"),
            title_of_many=gettext_lazy("Cancel by force all that match"),
            button=ngettext_lazy("Cancel %(count)s workload by force", "Cancel %(count)s workloads by force", "number"),
            nothing=gettext_lazy("None of these can be cancelled any more."),
        ),
        Deed(
            verb=Verb.TIME_OUT,
            path="time-out/",
            right="workloads.timeout_workload",
            offer=gettext_lazy("Time out…"),
            entry=gettext_lazy("Time out selected workloads…"),
            title=gettext_lazy("Time out workloads"),
            title_of_many=gettext_lazy("Time out all that match"),
            button=ngettext_lazy("Time out %(count)s workload", "Time out %(count)s workloads", "number"),
            nothing=gettext_lazy("None of these waits or is held by a worker, so there is nothing to time out."),
        ),
    )
}

# What was done, by the state that it led to.
DONE: Final[Mapping[str, Any]] = {
    S.READY: ngettext_lazy("%(count)s workload was re-armed.", "%(count)s workloads were re-armed.", "number"),
    S.CANCELLED: ngettext_lazy("%(count)s workload was cancelled.", "%(count)s workloads were cancelled.", "number"),
    S.CANCELLATION_REQUESTED: ngettext_lazy(
        "The worker of %(count)s workload was asked to stop, and has to confirm.",
        "The workers of %(count)s workloads were asked to stop, and have to confirm.",
        "number",
    ),
    S.TIMED_OUT: ngettext_lazy("%(count)s workload was timed out.", "%(count)s workloads were timed out.", "number"),
}


def applies(verb: Verb, state: str) -> bool:
    """Whether the verb changes work in this state."""
    return leads_to(verb, state) not in {None, state}


def effects(verb: Verb, states: Iterable[str]) -> list[str]:
    """Return sentences that say what the verb will do to work in these states, to which it applies."""
    found = set(states)
    is_held = bool(found & HELD)
    others = bool(found - HELD)
    said = []
    if verb is Verb.REARM:
        said.append(
            _(
                "Each becomes READY and is due at once, with one attempt more than it had. What its past attempts did "
                "stays in its history, and its checkpoints are there for the next one."
            )
        )
    elif verb is Verb.TIME_OUT:
        said.append(_("Each comes to rest as TIMED_OUT, and is not retried until somebody re-arms it."))
    elif others:
        said.append(_("What waits or is parked is CANCELLED at once, and for good: it can't be re-armed any more."))
    if verb is Verb.CANCEL and is_held:
        said.append(
            _(
                "What a worker holds is not stopped by this: its worker is asked to stop, and has to confirm. If it "
                "does not, the end of its lease cancels the work."
            )
        )
    elif verb is not Verb.REARM and is_held:
        said.append(
            _(
                "What a worker holds is taken from it at once: nothing that the worker reports from then on is "
                "recorded. But nobody stops the worker itself: an effect that is under way, such as a payment or a "
                "mail, may still happen."
            )
        )
    said.append(_("Work that has moved on since this page was made is left alone, and reported."))
    return said


def why_not(verb: Verb, state: str) -> str:
    """Say why the verb does not apply to work in this state."""
    if state not in set(S):
        return _("Its state is not known to this version.")
    if state == S.CANCELLED and verb in {Verb.CANCEL, Verb.FORCE_CANCEL}:
        return _("It is cancelled already.")
    if state == S.CANCELLATION_REQUESTED and verb is Verb.CANCEL:
        return _("Its worker was asked to stop already, and has to confirm. To end it now, cancel it by force.")
    if state == S.CANCELLATION_REQUESTED and verb is Verb.TIME_OUT:
        return _("Its worker was asked to stop: it confirms, or its lease ends. To end it now, cancel it by force.")
    if state in FINAL:
        return _("It has ended for good.")
    if state in HELD:
        return _("A worker holds it, and it is not parked.")
    if state in PARKED:
        return _("It is parked already.")
    return _("It waits for a worker, and is not parked.")


def explained(code: str, message: str) -> str:
    """Return a refusal in words for the person who sees it, with its code."""
    words = {
        WORKLOAD_CONFLICT: _("It has moved on since you looked at it; look again."),
        WORKLOAD_NOT_FOUND: _("It no longer exists."),
        WORKLOAD_TIMED_OUT: _("Its overall deadline has passed: it is re-armed only if that starts anew."),
        WORKLOAD_TRANSITION_DENIED: _("Its state does not allow it."),
        "UNREADABLE": _("Its record can't be read."),
        "NOT_WRITTEN": _("The database did not take it."),
    }
    return f"{words.get(code, message)} ({code})"


class ReasonForm(forms.Form):
    """What an operator says to decide on work."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        widget=forms.Textarea(attrs={"rows": 3, "maxlength": arguments.MAX_REASON_CHARS, "class": "vLargeTextField"}),
        help_text=gettext_lazy("Stays in the history of each workload, with your name."),
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


class RearmForm(ReasonForm):
    """What an operator says to re-arm work."""

    restart_overall = forms.BooleanField(
        label=gettext_lazy("Start the overall deadline anew"),
        required=False,
        help_text=gettext_lazy("Needed where it has passed: else such work is refused."),
    )


def form_for(verb: Verb, data: Any = None) -> ReasonForm:
    """Return the form that asks for what the verb needs."""
    return RearmForm(data) if verb is Verb.REARM else ReasonForm(data)


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
