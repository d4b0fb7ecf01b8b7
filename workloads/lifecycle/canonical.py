"""Canonical JSON: which values can be stored, the one text that each has, and what is derived from such text."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Iterable
from json.encoder import encode_basestring
from typing import Any, Final

from workloads.errors import WorkloadError, invalid

MAX_DEPTH: Final = 64
MAX_INTEGER_DIGITS: Final = 4_300

_INTEGER_BOUND: Final = 10**MAX_INTEGER_DIGITS
_INTEGER_BOUND_BITS: Final = _INTEGER_BOUND.bit_length()
# Python lets nobody set the limit on digits below 640, so numbers cut into this many are always written and read.
_CHUNK_DIGITS: Final = 600
_CHUNK: Final = 10**_CHUNK_DIGITS

_quote: Callable[[str], str] = encode_basestring
_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":")
)

# A value of fewer parts than this is written sooner by the careful way than by the encoder of the library.
_FEW_PARTS: Final = 12
_SAFE_INTEGER: Final = 2**64


def canonical(value: object, *, field: str) -> str:
    """Return the canonical JSON text of `value` (section 1, "JSON").

    Keys are sorted by code point; a tuple is a list; a float with an integral value is written as the integer; members
    of enums that are strings or integers, and other subclasses of JSON's types, are written as what they subclass.

    Refused with WORKLOAD_INVALID, `details` being the field and the path of the first fault in document order: NaN and
    infinities, NUL characters and lone surrogates (in keys too), integers of more than 4,300 digits, values that are
    not JSON, keys that are not strings, and the 65th of containers in one another, which ends cycles too.
    """
    if type(value) in (dict, list, tuple) and value and (text := _plain_text(value)) is not None:
        return text
    try:
        return _text(value, 0)
    except _Refusal as refusal:
        raise refusal.as_error(field) from None


def _plain_text(value: object) -> str | None:
    """Return the text of a value that the library's encoder writes as `_text` would, at a quarter of the cost.

    None where it might not, or is not worth its while: that is left to `_text`, which knows all rules, and what to say.
    """
    if _count_plain(value, 0) < _FEW_PARTS:
        return None
    try:
        text = _ENCODER.encode(value)
    except ValueError:
        return None
    if "\\u0000" in text:
        return None
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return None
    return text


def _count_plain(value: object, depth: int) -> int:
    """Return of how many parts a value inside `depth` containers consists; 0 if one of them is not plain.

    Plain are dicts with strings for keys, lists, tuples, strings, booleans, None, integers below 2**64, and floats with
    a fraction: each of exactly that type, and not too deep. Strings are not looked into.
    """
    items: Iterable[Any]
    kind = type(value)
    if depth == MAX_DEPTH:
        return 0
    if isinstance(value, dict) and kind is dict:
        for key in value:
            if type(key) is not str:
                return 0
        items = value.values()
    elif isinstance(value, (list, tuple)) and (kind is list or kind is tuple):
        items = value
    else:
        return 0
    count = 1
    for item in items:
        kind = type(item)
        if kind is str or kind is bool or item is None:
            count += 1
        elif kind is int:
            if not -_SAFE_INTEGER < item < _SAFE_INTEGER:
                return 0
            count += 1
        elif kind is float:
            if item.is_integer():
                return 0
            count += 1
        else:
            within = _count_plain(item, depth + 1)
            if not within:
                return 0
            count += within
    return count


def parse(text: str) -> Any:
    """Return the value of a canonical text, its integers exact, whatever limit on digits Python has been given."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return json.loads(text, parse_int=_read_integer)


def digest(text: str) -> str:
    """Return the SHA-256, as hex digits, of the text's UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def measure(text: str) -> int:
    """Return the text's length in bytes of UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def iso(instant: dt.datetime) -> str:
    """Return the instant as ISO 8601 text in UTC, with microseconds and `Z`. A naive one is a ValueError."""
    if instant.tzinfo is not dt.UTC:
        if instant.utcoffset() is None:
            raise ValueError("an instant has a time zone")
        instant = instant.astimezone(dt.UTC)
    return "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ" % (  # noqa: UP031 - half the cost of isoformat()
        instant.year,
        instant.month,
        instant.day,
        instant.hour,
        instant.minute,
        instant.second,
        instant.microsecond,
    )


