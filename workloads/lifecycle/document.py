"""The lifecycle as a page for people: `python -m workloads.lifecycle.document` prints docs/lifecycle.md.

It is written from the table in `states`, so that the page says what the rules do; a test keeps the two equal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Final

from workloads.contract import WorkloadState
from workloads.lifecycle.states import CLAIMED, FINAL, HELD, PARKED, RELEASE_ONLY, TRANSITIONS

S = WorkloadState

MEANINGS: Final[dict[WorkloadState, str]] = {
    S.CREATED: "Admitted; passed through on the way to READY.",
    S.READY: "Waits: for its turn, for its hour, or for other work.",
    S.CLAIMED: "A worker holds it under a lease and has not started.",
    S.RUNNING: "The worker has started.",
    S.CHECKPOINTED: "The worker has started, and has saved progress that later attempts can read.",
    S.RECOVERING: "The lease ended without a report; passed through.",
    S.SUCCEEDED: "Done, with its one result.",
    S.FAILED: "The worker reported a failure; passed through, except in records of contract version 1.",
    S.TIMED_OUT: "A deadline passed; passed through, unless an operator timed the work out by hand.",
    S.DEAD_LETTER: "Given up, until an operator re-arms or cancels it.",
    S.CANCELLATION_REQUESTED: "Called off while a worker holds it: the worker confirms, or its lease ends.",
    S.CANCELLED: "Called off.",
}

INTRODUCTION: Final = """\
# The lifecycle of a workload

<!-- Written by `python -m workloads.lifecycle.document > docs/lifecycle.md`. Change the table, not this page. -->

A workload is in one of {count} states. Every change of state is one event in its history, committed together with the
change. A pair of states that is not listed here is refused with `WORKLOAD_TRANSITION_DENIED`, and nothing changes.
"""

READING: Final = """\
## How to read the table

- **Final**: nothing follows.
- **Parked**: comes to rest, and an operator may re-arm it (READY again, one more attempt) or cancel it.
- **Held**: a worker has a current claim; its lease ends it if nothing else does.
- **Claimed**: held, and deadlines run. None runs once cancellation was requested.
- *(release)*: only by the worker that gives the work back.
- A state that is passed through is in the history, but no reader ever finds a workload in it.
"""


def kinds_of(state: WorkloadState) -> list[str]:
    """Return the groups of section 3 that a state belongs to, in words."""
    groups = (("final", FINAL), ("parked", PARKED), ("claimed", CLAIMED), ("held", HELD))
    return [word for word, members in groups if state in members]


def targets_of(source: WorkloadState) -> list[WorkloadState]:
    """Return where a state may lead, in the order in which the contract lists the states."""
    return [target for target in WorkloadState if target in TRANSITIONS[source]]


def diagram() -> Iterator[str]:
    """Yield the lines of a Mermaid state diagram of the table."""
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield f"    [*] --> {S.CREATED}"
    for source in WorkloadState:
        for target in targets_of(source):
            note = ": release" if (source, target) in RELEASE_ONLY else ""
            yield f"    {source} --> {target}{note}"
    for state in WorkloadState:
        if state in FINAL:
            yield f"    {state} --> [*]"
    yield "```"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def table() -> Iterator[str]:
    """Yield the lines of a Markdown table: state, kind, meaning, and what may follow."""
    yield _row(["state", "kind", "meaning", "may lead to"])
    yield _row(["---"] * 4)
    for state in WorkloadState:
        targets = [f"{t} *(release)*" if (state, t) in RELEASE_ONLY else str(t) for t in targets_of(state)]
        yield _row([f"`{state}`", ", ".join(kinds_of(state)) or "–", MEANINGS[state], ", ".join(targets) or "–"])


def page() -> str:
    """Return docs/lifecycle.md."""
    parts = [
        INTRODUCTION.format(count=len(WorkloadState)),
        "## The diagram\n",
        "\n".join(diagram()) + "\n",
        "## The table\n",
        "\n".join(table()) + "\n",
        READING,
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.stdout.write(page())
