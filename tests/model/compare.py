"""How an answer and a record of the authority are held against the model's, the ids that each makes paired as they meet."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from tests.model import records
from tests.model.model import Cycle, ModelRefusal
from tests.model.records import OneOf, Opaque, Record, Unordered
from workloads import models
from workloads.contract import Fence
from workloads.errors import WorkloadError

HISTORY = ("events", "attempts", "checkpoints", "result", "dependencies")
SCALARS = tuple(given.name for given in dataclasses.fields(Record) if given.name not in HISTORY)
OURS = (records.Event, records.Attempt, records.Checkpoint, records.Result)
PRIVATE = frozenset({"confirmed"})


class Pairs:
    """Which id of the authority stands for which of the model's. One for one, and never another later."""

    def __init__(self) -> None:
        self.real: dict[str, str] = {}
        self.mine: dict[str, str] = {}

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
                yield from self.differences(getattr(mine, name), getattr(real, name), f"{path}.{name}")
            return
        elif isinstance(mine, ModelRefusal):
            yield from self._refusals(mine, real, path)
            return
        elif isinstance(mine, OURS):
            for given in dataclasses.fields(mine):
                if given.name not in PRIVATE:
                    theirs = getattr(real, given.name, "no such field")
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
        stored = {workload.pk: workload for workload in models.Workload.objects.all()}
        if (ids := {workload.workload_id for workload in stored.values()}) != set(mine):
            yield f"stored are {ids}, admitted were {set(mine)}"
            return
        rows: dict[int, dict[str, list[Any]]] = {pk: {name: [] for name in HISTORY} for pk in stored}
        for name, model, place in (
            ("events", models.Event, "record_id"),
            ("attempts", models.Attempt, "record_id"),
            ("checkpoints", models.Checkpoint, "record_id"),
            ("result", models.Result, "record_id"),
            ("dependencies", models.Dependency, "dependent_id"),
        ):
            for row in model.objects.all():
                rows[getattr(row, place)][name].append(row)
        for pk, workload in stored.items():
            record = mine[workload.workload_id]
            path = f"{record.requested_by}/{record.idempotency_key}"
            yield from self.differences(record, workload, path)
            for name in ("events", "attempts", "checkpoints"):
                ordered = sorted(rows[pk][name], key=lambda row: getattr(row, "number", 0) or row.sequence)
                yield from self.differences(getattr(record, name), ordered, f"{path}.{name}")
            results = [record.result] if record.result else []
            yield from self.differences(results, rows[pk]["result"], f"{path}.result")
            waited = sorted((row.depends_on, row.required_state) for row in rows[pk]["dependencies"])
            yield from self.differences(sorted(record.dependencies), waited, f"{path}.dependencies")
