"""The way to the authority of this site: its verbs, over the database that it writes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from django.db import Error, connections, reset_queries

from workloads import authority, conf
from workloads.contract import Claim, Fence
from workloads.errors import WorkloadError
from workloads.models import Workload
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

_OFFER: Final = ("worker_id", "capabilities", "definitions", "tenant_id", "application_id")


class SitePort:
    """The worker's way within the site's own process."""

    authority = authority
    claims_wait = False

    def __init__(self) -> None:
        self._link = Link()
        self._incarnation = make_worker_id()
        self._offer: dict[str, Any] | None = None

    @property
    def bounds(self) -> Bounds:
        """What the site's settings allow."""
        limits = conf.limits()
        return Bounds(max_output_bytes=limits.max_output_bytes, max_error_chars=limits.max_error_chars)

    def claim(self, **asked: Any) -> list[tuple[Claim, int | None]]:
        """Claim work; the heartbeat deadlines are read beside it. Then it is noted that this worker asks for work.

        That is by this thread and on its connection, once the claim is committed, and bounded in time there.
        """
        claims = authority.claim_next(**asked)
        found = dict.fromkeys((claim.workload_id for claim in claims), None)
        got = list(zip(claims, _deadlines(found), strict=True))
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

    @contextmanager
    def body(self) -> Iterator[None]:
        """Run a handler on a connection of its own."""
        try:
            with lent_connection():
                yield
        finally:
            reset_queries()

    def watch_forks(self) -> None:
        """Leave child processes without this one's connections."""
        forks.watch()


def _deadlines(found: dict[str, int | None]) -> list[int | None]:
    """Return the heartbeat deadlines of these workloads, in milliseconds, in order."""
    try:
        rows = Workload.objects.using(alias()).filter(workload_id__in=found) if found else Workload.objects.none()
        timeouts: Any
        with answered_within(DEAD_PEER_S):
            for workload_id, timeouts in rows.values_list("workload_id", "timeouts"):
                found[workload_id] = timeouts.heartbeat_ms
    except Exception:
        # Whatever is wrong there, the claims are ours, and must be run.
        drop_connection()
    return list(found.values())


def _free(workload_ids: set[str]) -> set[str]:
    """Return those whose rows nobody else has locked now; within the transaction, nobody will."""
    using = alias()
    if not connections[using].features.has_select_for_update_skip_locked:
        return workload_ids
    rows = Workload.objects.using(using).filter(workload_id__in=workload_ids)
    only = ("self",) if connections[using].features.has_select_for_update_of else ()
    return {row.workload_id for row in rows.order_by("pk").select_for_update(skip_locked=True, of=only)}