def workload_id(tenant_id: str, application_id: str, requested_by: str, idempotency_key: str) -> str:
    """Return the id that this idempotency scope has (section 2): the scope is the identity."""
    scope = _ENCODER.encode([tenant_id, application_id, requested_by, idempotency_key])
    return "workload_" + digest(scope)[:24]


class _Refusal(Exception):
    """Why a value has no canonical text; steps are added from the innermost out as the error rises."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []

    def as_error(self, field: str) -> WorkloadError:
        path = "$" + "".join(reversed(self.steps))
        return invalid(field, self.reason, path=path)


def _text(value: object, depth: int) -> str:
    """Return the text of a value that stands inside `depth` containers."""
    kind = type(value)
    if kind is str:
        return _string(value)  # type: ignore[arg-type]
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is int and -_SAFE_INTEGER < value < _SAFE_INTEGER:  # type: ignore[operator]
        return repr(value)
    if isinstance(value, dict):
        return _object(value, depth + 1)
    if isinstance(value, (list, tuple)):
        return _array(value, depth + 1)
    if isinstance(value, int):
        return _integer(int.__int__(value))
    if isinstance(value, float):
        return _float(float.__float__(value))
    if isinstance(value, str):
        return _string(str.__str__(value))
    raise _Refusal(f"a {kind.__name__} is not JSON")


def _object(value: dict[Any, Any], depth: int) -> str:
    _check_depth(depth)
    members: list[tuple[str, str]] = []
    for key, item in value.items():
        if not isinstance(key, str):
            raise _Refusal(f"a key is a {type(key).__name__}, not a string")
        key = str.__str__(key)
        # Outside of the block below: a bad key is named by its mapping's path.
        name = _string(key, "a key")
        try:
            members.append((key, f"{name}:{_text(item, depth)}"))
        except _Refusal as refusal:
            refusal.steps.append(f".{key}")
            raise
    members.sort()
    return "{" + ",".join([member for _, member in members]) + "}"


def _array(value: list[Any] | tuple[Any, ...], depth: int) -> str:
    _check_depth(depth)
    items: list[str] = []
    try:
        for item in value:
            items.append(_text(item, depth))
    except _Refusal as refusal:
        refusal.steps.append(f"[{len(items)}]")
        raise
    return "[" + ",".join(items) + "]"


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _Refusal(f"more than {MAX_DEPTH} containers in one another")


def _string(value: str, what: str = "a string") -> str:
    if "\0" in value:
        raise _Refusal(f"{what} holds a NUL character")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _Refusal(f"{what} holds a lone surrogate") from None
    return _quote(value)


def _float(value: float) -> str:
    if value.is_integer():
        return _integer(int(value))
    if value - value != 0:
        raise _Refusal("NaN and infinities are not JSON")
    return repr(value)


def _integer(value: int) -> str:
    if value.bit_length() >= _INTEGER_BOUND_BITS and abs(value) >= _INTEGER_BOUND:
        raise _Refusal(f"an integer of more than {MAX_INTEGER_DIGITS} digits")
    try:
        return repr(value)
    except ValueError:
        return _write_integer(value)


def _write_integer(value: int) -> str:
    """Return the digits of an integer that is longer than Python's present limit for this."""
    chunks: list[str] = []
    rest = abs(value)
    while rest:
        rest, chunk = divmod(rest, _CHUNK)
        chunks.append(f"{chunk:0{_CHUNK_DIGITS}d}")
    return ("-" if value < 0 else "") + "".join(reversed(chunks)).lstrip("0")


def _read_integer(text: str) -> int:
    digits = text.removeprefix("-")
    value = 0
    for start in range(0, len(digits), _CHUNK_DIGITS):
        chunk = digits[start : start + _CHUNK_DIGITS]
        value = value * 10 ** len(chunk) + int(chunk)
    return -value if text.startswith("-") else value
