"""Secret material: which text is a credential by its looks, which keys name one, and how text is freed of it.

Section 9 of the contract. What is recognised by its looks can be judged as soon as a value is given; what stands under
a key that names a secret is judged with the workload's connection scopes, which may excuse it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from workloads.errors import WORKLOAD_SECRET_MATERIAL, WorkloadError
from workloads.lifecycle.credentials import first_rule, suspected

REDACTED: Final = "[redacted]"
NAMED_KEY: Final = "named_key"

# fmt: off
SECRET_NAMES: Final = frozenset({
    "password", "passwd", "passphrase", "secret", "clientsecret", "apikey", "apitoken", "accesskey", "accesstoken",
    "refreshtoken", "idtoken", "authtoken", "sessiontoken", "privatekey", "secretkey", "signingkey", "encryptionkey",
    "authorization", "credential", "credentials", "cookie", "setcookie",
})
# fmt: on

_SCALARS: Final = (type(None), bool, int, float)
_KNOWN_KEYS: Final = 4_096
_LONGEST_KNOWN_KEY: Final = 64
_ENDINGS: Final = tuple(sorted(SECRET_NAMES))
_LONGEST_NAME: Final = max(map(len, SECRET_NAMES))
_REDACTION_ROUNDS: Final = 8


@dataclass(frozen=True, slots=True)
class Secret:
    """Where secret material stands, and by which rule it was known; nothing of what it says."""

    path: str
    rule: str


def check_text(text: str, *, field: str) -> None:
    """Let an error text or a reason through only if nothing in it looks like secret material. Its path is `$`."""
    _refuse(_find(text, patterns=True, keyed=False), field)


def check_patterns(value: object, *, field: str) -> None:
    """Let a JSON value through only if no string or key in it looks like secret material, whatever stands where."""
    _refuse(_find(value, patterns=True, keyed=False), field)


def check_keys(value: object, *, field: str, scopes: Collection[str]) -> None:
    """Let a JSON value through only if no string stands under a key that names a secret, save references and scopes."""
    _refuse(find_keyed(value, excused=scopes), field)


def check_value(value: object, *, field: str, scopes: Collection[str]) -> None:
    """Let a JSON value through only if both `check_patterns` and `check_keys` do; the first in document order tells."""
    _refuse(find_secret(value, excused=scopes), field)


def find_secret(value: object, *, excused: Collection[str] = ()) -> Secret | None:
    """Return the first secret material in document order, by either kind of rule. A bad key is its mapping's path."""
    return _find(value, patterns=True, keyed=True, excused=excused)


def find_keyed(value: object, *, excused: Collection[str] = ()) -> Secret | None:
    """Return the first string that stands under a key that names a secret, not being a reference or in `excused`."""
    return _find(value, patterns=False, keyed=True, excused=excused)


def find_in_text(text: str) -> str | None:
    """Return the name of the first rule by which the text holds secret material."""
    return first_rule(text, suspected(text))


def redact(text: str) -> str:
    """Return the text with `[redacted]` in place of all secret material, so that `check_text` lets it through."""
    for _ in range(_REDACTION_ROUNDS):
        if find_in_text(text) is None:
            return text
        for rule in suspected(text):
            pieces: list[str] = []
            end = 0
            for start, stop in rule.spans(text):
                if start >= end:
                    pieces += text[end:start], REDACTED
                    end = stop
            text = "".join(pieces) + text[end:]
    return text if find_in_text(text) is None else REDACTED


def names_secret(key: str) -> bool:
    """Say whether a key names a secret: the whole of it, or what stands after a `_`, a `-` or a camel-case hump."""
    if not key.replace("-", "").replace("_", "").lower().endswith(_ENDINGS):
        return False
    # From the end: `name` is what stands from here on, reduced.
    name = ""
    for at in range(len(key) - 1, -1, -1):
        if key[at] not in "-_":
            name = key[at].lower() + name
            if len(name) > _LONGEST_NAME:
                return False
        if name in SECRET_NAMES and (at == 0 or key[at - 1] in "-_" or _is_hump(key, at)):
            return True
    return False


@lru_cache(maxsize=_KNOWN_KEYS)
def _short_names_secret(key: str) -> bool:
    """Say whether a key of a plain string names a secret: the same few keys stand in very many values."""
    return names_secret(key)


def is_reference(text: str) -> bool:
    """Say whether the whole text names a secret kept elsewhere: `secret://…`, `vault:…`, `env:…` or `${…}`."""
    return _REFERENCE.fullmatch(text) is not None or _is_placeholder(text)


_REFERENCE: Final = re.compile(r"(?:secret://|vault:|env:)\S+")


