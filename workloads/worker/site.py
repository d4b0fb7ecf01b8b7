"""The way to the authority of this site: its verbs, over the database that it writes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

from django.db import Error, connections

from workloads import authority, conf, wakeups
from workloads.contract import CheckpointRecord, Claim, ExecutionContext, Fence
from workloads.errors import WorkloadError
from workloads.models import Admitted, Checkpoint, Workload
from workloads.worker import forks
from workloads.worker.calls import (
    DEAD_PEER_S,
    Link,
    alias,
    bounded,
    close_connections,
    drop_connection,
    lent_connection,
    own_connection,
    until_answered,
)
from workloads.worker.lease import monotonic
from workloads.worker.loop import make_worker_id
from workloads.worker.port import Bounds, Unanswered
from workloads.worker.watch import answered_within

T = TypeVar("T")

COMPLETIONS_A_CALL: Final = 500

_CLAIMED: Final = tuple(Claim.__dataclass_fields__)
_ADMITTED: Final = (
    "tenant_id",
    "application_id",
    "environment",
    "input",
    "capability_snapshot",
    "connection_scopes",
)
_SAVED: Final = tuple(CheckpointRecord.__dataclass_fields__)
_OFFER: Final = ("worker_id", "capabilities", "definitions", "tenant_id", "application_id")


class SitePort:
    """The worker's way within the site's own process."""

    authority = authority
    claims_wait = False

    def __init__(self) -> None:
        self._link = Link()
        self._incarnation = make_worker_id()
        self._offer: dict[str, Any] | None = None
        self._is_single = True

    @property
    def bounds(self) -> Bounds:
        """What the site's settings allow."""
        limits = conf.limits()
        return Bounds(max_output_bytes=limits.max_output_bytes, max_error_chars=limits.max_error_chars)

    @property
    def completions_a_call(self) -> int:
        """Within a transaction of the caller's own, each is the caller's to commit or not."""
        return 1 if connections[alias()].in_atomic_block else COMPLETIONS_A_CALL

    def claim(self, **asked: Any) -> list[tuple[Claim, int | None]]:
        """Claim work, and read what it needs to begin. Then it is noted that this worker asks for work.

        That is by this thread and on its connection, once the claim is committed, and bounded in time there.
        """
        claims = authority.claim_next(**asked)
        self._is_single = self._is_single and asked["limit"] == 1
        # Who has one place has nothing to gain: its attempt asks the authority for its context by itself.
        got = _read(claims, with_context=not self._is_single)
        self._offer = {name: asked.get(name) for name in _OFFER}
        self._note(has_claimed=bool(claims))
        return got

    def _note(self, *, has_claimed: bool = False, is_heartbeat: bool = False) -> None:
        """Note a sign of life of this worker, which never fails: that is no concern of what it runs."""
        if self._offer is not None:
            authority.note_worker(
                **self._offer, incarnation=self._incarnation, has_claimed=has_claimed, is_heartbeat=is_heartbeat
            )

    def ask(
        self,
        call: Callable[[], T],
        *,
        wait: Callable[[float], object],
        give_up: Callable[[], bool],
        left_s: Callable[[], float] | None = None,
    ) -> T:
        """Repeat a call over a database that may go away."""
        return until_answered(call, link=self._link, wait=wait, give_up=give_up, left_s=left_s)

    def ask_once(self, call: Callable[[], T], *, bound_s: float) -> T:
        """Make a call over the database, once."""
        asked_at = monotonic()
        try:
            with answered_within(bound_s):
                answer = call()
        except WorkloadError:
            self._link.answers(asked_at=asked_at)
            raise
        except Error as error:
            drop_connection()
            raise Unanswered(str(error)) from error
        self._link.answers(asked_at=asked_at)
        return answer

    def hear(self, wake: Callable[[], object]) -> None:
        """Listen with this process's bell, for the word that commits say on PostgreSQL."""
        wakeups.listen().tell(wake)

    def hear_no_more(self, wake: Callable[[], object]) -> None:
        """Leave the bell, and the session that listens if no other worker of this process does."""
        if not wakeups.bell().tell_no_more(wake):
            wakeups.hang_up()

    def beat(
        self, items: Sequence[tuple[Fence, int]], *, bound_s: float, is_repeat: bool
    ) -> list[Claim | WorkloadError | None]:
        """Extend leases in one transaction of bounded length."""
        asked_at = monotonic()
        try:
            with bounded(bound_s):
                free = {fence.workload_id for fence, _ in items}
                if is_repeat:
                    # It may have waited for a row that somebody holds: the others must not be lost with it.
                    free = _free(free)
                mine = [item for item in items if item[0].workload_id in free]
                answers = iter(authority.heartbeat_many(mine))
                found = [next(answers) if fence.workload_id in free else None for fence, _ in items]
        except (Error, WorkloadError) as error:
            drop_connection()
            if is_repeat:
                self._link.lost(error, asked_at=asked_at)
            raise Unanswered(str(error)) from error
        self._link.answers(asked_at=asked_at)
        if any(isinstance(answer, Claim) for answer in found):
            # A worker that is busy for long asks for nothing. By now the heartbeat is committed.
            with answered_within(max(1.0, bound_s)):
                self._note(is_heartbeat=True)
        return found

    def rest(self) -> None:
        """Let this thread's last failure be no sign of a loss any longer."""
        self._link.gave_up()

    def reset(self) -> None:
        """Close this thread's connection."""
        drop_connection()

    def begin_thread(self, *, bound_s: float | None = None) -> None:
        """Let this thread's connection notice a dead server."""
        own_connection(bound_s=bound_s)

    def end_thread(self) -> None:
        """Close this thread's connections."""
        close_connections()

    def body(self) -> AbstractContextManager[None]:
        """Run a handler on a connection of its own."""
        return lent_connection()

    def watch_forks(self) -> None:
        """Leave child processes without this one's connections."""
        forks.watch()


