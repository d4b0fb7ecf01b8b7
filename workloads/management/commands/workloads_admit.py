"""`manage.py workloads_admit FILE`: work is admitted from JSON: one object, a list of them, or JSON Lines."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from django.core.management.base import BaseCommand, CommandError, CommandParser

from workloads import authority
from workloads.contract import Admission, AdmissionRequest, Dependency, RetryPolicy, Timeouts
from workloads.errors import WorkloadError, invalid

T = TypeVar("T")

BATCH: Final = 500


class Command(BaseCommand):
    help = (
        "Admit work that a file describes (- is the standard input): one JSON object, a list of them, or JSON Lines, "
        "with the field names of AdmissionRequest. A file that is not JSON, or holds a key twice in one object, is "
        "refused whole (exit 2); else each item is judged alone, and the exit is 1 if any was refused."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", metavar="FILE|-")
        parser.add_argument("--json", action="store_true", help="print one JSON array, an object for each item")

    def handle(self, *_: Any, **options: Any) -> None:
        items = _items(_read(options["file"]))
        outcomes: list[dict[str, Any]] = []
        for start in range(0, len(items), BATCH):
            for number, outcome in enumerate(_admit(items[start : start + BATCH]), start + 1):
                outcomes.append(_told(number, outcome))
                if not options["json"]:
                    self.stdout.write(_line(outcomes[-1]))
        if options["json"]:
            self.stdout.write(json.dumps(outcomes, ensure_ascii=False))
        if any(outcome["outcome"] == "refused" for outcome in outcomes):
            raise SystemExit(1)


def _read(name: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror}", returncode=2) from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{name}: not UTF-8 ({error})", returncode=2) from error


def _items(text: str) -> list[Any]:
    """Return the items of a file: of the one list that it holds, else one for each JSON value in it."""
    values = list(_values(text))
    return values[0] if len(values) == 1 and isinstance(values[0], list) else values


def _values(text: str) -> Iterator[Any]:
    decoder = json.JSONDecoder(object_pairs_hook=_object)
    place = 0
    while True:
        while place < len(text) and text[place] in " \t\r\n":
            place += 1
        if place == len(text):
            return
        try:
            value, place = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            raise CommandError(f"line {error.lineno}, column {error.colno}: {error.msg}", returncode=2) from error
        except (ValueError, RecursionError) as error:
            line = text.count("\n", 0, place) + 1
            raise CommandError(f"the value that begins on line {line}: {error}", returncode=2) from error
        yield value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice in an object")
    return found


def _admit(items: list[Any]) -> list[Admission | WorkloadError]:
    requests: list[AdmissionRequest] = []
    outcomes: list[Admission | WorkloadError | None] = []
    for item in items:
        try:
            requests.append(_request(item))
            outcomes.append(None)
        except WorkloadError as refusal:
            outcomes.append(refusal)
    answers = iter(authority.admit_many(requests))
    return [next(answers) if outcome is None else outcome for outcome in outcomes]


def _request(item: Any) -> AdmissionRequest:
    values = dict(_checked(AdmissionRequest, item, ""))
    if "retry_policy" in values:
        values["retry_policy"] = _build(RetryPolicy, values["retry_policy"], "retry_policy")
    if "timeouts" in values:
        values["timeouts"] = _build(Timeouts, values["timeouts"], "timeouts")
    if "dependencies" in values:
        given = values["dependencies"]
        if not isinstance(given, list):
            raise invalid("dependencies", "must be a list of objects")
        values["dependencies"] = tuple(_build(Dependency, one, "dependencies") for one in given)
    if isinstance(values.get("not_before"), str):
        values["not_before"] = _instant(values["not_before"])
    return AdmissionRequest(**values)


def _build(cls: type[T], item: Any, field: str) -> T:
    return cls(**_checked(cls, item, field))


def _checked(cls: Any, item: Any, field: str) -> dict[str, Any]:
    """Return the object's members if they are fields of the class, none unknown and none wanting."""
    if not isinstance(item, dict):
        raise invalid(field or "item", "must be an object")
    prefix = f"{field}." if field else ""
    known = {one.name: one for one in fields(cls)}
    for name in item:
        if name not in known:
            raise invalid(f"{prefix}{name}", "is not known")
    for name, one in known.items():
        if name not in item and one.default is MISSING and one.default_factory is MISSING:
            raise invalid(f"{prefix}{name}", "is missing")
    return item


def _instant(text: str) -> dt.datetime:
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise invalid("not_before", "is not an ISO 8601 instant") from error


def _told(number: int, outcome: Admission | WorkloadError) -> dict[str, Any]:
    if isinstance(outcome, WorkloadError):
        return {
            "item": number,
            "outcome": "refused",
            "code": outcome.code,
            "message": outcome.message,
            "details": outcome.details,
        }
    return {
        "item": number,
        "outcome": "created" if outcome.created else "replayed",
        "workload_id": outcome.workload.workload_id,
    }


def _line(told: dict[str, Any]) -> str:
    if told["outcome"] != "refused":
        return f"{told['outcome']} {told['workload_id']}"
    details = "" if not told["details"] else f" {json.dumps(told['details'], ensure_ascii=False)}"
    return f"refused item {told['item']}: {told['code']}: {told['message']}{details}"
