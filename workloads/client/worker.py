"""A worker on another machine: the site's handlers, run over HTTP, with neither Django nor settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from workloads.client.authority import RemoteAuthority
from workloads.client.line import SHORTEST_S, obeyed_s
from workloads.contract import Claim, Fence
from workloads.errors import WorkloadError
from workloads.worker.loop import Worker
from workloads.worker.news import pause_s
from workloads.worker.port import Bounds, Unanswered

T = TypeVar("T")

DEFAULTS: Final = Bounds()
WAIT_MS: Final = 5_000
"""How long a claim is waited for at the server: no longer, since a worker that is stopped waits for the answer."""
COMPLETIONS_A_CALL: Final = 200
WAITS_A_LEASE: Final = 4
"""A lease is measured from before the question, so that waiting takes no more than this part of it."""


class RemoteWorker(Worker):
    """Runs handlers on work that it claims from a site over HTTP: `workloads.worker.Worker`, from another machine.

    `base_url` and `token` are `RemoteAuthority`'s; all else is `Worker`'s. The token's user has the role worker, and
    `worker_id` begins as its Access row says. While there is no work the server holds the answer back, for
    `wait_ms` milliseconds at most, if it can. `max_output_bytes` is the site's MAX_OUTPUT_BYTES.

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
        max_output_bytes: int = DEFAULTS.max_output_bytes,
        transport: Any = None,
        verify: Any = True,
        **options: Any,
    ) -> None:
        # The worker repeats each call itself, as long as an answer is of use.
        self.authority = RemoteAuthority(base_url, token, patience_ms=0, transport=transport, verify=verify)
        port = RemotePort(
            self.authority,
            wait_ms=0 if options.get("drain") else wait_ms,
            bounds=Bounds(max_output_bytes=max_output_bytes),
        )
        super().__init__(worker_id=worker_id, port=port, **options)

    def run(self) -> Any:
        """Claim and run work until stopped or drained, and close the connections."""
        try:
            return super().run()
        finally:
            self.authority.close()


class _Later(Unanswered):
    """There is nothing now, and the server asks not to be asked for a while. Nothing was claimed."""


class RemotePort:
    """The worker's way over HTTP."""

    def __init__(self, authority: RemoteAuthority, *, wait_ms: int, bounds: Bounds = DEFAULTS) -> None:
        self.authority = authority
        self.bounds = bounds
        self.claims_wait = wait_ms > 0
        self.completions_a_call = COMPLETIONS_A_CALL
        self._wait_ms = wait_ms
        self._beats_again_at = 0.0

    def claim(self, **asked: Any) -> list[tuple[Claim, int | None]]:
        """Claim work, waiting for it at the server."""
        wait_ms = min(self._wait_ms, asked["lease_ms"] // WAITS_A_LEASE)
        claims, later_s = self.authority.claims(**asked, wait_ms=wait_ms)
        if self.claims_wait and later_s and not claims:
            raise _Later("too many wait at the server", retry_after_s=later_s)
        return [*claims]

    def ask(
        self,
        call: Callable[[], T],
        *,
        wait: Callable[[float], object],
        give_up: Callable[[], bool],
        left_s: Callable[[], float] | None = None,
    ) -> T:
        """Repeat a call over a line that may be cut, never sooner than the server asks."""
        turn = 0
        while True:
            turn += 1
            try:
                with self.authority.line.patient(left_s):
                    return call()
            except Unanswered as error:
                if give_up():
                    raise
                again_at = time.monotonic() + max(obeyed_s(error.retry_after_s), pause_s(turn))
                while not give_up() and (left := again_at - time.monotonic()) > 0:
                    # Who would be told nothing of use any longer gives up at once.
                    wait(left if left_s is None else min(left, max(SHORTEST_S, left_s())))
                if isinstance(error, _Later):
                    turn = 0
                    if give_up():
                        raise

    def ask_once(self, call: Callable[[], T], *, bound_s: float) -> T:
        """Make a call over the line, once."""
        with self.authority.line.patient(lambda: bound_s):
            return call()

    def hear(self, wake: Callable[[], object]) -> None:
        """Nothing is heard from afar: it is the server that holds its answer back."""

    def hear_no_more(self, wake: Callable[[], object]) -> None:
        """Nothing was."""

    def beat(
        self, items: Sequence[tuple[Fence, int]], *, bound_s: float, is_repeat: bool
    ) -> list[Claim | WorkloadError | None]:
        """Extend leases by one call, whose answer is waited for so long and no longer.

        A Retry-After is obeyed for as long as that does not cost the leases.
        """
        if time.monotonic() < self._beats_again_at:
            raise Unanswered("the server has asked to be left alone")
        try:
            return [*self.authority.heartbeat_many(items, answer_s=max(bound_s, 0.1))]
        except Unanswered as error:
            self._beats_again_at = time.monotonic() + min(obeyed_s(error.retry_after_s), bound_s)
            raise
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
