"""Completions, said together while others are on their way: one call for all that came while the last was answered."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from workloads.contract import CompletionReport
from workloads.errors import WORKLOAD_CONFLICT, WorkloadError
from workloads.worker.lease import Lease
from workloads.worker.port import Port, Unanswered

logger = logging.getLogger("workloads.worker")

MOST_CHARS: Final = 1_000_000
"""About how much output one call brings."""
ANSWER_S: Final = 5.0
"""How long each statement of such a call may take. Then each goes its own way, so that a row that somebody holds is
waited for by its own attempt alone.
"""

Outcome = BaseException | None
"""What came of a completion: None if it is recorded, else the refusal, or what the call has raised."""


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """An attempt that has ended well, with its output as plain values, which is reported as often as is needed.

    `refusal` is the answer that it has got, if it is to be dealt with by another call.
    """

    lease: Lease
    output: Any
    refusal: WorkloadError | None = None

    @property
    def report(self) -> CompletionReport:
        """The report, the same each time."""
        claim = self.lease.claim
        return CompletionReport(fence=claim.fence, result_id=claim.attempt_id, output=self.output)


class Completions:
    """The completions of one worker. Whoever brings one while no call is under way makes the call, at once.

    Those that come while it is under way are said by the same thread in the next call, and who brings them goes on to
    other work. Nothing is delayed for company. Each has its own answer, once it is committed, in `answered`. The call
    is made once: those that got no answer, or none of their own, are given to `alone`, to be said one by one.
    """

    def __init__(
        self,
        *,
        port: Port,
        answered: Callable[[Sequence[tuple[Completion, Outcome]]], None],
        alone: Callable[[Completion], None],
    ) -> None:
        self._port = port
        self._answered = answered
        self._alone = alone
        self._guard = threading.Lock()
        self._waiting: deque[Completion] = deque()
        self._group: list[Completion] = []
        self._is_under_way = False

    @property
    def are_under_way(self) -> bool:
        """Whether some are being said now, whose leases are about to end."""
        return self._is_under_way

    def say(self, completion: Completion) -> None:
        """See to it that this is reported: by this thread now, or by the one that is making a call."""
        with self._guard:
            self._waiting.append(completion)
            if self._is_under_way:
                return
            self._is_under_way = True
        # Another name for it would keep it alive as long as there are more.
        del completion
        try:
            # Whose handler is about to end as well brings its own along. This lets other threads go first that only
            # wait for the interpreter; where there are none, nobody waits.
            time.sleep(0)
            while group := self._next():
                self._say(group)
        except BaseException:
            # From outside, as by what limits a handler's time: too late for this one, and no concern of the others.
            logger.exception("Completions were interrupted. Each is made by itself.")
            self._leave()

    def _next(self) -> list[Completion]:
        with self._guard:
            group: list[Completion] = []
            self._group = group
            chars = 0
            most = self._port.completions_a_call
            while self._waiting and len(group) < most and chars < MOST_CHARS:
                group.append(self._waiting.popleft())
                chars += _chars(group[-1].output)
            self._is_under_way = bool(group)
            return group

    def _leave(self) -> None:
        with self._guard:
            left = [*self._group, *self._waiting]
            self._group = []
            self._waiting.clear()
            self._is_under_way = False
        for completion in left:
            self._alone(completion)

    def _say(self, group: Sequence[Completion]) -> None:
        """Make one call for these, and pass on what is answered. Raises nothing."""
        outcomes: Sequence[Outcome]
        try:
            outcomes = self._port.ask_once(lambda: self._ask(group), bound_s=ANSWER_S)
        except Unanswered:
            outcomes = ()
        except BaseException as error:
            # What is wrong with one, or comes from outside, befalls none of the others.
            outcomes = [error] if len(group) == 1 else ()
        answers: list[tuple[Completion, Outcome]] = []
        for completion, outcome in zip(group, outcomes, strict=False):
            if isinstance(outcome, WorkloadError) and outcome.code == WORKLOAD_CONFLICT:
                self._alone(completion)
            else:
                answers.append((completion, outcome))
        for completion in group[len(outcomes) :]:
            self._alone(completion)
        if answers:
            self._answered(answers)

    def _ask(self, group: Sequence[Completion]) -> list[Outcome]:
        verbs = self._port.authority
        if len(group) == 1:
            report = group[0].report
            verbs.complete(report.fence, result_id=report.result_id, output=report.output)
            return [None]
        answers = verbs.complete_many([completion.report for completion in group])
        if len(answers) != len(group):
            raise ValueError(f"{len(answers)} answers to {len(group)} completions")
        return [answer if isinstance(answer, WorkloadError) else None for answer in answers]


def _chars(output: Any) -> int:
    """Return about how many characters a plain value has."""
    chars = 0
    values = [output]
    while values:
        value = values.pop()
        if isinstance(value, str):
            chars += len(value)
        elif isinstance(value, dict):
            values += value.keys()
            values += value.values()
        elif isinstance(value, list):
            values += value
        chars += 4
    return chars
