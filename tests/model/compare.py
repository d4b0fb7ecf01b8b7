"""How answers and records of the authority are held against the model's, and how the ids that each makes are paired."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from tests.model import records
from tests.model.records import OneOf, Opaque, Record, Unordered
from tests.model.site import Cycle, ModelRefusal
from workloads import models
from workloads.contract import Fence
from workloads.errors import WorkloadError

HISTORY = ("events", "attempts", "checkpoints", "result", "dependencies")
SCALARS = tuple(given.name for given in dataclasses.fields(Record) if given.name not in HISTORY)
OURS = (records.Event, records.Attempt, records.Checkpoint, records.Result)
PRIVATE = frozenset({"confirmed"})
MISSING = "no such field"
TABLES = {
    "events": (models.Event, "record_id", "sequence"),
    "attempts": (models.Attempt, "record_id", "number"),
    "checkpoints": (models.Checkpoint, "record_id", "sequence"),
    "result": (models.Result, "record_id", "record"),
    "dependencies": (models.Dependency, "dependent_id", "depends_on"),
}


class Pairs:
    """Which id of the authority stands for which of the model's. One for one, and never another later."""

    def __init__(self) -> None:
        self.real: dict[str, str] = {}
        self.mine: dict[str, str] = {}
        self.same: dict[int, Any] = {}

    def agree(self, mine: str, real: Any) -> bool:
        """Pair two ids that meet for the first time; say whether they are a pair."""
        if not isinstance(real, str) or not 1 <= len(real) <= 64:
            return False
        return self.real.setdefault(mine, real) == real and self.mine.setdefault(real, mine) == mine

    def translate(self, value: Any) -> Any:
        """Return an argument as the authority is to get it: the model's claim ids replaced by its own."""
        if isinstance(value, Opaque):
            return self.real.get(value, str(value))
        if isinstance(value, list | tuple):
            return type(value)(map(self.translate, value))
        if isinstance(value, Fence):
            return dataclasses.replace(value, claim_id=self.translate(value.claim_id))
        if hasattr(value, "fence"):
            return dataclasses.replace(value, fence=self.translate(value.fence))
        return value

    def differences(self, mine: Any, real: Any, path: str) -> Iterator[str]:
        """Yield where the two differ, in words; nothing if they are the same."""
        if isinstance(mine, Opaque):
            same = self.agree(mine, real)
        elif isinstance(mine, OneOf | Unordered | Cycle):
            same = mine == real
        elif isinstance(mine, Record):
            for name in SCALARS:
                yield from self.differences(getattr(mine, name), field_of(real, name), f"{path}.{name}")
            return
        elif isinstance(mine, ModelRefusal):
            yield from self._refusals(mine, real, path)
            return
        elif isinstance(mine, OURS):
            for given in dataclasses.fields(mine):
                if given.name not in PRIVATE:
                    theirs = field_of(real, given.name)
                    yield from self.differences(getattr(mine, given.name), theirs, f"{path}.{given.name}")
            return
        elif isinstance(mine, dict):
            if dataclasses.is_dataclass(real):
                real = {given.name: getattr(real, given.name) for given in dataclasses.fields(real)}
            same = isinstance(real, Mapping) and mine.keys() == real.keys()
            if same:
                for key, member in mine.items():
                    yield from self.differences(member, real[key], f"{path}.{key}")
                return
        elif isinstance(mine, list | tuple):
            same = isinstance(real, list | tuple) and len(mine) == len(real)
            if same:
                for index, (ours, theirs) in enumerate(zip(mine, real, strict=True)):
                    yield from self.differences(ours, theirs, f"{path}[{index}]")
                return
        else:
            same = mine == real and isinstance(mine, bool) == isinstance(real, bool)
        if not same:
            yield f"{path}: the model says {mine!r} and the authority {real!r}"

    def _refusals(self, mine: ModelRefusal, real: Any, path: str) -> Iterator[str]:
        if not isinstance(real, WorkloadError) or mine.code != real.code:
            yield f"{path}: the model refuses with {mine.code} {mine.details}, the authority answers {real!r}"
        elif mine.details is not None:
            details = real.details or {}
            if mine.code == "WORKLOAD_INVALID":
                details = {key: value for key, value in details.items() if key in mine.details}
            yield from self.differences(mine.details, details, f"{path}.details")

    def record_differences(self, mine: dict[str, Record]) -> Iterator[str]:
        """Yield where the stored records, histories included, are not the model's."""
        stored = {row["pk"]: row for row in models.Workload.objects.values("pk", *SCALARS)}
        if (ids := {row["workload_id"] for row in stored.values()}) != set(mine):
            yield f"stored are {ids}, admitted were {set(mine)}"
            return
        rows: dict[int, dict[str, list[Any]]] = {pk: {name: [] for name in HISTORY} for pk in stored}
        for name, (model, place, order) in TABLES.items():
            for row in model.objects.order_by(order).values():
                rows[row[place]][name].append(row)
        for pk, row in stored.items():
            record = mine[row["workload_id"]]
            now = row, rows[pk]
            # Nothing of either has changed since they were the same.
            if self.same.get(pk) == (record, now):
                continue
            found = list(self._record(record, *now))
            yield from found
            if not found:
                self.same[pk] = copy.deepcopy((record, now))

    def _record(self, record: Record, row: Any, history: dict[str, list[Any]]) -> Iterator[str]:
        path = f"{record.tenant_id}/{record.idempotency_key}"
        yield from self.differences(record, row, path)
        for name in ("events", "attempts", "checkpoints"):
            yield from self.differences(getattr(record, name), history[name], f"{path}.{name}")
        results = [
            one | {"provenance": {"claim_id": one["claim_id"], "fencing_token": one["fencing_token"]}}
            for one in history["result"]
        ]
        yield from self.differences([record.result] if record.result else [], results, f"{path}.result")
        waited = sorted((one["depends_on"], one["required_state"]) for one in history["dependencies"])
        yield from self.differences(sorted(record.dependencies), waited, f"{path}.dependencies")


def field_of(real: Any, name: str) -> Any:
    """Return a field of a model instance, of a value of the contract, or of a row."""
    return real.get(name, MISSING) if isinstance(real, dict) else getattr(real, name, MISSING)