def _read(claims: Sequence[Claim], *, with_context: bool) -> list[tuple[Claim, int | None]]:
    """Return each claim with its heartbeat deadline in milliseconds, if it has one; `with_context` as ExecutionContext.

    What was admitted is never changed, and only the holder of a claim adds checkpoints: no lock is needed. If anything
    here can't be read, the claims are returned as they are, and each attempt asks for itself.
    """
    try:
        with answered_within(DEAD_PEER_S):
            return _read_all(claims, with_context)
    except Exception:
        # Whatever is wrong there, the claims are ours, and must be run.
        drop_connection()
        return [(claim, None) for claim in claims]


def _read_all(claims: Sequence[Claim], with_context: bool) -> list[tuple[Claim, int | None]]:
    if not claims:
        return []
    rows = Admitted.objects.using(alias()).filter(workload_id__in=[claim.workload_id for claim in claims])
    timeouts: Any
    if not with_context:
        deadlines = {}
        for workload_id, timeouts in rows.values_list("workload_id", "timeouts"):
            deadlines[workload_id] = timeouts.heartbeat_ms
        return [(claim, deadlines.get(claim.workload_id)) for claim in claims]
    found = {row[0]: row for row in rows.values_list("workload_id", "id", "timeouts", *_ADMITTED)}
    # The first claim of a workload has the first fencing token, and finds no checkpoints.
    again = [found[claim.workload_id][1] for claim in claims if claim.fencing_token > 1]
    saved = _checkpoints(again) if again else {}
    got: list[tuple[Claim, int | None]] = []
    for claim in claims:
        _, pk, timeouts, *values = found[claim.workload_id]
        context = ExecutionContext(
            **{name: getattr(claim, name) for name in _CLAIMED},
            **dict(zip(_ADMITTED, values, strict=True)),
            checkpoints=tuple(saved.get(pk, ())),
            secret_references=frozenset(),
        )
        got.append((context, timeouts.heartbeat_ms))
    return got


def _checkpoints(pks: Sequence[int]) -> dict[int, list[CheckpointRecord]]:
    """Return the checkpoints of these workloads in order, by the workload's key."""
    rows = Checkpoint.objects.using(alias()).filter(record__in=pks).order_by("record", "sequence")
    saved: dict[int, list[CheckpointRecord]] = {}
    for row in rows:
        record = CheckpointRecord(**{name: getattr(row, name) for name in _SAVED})
        saved.setdefault(row.record_id, []).append(record)
    return saved


def _free(workload_ids: set[str]) -> set[str]:
    """Return those whose rows nobody else has locked now; within the transaction, nobody will."""
    using = alias()
    if not connections[using].features.has_select_for_update_skip_locked:
        return workload_ids
    rows = Workload.objects.using(using).filter(workload_id__in=workload_ids)
    only = ("self",) if connections[using].features.has_select_for_update_of else ()
    return {row.workload_id for row in rows.order_by("pk").select_for_update(skip_locked=True, of=only)}