def _is_placeholder(text: str) -> bool:
    """Say whether the brace that opens after the leading `$` is the one that ends the text."""
    if not (text.startswith("${") and text.endswith("}") and text[2:-1].strip()):
        return False
    depth = 0
    for at in range(1, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return at == len(text) - 1
    return False


def _is_hump(key: str, at: int) -> bool:
    """Say whether a capital at `at` (not 0) begins a word: `clientSecret`, `v2Secret`, and `DBPassword` at its P."""
    before, here = key[at - 1], key[at]
    if not here.isupper():
        return False
    if before.islower() or before.isdigit():
        return True
    return before.isupper() and key[at + 1 : at + 2].islower()


def _refuse(secret: Secret | None, field: str) -> None:
    if secret is not None:
        raise WorkloadError(
            WORKLOAD_SECRET_MATERIAL,
            f"{field}: secret material at {secret.path} ({secret.rule})",
            {"path": secret.path, "rule": secret.rule},
        )


def _hold_credential(texts: list[str]) -> bool:
    # No hint spans two strings, since none holds a line break: one look at all of them leaves few rules, or none.
    return any(rule.is_in(texts) for rule in suspected("\n".join(texts)))


# The steps to a place, innermost first; kept as a chain, since a path is written out only for what is refused.
_Steps = tuple[Any, str] | None


def _path(steps: _Steps) -> str:
    parts: list[str] = []
    while steps is not None:
        steps, part = steps
        parts.append(part)
    return "$" + "".join(reversed(parts))


def _find(value: object, *, patterns: bool, keyed: bool, excused: Collection[str] = ()) -> Secret | None:
    texts = _plain_texts(value, keyed=keyed)
    if texts is not None and not (patterns and _hold_credential(texts)):
        return None
    places = list(_strings(value))
    # No hint spans two strings, since none holds a line break: one look at all of them leaves few rules, or none.
    rules = suspected("\n".join([text for text, _, _ in places])) if patterns else []
    if not (rules or keyed):
        return None
    for text, steps, secret_key in places:
        if rules and (rule := first_rule(text, rules)) is not None:
            return Secret(_path(steps), rule)
        if keyed and secret_key and text and text not in excused and not is_reference(text):
            return Secret(_path(steps), NAMED_KEY)
    return None


def _plain_texts(value: object, *, keyed: bool) -> list[str] | None:
    """Return every string and key of a plain JSON value, in any order, at a fifth of the cost of `_strings`.

    None where something is of another type than exactly one of JSON's, or, with `keyed`, where a key that names a
    secret has a string or a list under it.
    """
    texts: list[str] = []
    values: list[object] = [value]
    # It grows by what stands in the lists and mappings that it holds.
    for item in values:
        kind = type(item)
        if kind is str:
            texts.append(item)  # type: ignore[arg-type]
        elif kind is dict:
            for key, below in item.items():  # type: ignore[attr-defined]
                if type(key) is not str:
                    return None
                texts.append(key)
                kind = type(below)
                if kind is int or kind is bool or below is None:
                    continue
                if keyed and kind is not dict and kind is not float:
                    known = _short_names_secret if len(key) <= _LONGEST_KNOWN_KEY else names_secret
                    if known(key):
                        return None
                if kind is str:
                    texts.append(below)
                else:
                    values.append(below)
        elif kind is list or kind is tuple:
            values += item  # type: ignore[arg-type]
        elif kind not in _SCALARS:
            return None
    return texts


def _strings(value: object) -> Iterator[tuple[str, _Steps, bool]]:
    """Give every string and key of a JSON value (one that has an end) in document order: its text, its steps, and
    whether a key above it names a secret.

    A key has its mapping's steps and is never itself under a key. Lists hand on what the key above them says; a mapping
    begins anew.
    """
    start: tuple[object, _Steps, bool] = (value, None, False)
    stack: list[Iterator[tuple[object, _Steps, bool]]] = [iter([start])]
    while stack:
        for item, steps, secret_key in stack[-1]:
            if isinstance(item, str):
                yield item, steps, secret_key
            elif isinstance(item, dict):
                stack.append(_members(item, steps))
                break
            elif isinstance(item, (list, tuple)):
                stack.append(_items(item, steps, secret_key))
                break
        else:
            stack.pop()


def _members(mapping: dict[Any, Any], steps: _Steps) -> Iterator[tuple[object, _Steps, bool]]:
    for key, item in mapping.items():
        name = str(key)
        yield name, steps, False
        yield item, (steps, f".{name}"), names_secret(name)


def _items(
    items: list[Any] | tuple[Any, ...], steps: _Steps, secret_key: bool
) -> Iterator[tuple[object, _Steps, bool]]:
    for index, item in enumerate(items):
        yield item, (steps, f"[{index}]"), secret_key
