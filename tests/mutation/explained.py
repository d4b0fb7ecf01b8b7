"""The mutants that may survive, and why: `survivors.toml` names them by function and the lines that they change."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.mutants import Mutant

PATH = Path(__file__).with_name("survivors.toml")


@dataclass(frozen=True)
class Explanation:
    """Why mutants of a function may survive: those that change `was` to one of `now`, to anything if that is empty."""

    function: str
    was: str
    now: tuple[str, ...]
    reason: str

    def covers(self, mutant: Mutant) -> bool:
        """Say whether this mutant is meant. A line that stands twice in a function is explained once."""
        is_there = (mutant.function, mutant.was) == (self.function, self.was)
        return is_there and (not self.now or mutant.now in self.now)


def read(path: Path = PATH) -> list[Explanation]:
    """Return what the file explains."""
    if not path.exists():
        return []
    found = tomllib.loads(path.read_text(encoding="utf-8")).get("survivor", [])
    return [
        Explanation(
            function=entry["function"],
            was=_lines(entry["was"]),
            now=tuple(map(_lines, entry.get("now", ()))),
            reason=entry["reason"],
        )
        for entry in found
    ]


def _lines(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())
