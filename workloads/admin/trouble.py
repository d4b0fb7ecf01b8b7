"""What is wrong, if anything is: which figures ask for somebody, how urgently, and what the sentence says."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from django.utils.formats import number_format
from django.utils.timesince import timesince
from django.utils.translation import gettext as _, ngettext

from workloads.admin.figures import Capped
from workloads.admin.flow import FAILED
from workloads.admin.page_text import visible
from workloads.admin.survey import Survey
from workloads.contract import WorkloadState
from workloads.lifecycle.signs import PASS_IS_LATE, WORKER_IS_GONE

WRONG: Final = "wrong"
ATTENTION: Final = "attention"
WELL: Final = "well"

WAITED_LONG: Final = dt.timedelta(minutes=10)
WAITED_TOO_LONG: Final = dt.timedelta(hours=1)
LEAST_FAILURES: Final = 10

S = WorkloadState
PASSED_THROUGH: Final = (S.CREATED, S.RECOVERING)

List = Callable[..., str]
"""Returns the address of the list of workloads, narrowed by these parameters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """One thing that asks for somebody, and where to look."""

    level: str
    text: str
    url: str


def say(counted: Capped) -> str:
    """Return a count in the reader's digits; with a plus sign where there may be more."""
    number = number_format(counted.count, use_l10n=True, force_grouping=True)
    return _("%(number)s+") % {"number": number} if counted.more else number


def level_of(reasons: list[Reason]) -> str:
    """Return the gravest level among the reasons."""
    levels = {reason.level for reason in reasons}
    return next((level for level in (WRONG, ATTENTION) if level in levels), WELL)


def reasons(survey: Survey, list_of: List) -> list[Reason]:
    """Return what asks for somebody, the gravest first."""
    found = [*_clock(survey), *_workers(survey, list_of), *_records(survey), *_work(survey, list_of)]
    return sorted(found, key=lambda reason: reason.level != WRONG)


def _clock(survey: Survey) -> Iterator[Reason]:
    if survey.last_pass is None:
        text = _(
            "No pass has ever run: no deadline is enforced, and lost work is not taken back. Start "
            "“manage.py workloads_pass --interval 10”."
        )
        yield Reason(level=WRONG, text=text, url="#workloads-signs")
    elif survey.at - survey.last_pass >= PASS_IS_LATE:
        text = _(
            "The last pass ran %(time)s ago: since then no deadline has been enforced, and lost work has not been "
            "taken back. Start “manage.py workloads_pass --interval 10”."
        )
        yield Reason(level=WRONG, text=text % _time(survey.last_pass, survey), url="#workloads-signs")
    leases = survey.overdue.leases.counted
    if leases.count:
        text = ngettext(
            "%(count)s lease is over, and nobody has taken the work back.",
            "%(count)s leases are over, and nobody has taken the work back.",
            leases.count,
        )
        yield Reason(level=WRONG, text=text % {"count": say(leases)}, url="#workloads-stuck")
    deadlines = survey.overdue.deadlines.counted
    if deadlines.count:
        text = ngettext(
            "%(count)s workload is past its deadline, and nobody has timed it out.",
            "%(count)s workloads are past their deadlines, and nobody has timed them out.",
            deadlines.count,
        )
        yield Reason(level=WRONG, text=text % {"count": say(deadlines)}, url="#workloads-stuck")


