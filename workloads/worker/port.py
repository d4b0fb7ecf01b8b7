"""What a worker needs of an authority, wherever that is. `site` is the one of this site, and the client has another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from workloads.contract import Claim, Fence
from workloads.errors import WorkloadError

T = TypeVar("T")

FAULT: Final = "INTERNAL_ERROR"
"""The code of a fault of the authority's own: final for one call, but no refusal of what the caller is."""


class Unanswered(Exception):
    """The authority could not be asked, and asking is given up. Whether it has heard is not known.

    `retry_after_s` is how many seconds the other side asks to be left alone.
    """

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """How much the authority takes: bytes of an output's canonical JSON, characters of an error text."""

    max_output_bytes: int = 262_144
    max_error_chars: int = 8_000


class Port(Protocol):
    """The way from a worker to its authority. Safe to use from any thread that has begun here."""

    @property
    def authority(self) -> Any:
        """The verbs: `context`, `checkpoint`, `complete`, `complete_many`, `fail`, `release`, `confirm_cancel`."""

    @property
    def bounds(self) -> Bounds:
        """How much the authority takes."""

    @property
    def claims_wait(self) -> bool:
        """Whether a claim is answered as soon as there is work, and not before a while has passed without any."""

    @property
    def completions_a_call(self) -> int:
        """How many completions this thread may report by one call."""

    def claim(self, **asked: Any) -> list[tuple[Claim, int | None]]:
        """Claim work as `claim_next` does; return each claim with the work's heartbeat deadline, if it has one.

        A claim that is an ExecutionContext needs no further question to begin.
        """

    def hear(self, wake: Callable[[], object]) -> None:
        """From now on, let `wake` be called when there may be work to claim. Said again whenever a wait begins.

        A hint: where nobody can tell, and when a word is lost, it is not called.
        """

    def hear_no_more(self, wake: Callable[[], object]) -> None:
        """Let `wake` be called no longer."""

    def ask(
        self,
        call: Callable[[], T],
        *,
        wait: Callable[[float], object],
        give_up: Callable[[], bool],
        left_s: Callable[[], float] | None = None,
    ) -> T:
        """Return what `call` answers, repeating it until there is an answer, or Unanswered when `give_up` says so.

        A WorkloadError is an answer and is raised. `wait` takes seconds and may return early; no answer is waited for
        longer than `left_s` says that it is of use.
        """

    def ask_once(self, call: Callable[[], T], *, bound_s: float) -> T:
        """Return what `call` answers, without repeating it, or Unanswered, silently.

        Whoever waits for it much longer than `bound_s` seconds, in one statement or for one answer, is cut off.
        """

    def beat(
        self, items: Sequence[tuple[Fence, int]], *, bound_s: float, is_repeat: bool
    ) -> list[Claim | WorkloadError | None]:
        """Extend leases, within `bound_s` seconds; None for one that could not be reached. Unanswered if none was.

        The first failure is silent; only that of a repeat tells that the authority is away.
        """

    def rest(self) -> None:
        """Note that this thread asks for nothing now, so that no answer to it will tell that the authority is back."""

    def reset(self) -> None:
        """Begin anew with whatever this thread's calls go over."""

    def begin_thread(self, *, bound_s: float | None = None) -> None:
        """Make this thread ready to ask; with `bound_s`, no wait of it lasts longer than about so many seconds."""

    def end_thread(self) -> None:
        """Close what this thread has open."""

    def body(self) -> AbstractContextManager[None]:
        """Return what a handler runs in, so that what it does to its surroundings does not befall the worker."""

    def watch_forks(self) -> None:
        """From now on, leave a handler's child processes with nothing that is open here."""
