"""A worker on another machine: the site's handlers, run over HTTP, with neither Django nor settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from workloads.client.authority import RemoteAuthority
from workloads.contract import Claim, Fence
from workloads.errors import WorkloadError
from workloads.worker.loop import Worker
from workloads.worker.news import pause_s
from workloads.worker.port import Bounds, Unanswered

T = TypeVar("T")

WAIT_MS: Final = 5_000
"""How long a claim is waited for at the server: no longer, since a worker that is stopped waits for the answer."""
WAITS_A_LEASE: Final = 4
"""A lease is measured from before the question, so that waiting takes no more than this part of it."""


class RemoteWorker(Worker):
    """Runs handlers on work that it claims from a site over HTTP: `workloads.worker.Worker`, from another machine.

    `base_url` and `token` are `RemoteAuthority`'s; all else is `Worker`'s. The token's user has the role worker, and
    `worker_id` begins as its Access row says. While there is no work the server holds the answer back, for
    `wait_ms` milliseconds at most, if it can.

    Reports are repeated until they are answered; a body whose lease is over by this machine's monotonic clock is
    stopped, whether or not the server can be heard.
    """

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        worker_id: str,
        wait_ms: int = WAIT_MS,
        transport: Any = None,
        verify: Any = True,
        **options: Any,
    ) -> None:
        # The worker repeats each call itself, as long as an answer is of use.
        self.authority = RemoteAuthority(base_url, token, patience_ms=0, transport=transport, verify=verify)
        port = RemotePort(self.authority, wait_ms=0 if options.get("drain") else wait_ms)
        super().__init__(worker_id=worker_id, port=port, **options)

    def run(self) -> Any:
        """Claim and run work until stopped or drained, and close the connections."""
        try:
            return super().run()
        finally:
            self.authority.close()


class RemotePort:
    """The worker's way over HTTP."""

    def __init__(self, authority: RemoteAuthority, *, wait_ms: int) -> None:
        self.authority = authority
        self.bounds = Bounds()
        self.claims_wait = wait_ms > 0
        self._wait_ms = wait_ms

    def claim(self, **asked: Any) -> list[tuple[Claim, int | None]]:
        """Claim work, waiting for it at the server."""
        wait_ms = min(self._wait_ms, asked["lease_ms"] // WAITS_A_LEASE)
        return [*self.authority.claims(**asked, wait_ms=wait_ms)]

    def ask(
        self,
        call: Callable[[], T],
        *,
        wait: Callable[[float], object],
        give_up: Callable[[], bool],
        left_s: Callable[[], float] | None = None,
    ) -> T:
        """Repeat a call over a line that may be cut."""
        turn = 0
        while True:
            turn += 1
            try:
                with self.authority.line.patient(left_s):
                    return call()
            except Unanswered as error:
                if give_up():
                    raise
                wait(max(error.retry_after_s, pause_s(turn)))

    def beat(
        self, items: Sequence[tuple[Fence, int]], *, bound_s: float, is_repeat: bool
    ) -> list[Claim | WorkloadError | None]:
        """Extend leases by one call, whose answer is waited for so long and no longer."""
        try:
            return list(self.authority.heartbeat_many(items, answer_s=max(bound_s, 0.1)))
        except WorkloadError as refusal:
            raise Unanswered(str(refusal)) from refusal

    def rest(self) -> None:
        """Nothing is kept of one thread's failures: the line is one for all."""

    def reset(self) -> None:
        """A connection that is broken is not used again."""

    def begin_thread(self, *, bound_s: float | None = None) -> None:
        """Threads share the line."""

    def end_thread(self) -> None:
        """The line is closed when the worker ends."""

    @contextmanager
    def body(self) -> Iterator[None]:
        """Run a handler: it has nothing of the worker's to spoil."""
        yield

    def watch_forks(self) -> None:
        """A child process has no use of the line: the leases that it holds copies of tell it so."""
