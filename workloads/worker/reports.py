"""One attempt from its claim to its report: the handler is run once, and what came of it is said until it is heard."""

from __future__ import annotations

import contextvars
import dataclasses
import enum
import functools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from workloads.contract import Effect, ExecutionContext
from workloads.errors import WORKLOAD_TRANSITION_DENIED, WorkloadError
from workloads.worker.attempt import Attempt
from workloads.worker.children import end_child
from workloads.worker.completions import Completion, Completions, Outcome
from workloads.worker.failures import (
    CAPABILITY_MISSING,
    Failure,
    WorkloadFailure,
    describe,
    output_failure,
    presentable,
    refusal_kind,
    settle_output,
)
from workloads.worker.lease import Cancelled, Lease, LeaseLost, Released
from workloads.worker.port import Bounds, Port, Unanswered
from workloads.worker.registry import Registration, Registry

T = TypeVar("T")

STOPPED: Final = "the worker was stopped"

logger = logging.getLogger("workloads.worker")


class Ending(enum.StrEnum):
    """How an attempt ended, as this worker knows it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RELEASED = "released"
    UNKNOWN_DEFINITION = "unknown definition"
    LOST = "lost"


class Handed(enum.Enum):
    """That another thread sees to an ending."""

    OVER = enum.auto()


@dataclass(frozen=True, kw_only=True, slots=True)
class Raised:
    """What a body raised, as it is reported.

    The exception itself is given up at once: it holds all that the body had in memory, transactions included.
    """

    failure: Failure
    kind: type[BaseException]
    said: str

    @classmethod
    def of(cls, error: BaseException, bounds: Bounds) -> Raised:
        """Describe an exception."""
        failure = describe(error, bounds)
        return cls(failure=failure, kind=type(error), said=failure.error.partition("\n")[0])


class Reporter:
    """Runs attempts and reports them. `ended` is set when the worker ends and nothing more is to be repeated.

    `heard` is told of attempts whose ending has been heard, or given up: the work is no longer ours. None as an ending:
    the stopping worker gave the work back while the handler was running. `later` gets a completion that a thread of the
    worker's is to `go_on` with.
    """

    def __init__(
        self,
        *,
        handlers: Registry,
        port: Port,
        ended: threading.Event,
        heard: Callable[[Sequence[tuple[Lease, Ending | None]]], None],
        later: Callable[[Completion], None],
    ) -> None:
        self._handlers = handlers
        self._port = port
        self._ended = ended
        self._heard = heard
        self._later = later
        self._completions = Completions(port=port, answered=self._answered, alone=self._put_off)

    @property
    def is_reporting(self) -> bool:
        """Whether completions are on their way, so that there will soon be room for other work."""
        return self._completions.are_under_way

    def run(self, lease: Lease) -> None:
        """Run one claimed and started workload to its ending. Never raises, whatever the handler does.

        When it returns the ending has been heard, or another thread that reports completions now will see to it.
        """
        self._tell(lease, lambda: self._run(lease))

    def go_on(self, completion: Completion) -> None:
        """Report one completion by itself until it is answered, or see to what was answered. Never raises."""
        self._tell(completion.lease, lambda: self._complete(completion))

    def _tell(self, lease: Lease, report: Callable[[], Ending | Handed | None]) -> None:
        try:
            ending = report()
        except BaseException:
            # Whatever was raised here was raised too late, or from outside, as by what limits a handler's time.
            logger.exception("%s: attempt %s was left.", lease.claim.workload_id, lease.claim.attempt_number)
            ending = Ending.LOST
        if not isinstance(ending, Handed):
            self._heard([(lease, ending)])

    def _put_off(self, completion: Completion) -> None:
        """Let another thread go on with it; at the worker's end there is none, and it is tried once more."""
        if self._ended.is_set():
            self.go_on(completion)
        else:
            self._later(completion)

    def _answered(self, answers: Sequence[tuple[Completion, Outcome]]) -> None:
        """Pass on what completions were answered that were said together."""
        heard: list[tuple[Lease, Ending | None]] = []
        for completion, outcome in answers:
            if outcome is None:
                heard.append((completion.lease, Ending.SUCCEEDED))
            elif isinstance(outcome, WorkloadError):
                # What follows may be another call, for which the others do not wait.
                self._put_off(dataclasses.replace(completion, refusal=outcome))
            else:
                claim = completion.lease.claim
                logger.error("%s: attempt %s was left.", claim.workload_id, claim.attempt_number, exc_info=outcome)
                heard.append((completion.lease, Ending.LOST))
        if heard:
            self._heard(heard)

    def _run(self, lease: Lease) -> Ending | Handed | None:
        claim = lease.claim
        registration = self._handlers.find(claim.definition_id, claim.definition_revision)
        if registration is None:
            if not lease.begin_report():
                return None
            logger.warning(
                "%s: given back, since no handler is registered for %s@%s",
                claim.workload_id,
                claim.definition_id,
                claim.definition_revision,
            )
            reason = f"no handler for {claim.definition_id}@{claim.definition_revision} on this worker"
            ending = self.release(lease, presentable(reason, self._port.bounds)[:2000])
            return Ending.UNKNOWN_DEFINITION if ending is Ending.RELEASED else ending
        try:
            context = (
                claim
                if isinstance(claim, ExecutionContext)
                else self._ask(
                    lambda: self._port.authority.context(lease.fence),
                    give_up=lambda: lease.lost is not None,
                    left_s=lambda: lease.left_ms / 1000,
                )
            )
        except (WorkloadError, Unanswered) as error:
            return self._left(lease, error)
        except Exception as error:
            # A record that can't be read fails its own attempt.
            return self._report_raised(lease, Raised.of(error, self._port.bounds))
        came = self._body(lease, registration, context)
        if isinstance(came, Raised):
            return self._report_raised(lease, came)
        return self._report_output(lease, *came)

    def _body(
        self, lease: Lease, registration: Registration, context: ExecutionContext
    ) -> Raised | tuple[Any, Failure | None]:
        """Run the handler; return its output and why that is none to be kept, or what it raised.

        It runs in an empty context: the time zone, the language and whatever else it activates end with it. A child
        process that it forks and that comes back here ends here.
        """
        pid = os.getpid()
        with self._port.body():
            came: Raised | tuple[Any, Failure | None]
            try:
                self._check_capabilities(registration, context)
                lease.check()
                output = contextvars.Context().run(
                    registration.function, Attempt(context, lease, self._ask, self._port.authority)
                )
                if os.getpid() != pid:
                    end_child(None)
                came = settle_output(output, scopes=context.connection_scopes, bounds=self._port.bounds)
            except BaseException as error:
                # SystemExit and KeyboardInterrupt too: a handler ends its attempt, not the worker.
                if os.getpid() != pid:
                    end_child(error)
                came = Raised.of(error, self._port.bounds)
        return came

    def _check_capabilities(self, registration: Registration, context: ExecutionContext) -> None:
        missing = sorted(registration.capabilities - context.capability_snapshot)
        if missing:
            raise WorkloadFailure(
                CAPABILITY_MISSING,
                f"The handler of {registration.selector} needs {', '.join(missing)}, "
                "which the work was not admitted with.",
                effect=Effect.NONE,
            )

    def _report_raised(self, lease: Lease, raised: Raised) -> Ending | None:
        if not lease.begin_report():
            return None
        if issubclass(raised.kind, Released) and lease.lost is None:
            return self.release(lease, STOPPED)
        if issubclass(raised.kind, LeaseLost):
            return self._left(lease, raised.said)
        if issubclass(raised.kind, Cancelled) and lease.is_cancelled:
            return self._confirm_cancel(lease)
        return self._fail(lease, raised.failure)

    def _report_output(self, lease: Lease, output: Any, unfit: Failure | None) -> Ending | Handed | None:
        if not lease.begin_report():
            return None
        if unfit is not None:
            return self._fail(lease, unfit)
        completion = Completion(lease, output)
        if lease.is_left_behind:
            # Its room was given to other work, so that no thread might be free to go on with it.
            return self._complete(completion)
        self._completions.say(completion)
        return Handed.OVER

    def _complete(self, completion: Completion) -> Ending:
        lease, output = completion.lease, completion.output
        try:
            if completion.refusal is not None:
                raise completion.refusal
            self._say(lease, self._port.authority.complete, result_id=lease.claim.attempt_id, output=output)
        except WorkloadError as refusal:
            if refusal.code == WORKLOAD_TRANSITION_DENIED:
                return self._confirm_cancel(lease)
            if refusal_kind(refusal, "output") is not None:
                return self._fail(lease, output_failure(refusal, self._port.bounds))
            return self._left(lease, refusal)
        except Unanswered as error:
            return self._left(lease, error)
        return Ending.SUCCEEDED

    def _fail(self, lease: Lease, failure: Failure) -> Ending:
        logger.info(
            "%s: attempt %s failed, %s: %s",
            lease.claim.workload_id,
            lease.claim.attempt_number,
            failure.kind,
            failure.error.partition("\n")[0],
        )
        try:
            self._say(
                lease,
                self._port.authority.fail,
                kind=failure.kind,
                error=failure.error,
                effect=failure.effect,
                retry_after_ms=failure.retry_after_ms,
            )
        except WorkloadError as refusal:
            if refusal.code == WORKLOAD_TRANSITION_DENIED:
                return self._confirm_cancel(lease)
            return self._left(lease, refusal)
        except Unanswered as error:
            return self._left(lease, error)
        return Ending.FAILED

    def release(self, lease: Lease, reason: str) -> Ending:
        """Give the work back. Cancelled meanwhile, it is confirmed instead, since nothing runs it any longer."""
        try:
            self._say(lease, self._port.authority.release, reason=reason)
        except WorkloadError as refusal:
            if refusal.code == WORKLOAD_TRANSITION_DENIED:
                return self._confirm_cancel(lease)
            return self._left(lease, refusal)
        except Unanswered as error:
            return self._left(lease, error)
        return Ending.RELEASED

    def _confirm_cancel(self, lease: Lease) -> Ending:
        try:
            self._say(lease, self._port.authority.confirm_cancel)
        except (WorkloadError, Unanswered) as error:
            return self._left(lease, error)
        return Ending.CANCELLED

    def _say(self, lease: Lease, verb: Callable[..., T], **report: Any) -> T:
        """Make the very same report until it is answered: a repeat of one that was heard is harmless."""
        return self._ask(functools.partial(verb, lease.fence, **report), give_up=self._ended.is_set)

    def _ask(
        self, call: Callable[[], T], *, give_up: Callable[[], bool], left_s: Callable[[], float] | None = None
    ) -> T:
        return self._port.ask(
            call,
            wait=self._ended.wait,
            give_up=lambda: give_up() or self._ended.is_set(),
            left_s=left_s,
        )

    def _left(self, lease: Lease, why: object) -> Ending:
        """Say no more of this attempt: the authority's word is final, and what it has not heard its pass recovers."""
        logger.warning(
            "%s: attempt %s ended without a report: %s", lease.claim.workload_id, lease.claim.attempt_number, why
        )
        return Ending.LOST
