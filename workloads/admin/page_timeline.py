"""From a workload's record to the plain description of its life that `timeline` draws, in the reader's words."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from django.utils import timezone
from django.utils.formats import number_format
from django.utils.translation import gettext as _

from workloads.admin.page_record import MOST_ATTEMPTS, Record
from workloads.admin.page_rows import Row
from workloads.admin.timeline import Life, Mark, Picture, Point, Rule, Span
from workloads.contract import AttemptStatus, WorkloadState
from workloads.lifecycle import deadlines
from workloads.lifecycle.states import FINAL, HELD, OPEN_ATTEMPT, PARKED

MOST_LANES: Final = 12
WAITING: Final = 0
# What a person did, in the evidence of the event.
PEOPLES: Final = ("reason", "forced")

S = WorkloadState


def moment(at: dt.datetime) -> str:
    """Return an instant in the reader's time zone, to the millisecond, as text."""
    try:
        local = timezone.localtime(at)
    except OverflowError:
        # At the ends of the calendar another zone has no name for it.
        local = at
    return local.isoformat(sep=" ", timespec="milliseconds")[:23]


def lasting(span: dt.timedelta) -> str:
    """Return a length of time in its two greatest units, as text."""
    ms = abs(span) // dt.timedelta(milliseconds=1)
    seconds = ms // 1000
    if ms < 1000:
        return _("%(ms)d ms") % {"ms": ms}
    if seconds < 60:
        return _("%(seconds)s s") % {"seconds": number_format(f"{seconds}.{ms % 1000 // 100}", 1)}
    if seconds < 3600:
        return _("%(minutes)d min %(seconds)d s") % {"minutes": seconds // 60, "seconds": seconds % 60}
    if seconds < 86_400:
        return _("%(hours)d h %(minutes)d min") % {"hours": seconds // 3600, "minutes": seconds % 3600 // 60}
    return _("%(days)d d %(hours)d h") % {"days": seconds // 86_400, "hours": seconds % 86_400 // 3600}


class _Lanes:
    """The lanes: one for the time without a worker, one for each worker, and one for all beyond the most."""

    def __init__(self) -> None:
        self.labels = [_("no worker")]
        self.by_worker: dict[str, int] = {}

    def of(self, worker_id: str) -> int:
        if worker_id not in self.by_worker:
            if len(self.labels) < MOST_LANES:
                self.labels.append(worker_id or _("unknown worker"))
            elif len(self.labels) == MOST_LANES:
                self.labels.append(_("other workers"))
            self.by_worker[worker_id] = min(len(self.by_worker) + 1, MOST_LANES)
        return self.by_worker[worker_id]


def describe(record: Record) -> Life:
    """Return the life as far as its instants can be read."""
    lanes = _Lanes()
    spans = [*_attempts(record, lanes), *_waiting(record)]
    return Life(
        lanes=lanes.labels,
        spans=spans,
        marks=[*_ends(record, lanes), *_checkpoints(record, lanes), *_limits(record, lanes), *_decisions(record)],
        rules=list(_rules(record)),
        left_out=list(_left_out(record)),
    )


def _between(begin: dt.datetime, end: dt.datetime) -> str:
    return _("%(begin)s to %(end)s (%(lasting)s)") % {
        "begin": moment(begin),
        "end": moment(end),
        "lasting": lasting(end - begin),
    }


def _is_open(row: Row, record: Record) -> bool:
    held = record.workload.state in HELD and row.text("attempt_id") == (record.workload.attempt_id or "")
    return row["status"] in OPEN_ATTEMPT and row.instant("ended_at") is None and held


def _attempts(record: Record, lanes: _Lanes) -> Iterator[Span]:
    for row in record.attempts:
        begin = row.instant("claimed_at")
        if begin is None:
            lanes.of(row.text("worker_id"))
            continue
        is_open = _is_open(row, record)
        lease = record.workload.expires_at if is_open else None
        until = record.now if lease is None else min(lease, record.now)
        end = max(until, begin) if is_open else row.instant("ended_at") or begin
        lane = lanes.of(row.text("worker_id"))
        yield Span(
            lane=lane,
            begin=begin,
            end=end,
            kind=row.text("status"),
            label=f"{row.text('number')} {row.text('status')}",
            title=_said(row, begin, end),
            is_busy=True,
            lease_ends_at=lease if lease is not None and lease > end else None,
            lease_title="" if lease is None else _("Its lease lasts until %(at)s") % {"at": moment(lease)},
        )
        if lease is not None and end < record.now:
            said = _("Its lease is over, and it waits for a pass")
            yield _span(end, record.now, "lost", _("lease over"), said, lane)


def _said(row: Row, begin: dt.datetime, end: dt.datetime) -> str:
    names = {"number": row.text("number"), "worker": row.text("worker_id"), "status": row.text("status")}
    said = _("Attempt %(number)s by %(worker)s: %(status)s") % names
    time = _between(begin, end)
    started = row.instant("started_at")
    if started is not None and started > begin:
        time = _("%(time)s; started after %(lasting)s") % {"time": time, "lasting": lasting(started - begin)}
    if end < begin:
        time = _("%(time)s; it ends before it begins") % {"time": time}
    return f"{said}, {time}"


def _evidence(row: Row) -> dict[str, object]:
    evidence = row["evidence"]
    return evidence if isinstance(evidence, dict) else {}


def _parsed(text: object) -> dt.datetime | None:
    try:
        at = dt.datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def _waiting(record: Record) -> Iterator[Span]:
    """Yield the time without a worker: scheduled, due, or at rest until somebody re-arms it."""
    followed: list[Row | None] = [*record.events[1:], None]
    # Without events, nothing follows anything.
    for row, after in zip(record.events, followed, strict=False):
        begin = row.instant("at")
        number, next_number = row.number("sequence"), None if after is None else after.number("sequence")
        # Between the shown ends of a long history nothing is known.
        if begin is None or (after is not None and (number is None or next_number != number + 1)):
            continue
        end = record.now if after is None else after.instant("at")
        if end is None or end <= begin:
            continue
        if row["to_state"] == S.READY:
            yield from _ready(row, begin, end, record if after is None else None)
        elif row["to_state"] in PARKED:
            said = _("At rest in %(state)s") % {"state": row.text("to_state")}
            yield _span(begin, end, "parked", _("at rest"), said)


def _ready(row: Row, begin: dt.datetime, end: dt.datetime, present: Record | None) -> Iterator[Span]:
    due = _parsed(_evidence(row).get("next_attempt_at"))
    if due is not None and due > begin:
        until = min(due, end) if present is None else due
        yield _span(begin, until, "scheduled", _("scheduled"), _("Scheduled for later"))
        begin = until
    if begin < end:
        if present is not None and present.workload.dependency_standing not in (None, "met"):
            yield _span(begin, end, "blocked", _("waits for other work"), _("Waits for other work"))
        else:
            yield _span(begin, end, "due", _("due"), _("Due, and waiting for a worker"))


def _span(begin: dt.datetime, end: dt.datetime, kind: str, label: str, said: str, lane: int = WAITING) -> Span:
    return Span(lane=lane, begin=begin, end=end, kind=kind, label=label, title=f"{said}, {_between(begin, end)}")


def _ends(record: Record, lanes: _Lanes) -> Iterator[Mark]:
    for row in record.attempts:
        at = row.instant("ended_at")
        if at is None or row["status"] not in set(AttemptStatus) - OPEN_ATTEMPT:
            continue
        # Where a clock ran backwards, the mark stands at the end of what is drawn.
        at = max(at, row.instant("claimed_at") or at)
        said = _("Attempt %(number)s ended %(status)s") % {"number": row.text("number"), "status": row["status"]}
        kind = row.text("failure_kind")
        said = f"{said}: {kind}" if kind else said
        yield Mark(lane=lanes.of(row.text("worker_id")), at=at, kind=row["status"], title=f"{said}, {moment(at)}")


def _checkpoints(record: Record, lanes: _Lanes) -> Iterator[Mark]:
    workers = {row.text("attempt_id"): row.text("worker_id") for row in record.attempts}
    for row in record.marks:
        at, attempt = row.instant("at"), row.text("attempt_id")
        if at is not None and attempt in workers:
            said = _("Checkpoint %(number)s") % {"number": row.text("sequence")}
            yield Mark(
                lane=lanes.of(workers[attempt]), at=at, kind="CHECKPOINT", title=f"{said}, {moment(at)}", is_within=True
            )


def _decisions(record: Record) -> Iterator[Mark]:
    """Yield what people did."""
    for row in record.events:
        at, evidence = row.instant("at"), _evidence(row)
        is_peoples = evidence.get("decision") == "operator_rearm" or (
            row["to_state"] in (S.CANCELLATION_REQUESTED, S.CANCELLED, S.TIMED_OUT)
            and any(name in evidence for name in PEOPLES)
        )
        if at is not None and is_peoples:
            said = _("%(actor)s: to %(state)s") % {"actor": row.text("actor"), "state": row.text("to_state")}
            yield Mark(lane=WAITING, at=at, kind="PERSON", title=f"{said}, {moment(at)}")


def _rules(record: Record) -> Iterator[Rule]:
    now, row = record.now, record.workload
    created = None if record.cold is None else record.cold.instant("created_at")
    if created is not None:
        yield _rule(created, "admitted", _("admitted"))
    if row.state not in FINAL or created is None:
        yield _rule(now, "now", _("now"))
    if row.state in HELD and row.expires_at is not None:
        yield _rule(row.expires_at, "lease", _("lease ends") if row.expires_at > now else _("lease ended"))
    if row.state == S.READY and row.next_attempt_at is not None and row.next_attempt_at > now:
        yield _rule(row.next_attempt_at, "due", _("next attempt"))
    names = deadline_names()
    snapshot = record.snapshot
    running = dict(deadlines.running_deadlines(snapshot)) if snapshot is not None else {}
    if snapshot is not None and snapshot.state in PARKED:
        overall = deadlines.overall_deadline(snapshot)
        running |= {} if overall is None else {"overall": overall}
    for name, at in running.items():
        yield _rule(at, "deadline", names[name])


def _limits(record: Record, lanes: _Lanes) -> Iterator[Mark]:
    """Yield the deadlines that were missed, and the leases that ended by themselves."""
    names = deadline_names()
    for row in record.events:
        evidence = _evidence(row)
        worker_id = evidence.get("worker_id")
        lane = lanes.of(str(worker_id)) if worker_id else WAITING
        passed_at, lease_at = _parsed(evidence.get("deadline_at")), _parsed(evidence.get("expires_at"))
        if row["to_state"] == S.TIMED_OUT and passed_at is not None:
            name = str(evidence.get("deadline"))
            title = _("%(deadline)s passed, %(at)s") % {"deadline": names.get(name, name), "at": moment(passed_at)}
            yield Mark(lane=lane, at=passed_at, kind="DEADLINE", title=title)
        if row["to_state"] == S.RECOVERING and lease_at is not None:
            title = _("lease ended, %(at)s") % {"at": moment(lease_at)}
            yield Mark(lane=lane, at=lease_at, kind="LEASE", title=title)


def deadline_names() -> dict[str, str]:
    """Return what people call the deadlines."""
    return {
        "overall": _("overall deadline"),
        "queue": _("queue deadline"),
        "claim": _("claim deadline"),
        "execution": _("execution deadline"),
        "heartbeat": _("heartbeat deadline"),
    }


def _rule(at: dt.datetime, kind: str, label: str) -> Rule:
    return Rule(at=at, kind=kind, label=label, title=f"{label}, {moment(at)}")


def _left_out(record: Record) -> Iterator[tuple[dt.datetime, dt.datetime]]:
    """Yield the time of the attempts between the first and the last."""
    if (record.workload.attempt_count or 0) <= 2 * MOST_ATTEMPTS:
        return
    for row, after in pairwise(record.attempts):
        number, following = row.number("number"), after.number("number")
        if number is not None and following is not None and following > number + 1:
            begin, end = row.instant("ended_at") or row.instant("claimed_at"), after.instant("claimed_at")
            if begin is not None and end is not None and begin < end:
                yield begin, end


def listed(life: Life, drawn: Picture) -> list[tuple[dt.datetime, str, str]]:
    """Return all that is drawn in the order of time: the instant, what it is, and on which lane."""
    rows: list[tuple[dt.datetime, str, str]] = [(span.begin, span.title, life.lanes[span.lane]) for span in life.spans]
    rows += [(point.marks[0].at, title_of(point), life.lanes[point.marks[0].lane]) for point in drawn.points]
    rows += [(rule.at, rule.title, "") for rule in life.rules]
    return sorted(rows, key=lambda row: row[0])


def title_of(point: Point) -> str:
    """Return what a mark says; of several that are drawn as one, how many, and what the first and the last say."""
    first, last = point.marks[0], point.marks[-1]
    if len(point.marks) == 1:
        return first.title
    names = {"count": len(point.marks), "first": first.title, "last": last.title}
    return _("%(count)d marks: %(first)s; to %(last)s") % names
