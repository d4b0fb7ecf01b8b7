"""Writes docs/reference.md from the code: `python -m tests.reference`. A test keeps the two equal."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import os
import re
import textwrap
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"

VOICES = {
    "Requester": ["admit", "admit_many", "issue_grant"],
    "Worker": [
        "claim",
        "claim_next",
        "claim_with_context",
        "claim_next_with_context",
        "start",
        "heartbeat",
        "heartbeat_many",
        "context",
        "checkpoint",
        "release",
        "confirm_cancel",
        "complete",
        "complete_many",
        "fail",
        "note_worker",
    ],
    "Operator": [
        "cancel",
        "rearm",
        "time_out",
        "explain",
        "begin_bulk",
        "select_bulk",
        "confirm_bulk",
        "continue_bulk",
        "stop_bulk",
    ],
    "Clock": ["run_pass", "enforce_deadlines", "recover_expired", "dead_letter_unsatisfiable"],
    "Everybody": ["get", "list_for", "read_grant", "read_clock", "verify"],
}

CODES = {
    "WORKLOAD_INVALID": "an argument is out of bounds: `details.field`, and `details.path` inside JSON",
    "WORKLOAD_TOO_LARGE": "JSON, or the number of checkpoints, is over the site's limit: `limit`, `size`",
    "WORKLOAD_SECRET_MATERIAL": "a secret stands in it: `path`, `rule`, never the value",
    "WORKLOAD_GRANT_INVALID": "the grant does not verify, hold or cover the request",
    "WORKLOAD_NOT_FOUND": "the id names nothing",
    "WORKLOAD_CONFLICT": "the workload has moved on: `version`",
    "WORKLOAD_NOT_READY": "it can't be claimed now: `state`, and `dependencies` or `next_attempt_at`",
    "WORKLOAD_ATTEMPTS_EXHAUSTED": "its budget was found used up; it is dead-lettered now",
    "WORKLOAD_CAPABILITY_DENIED": "the worker lacks what the work needs: `missing`",
    "WORKLOAD_SCOPE_DENIED": "a secret reference is not among the workload's scopes: `missing`",
    "WORKLOAD_CLAIM_INVALID": "there is no current claim, or it is another one",
    "WORKLOAD_STALE_FENCE": "the work has been claimed again since",
    "WORKLOAD_LEASE_EXPIRED": "the lease is over",
    "WORKLOAD_TRANSITION_DENIED": "the state does not allow it: `from`, `to`",
    "WORKLOAD_TIMED_OUT": "a deadline had passed, and is recorded: `deadline`, `deadline_at`",
    "WORKLOAD_RESULT_CONFLICT": "the workload has another result under this id",
    "WORKLOAD_RESULT_DUPLICATE": "another workload has this result id",
    "WORKLOAD_CHECKPOINT_CONFLICT": "the attempt has saved another state under this key",
    "IDEMPOTENCY_KEY_REUSED": "the key stands for other work: `fields`",
    "IDEMPOTENCY_KEY_RETIRED": "the key's work is done and was pruned: `state`, `finished_at`",
}

VALUES = [
    "AdmissionRequest",
    "RetryPolicy",
    "Timeouts",
    "Dependency",
    "Admission",
    "Fence",
    "Claim",
    "ExecutionContext",
    "CheckpointRecord",
    "ResultRecord",
    "CompletionReport",
    "FailureOutcome",
    "Blocker",
    "PassReport",
]


def _doc(thing: Any) -> str:
    # The sections are those of the specification, which readers of the page do not have.
    return re.sub(r"\s*(\(sections? [^)]*\)|\bSections? \d[^.\n]*\.)", "", inspect.getdoc(thing) or "")


def _signature(name: str, function: Any) -> str:
    parameters = [re.sub(r": '([^']*)'", r": \1", str(p)) for p in inspect.signature(function).parameters.values()]
    keyword_only = [p.kind is p.KEYWORD_ONLY for p in inspect.signature(function).parameters.values()]
    if True in keyword_only:
        parameters.insert(keyword_only.index(True), "*")
    answer = str(inspect.signature(function).return_annotation).replace("'", "")
    line = f"{name}({', '.join(parameters)}) -> {answer}"
    if len(line) <= 110:
        return line
    return f"{name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f") -> {answer}"


def _default(f: dataclasses.Field[Any]) -> str:
    if f.default is not dataclasses.MISSING:
        value = f.default
        if isinstance(value, frozenset) and value:
            return " = {" + ", ".join(map(repr, sorted(value))) + "}"
        return f" = {value!s}" if isinstance(value, enum.Enum) else f" = {value!r}"
    if f.default_factory is not dataclasses.MISSING:
        return f" = {type(f.default_factory()).__name__}()"
    return ""


def render() -> str:
    """Return the page."""
    from workloads import authority, contract

    out = [
        "# Reference",
        "",
        "Made from the code by `python -m tests.reference`; a test keeps it equal.",
        "",
        "`from workloads import authority` holds the verbs, `workloads.contract` the values, `workloads.errors` the",
        "one exception, `workloads.models` the tables, for queries. Durations are integer milliseconds. Instants are",
        "aware datetimes; `now=None` is the database's clock.",
        "",
    ]
    for voice, names in VOICES.items():
        out += [f"## {voice}", ""]
        for name in names:
            function = getattr(authority, name)
            out += [f"### authority.{name}", "", "```python", _signature(name, function), "```", "", _doc(function), ""]
    out += ["## Values", "", "Frozen, keyword-only dataclasses of `workloads.contract`.", ""]
    for name in VALUES:
        value = getattr(contract, name)
        shown = [f"{f.name}{_default(f)}" for f in dataclasses.fields(value)]
        out += [f"### {name}", "", _doc(value), "", *textwrap.wrap("`" + "`, `".join(shown) + "`", 118), ""]
    out += [
        "## Errors",
        "",
        "`WorkloadError` has `code`, `message` and `details` (a dict of JSON, or None). Tell errors apart by the code.",
        "",
        "| code | when, and its details |",
        "|---|---|",
        *(f"| `{code}` | {meaning} |" for code, meaning in CODES.items()),
        "",
    ]
    return "\n".join(out)


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    import django

    django.setup()
    PAGE.write_text(render())
