"""How stored JSON is shown: indented, and exact to the digit, since nothing is read into numbers and written anew."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from workloads.lifecycle import canonical

_PART: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\]]|[,:]|[^\s{}\[\],:"]+', re.DOTALL)
_INDENT: Final = "  "


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """A JSON text to be shown. `is_cut`: the record holds more than its beginning; `fault`: why it can't be read."""

    shown: str
    is_cut: bool = False
    fault: str = ""
    size: int = 0


def indent(text: str) -> str:
    """Return JSON text, or its beginning, with a line for each member; every other character stays as it is."""
    out: list[str] = []
    depth = 0
    before = ""
    for part in _PART.findall(text):
        if part in ("}", "]"):
            depth = max(0, depth - 1)
            if before not in ("{", "["):
                out += "\n", _INDENT * depth
        elif before in ("{", "[", ","):
            out += "\n", _INDENT * depth
        out.append(": " if part == ":" else part)
        if part in ("{", "["):
            depth += 1
        before = part
    return "".join(out)


def fault_of(text: str) -> str:
    """Return why this is no JSON; nothing where it is."""
    try:
        canonical.parse(text)
    except (ValueError, RecursionError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def head(text: str, *, most: int, shown: int) -> Text:
    """Return a text that was read to one character more than `most`: whole if no longer than that, else `shown` of it.

    What can't be read stands as it is. Whether a cut text can be read is not known.
    """
    if len(text) > most:
        return Text(shown=indent(text[:shown]), is_cut=True)
    return whole(text)


def whole(text: str) -> Text:
    """Return all of a text."""
    fault = fault_of(text)
    return Text(shown=text if fault else indent(text), fault=fault, size=canonical.measure(text))


def dump(value: Any) -> str:
    """Return a value of the record, indented, for what is not stored as it is shown."""
    return json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True)