def _workers(survey: Survey, list_of: List) -> Iterator[Reason]:
    if not survey.due.count:
        return
    if not survey.workers.count:
        said = {"count": say(survey.due), "minutes": int(WORKER_IS_GONE.total_seconds() // 60)}
        text = ngettext(
            "%(count)s workload is due, and no worker has been seen for %(minutes)d minutes.",
            "%(count)s workloads are due, and no worker has been seen for %(minutes)d minutes.",
            survey.due.count,
        )
        yield Reason(level=WRONG, text=text % said, url="#workloads-signs")
    oldest = survey.oldest[0].item.since if survey.oldest else None
    if oldest is not None and survey.at - oldest >= WAITED_LONG:
        level = WRONG if survey.at - oldest >= WAITED_TOO_LONG else ATTENTION
        text = _("Work that could be claimed has been waiting for %(time)s.") % _time(oldest, survey)
        yield Reason(level=level, text=text, url=list_of(due="now"))


def _records(survey: Survey) -> Iterator[Reason]:
    known = set(S)
    for state, counted in survey.states.items():
        said: dict[str, Any] = {"count": say(counted), "state": visible(state)}
        if state not in known:
            text = ngettext(
                "%(count)s workload is in the state “%(state)s”, which this version does not know.",
                "%(count)s workloads are in the state “%(state)s”, which this version does not know.",
                counted.count,
            )
            yield Reason(level=WRONG, text=text % said, url="#workloads-states")
        elif state in PASSED_THROUGH:
            text = ngettext(
                "%(count)s workload rests in %(state)s, which work only passes through. Run “manage.py "
                "workloads_verify”.",
                "%(count)s workloads rest in %(state)s, which work only passes through. Run “manage.py "
                "workloads_verify”.",
                counted.count,
            )
            yield Reason(level=WRONG, text=text % said, url="#workloads-states")


def _work(survey: Survey, list_of: List) -> Iterator[Reason]:
    lately = survey.dead.lately
    if lately.count:
        text = ngettext(
            "%(count)s workload became a dead letter in the last hour.",
            "%(count)s workloads became dead letters in the last hour.",
            lately.count,
        )
        url = list_of(state=S.DEAD_LETTER.value, finished_from="1h")
        yield Reason(level=ATTENTION, text=text % {"count": say(lately)}, url=url)
    failed = sum(tally.of(*FAILED) for tally in survey.minutes.tried.values())
    succeeded = sum(tally.of(S.SUCCEEDED.value) for tally in survey.minutes.ended.values())
    if failed >= LEAST_FAILURES and failed > succeeded:
        text = _("In the last hour more attempts failed (%(failed)s) than succeeded (%(succeeded)s).")
        said = {"failed": say(Capped(failed)), "succeeded": say(Capped(succeeded))}
        yield Reason(level=ATTENTION, text=text % said, url="#workloads-flow")
    cancelling = survey.cancelling.counted
    if cancelling.count:
        text = ngettext(
            "%(count)s cancellation has not been confirmed by its worker.",
            "%(count)s cancellations have not been confirmed by their workers.",
            cancelling.count,
        )
        url = list_of(state=S.CANCELLATION_REQUESTED.value)
        yield Reason(level=ATTENTION, text=text % {"count": say(cancelling)}, url=url)
    yield from _blocked(survey)


def _blocked(survey: Survey) -> Iterator[Reason]:
    waiting = survey.waiting_for_dead.counted
    if waiting.count:
        text = ngettext(
            "%(count)s workload waits for a dead letter, and can't run before somebody re-arms that.",
            "%(count)s workloads wait for dead letters, and can't run before somebody re-arms those.",
            waiting.count,
        )
        yield Reason(level=ATTENTION, text=text % {"count": say(waiting)}, url="#workloads-stuck")
    missing = survey.overdue.missing.counted
    if missing.count:
        text = ngettext(
            "%(count)s workload waits for work that nobody has admitted.",
            "%(count)s workloads wait for work that nobody has admitted.",
            missing.count,
        )
        yield Reason(level=ATTENTION, text=text % {"count": say(missing)}, url="#workloads-stuck")
    unmeetable = survey.overdue.unmeetable.counted
    if unmeetable.count:
        text = ngettext(
            "%(count)s workload waits for what can't come about any more, and no pass has given it up.",
            "%(count)s workloads wait for what can't come about any more, and no pass has given them up.",
            unmeetable.count,
        )
        yield Reason(level=WRONG, text=text % {"count": say(unmeetable)}, url="#workloads-stuck")


def _time(at: dt.datetime, survey: Survey) -> dict[str, str]:
    return {"time": timesince(at, survey.at, depth=2)}
