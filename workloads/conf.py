"""The site's limits: what `settings.WORKLOADS` may hold, its bounds and its defaults. Section 9 of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

SETTING: Final = "WORKLOADS"
LONGEST_MS: Final = 3_155_760_000_000
MOST: Final = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What the site allows. Each is set under its name in upper case; sizes are bytes of canonical JSON."""

    max_input_bytes: int = 262_144
    max_output_bytes: int = 262_144
    max_checkpoint_bytes: int = 65_536
    max_checkpoints: int = 1_000
    max_error_chars: int = 8_000
    max_lease_ms: int = 86_400_000
    max_releases: int = 20
    max_body_bytes: int = 8_388_608
    accept_late_reports: bool = False
    max_tombstone_age_ms: int | None = None
    notifications: bool = True
    max_waiting_requests: int = 2


# The least and the most of each number. Error text keeps room for the mark that says it was cut.
_BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "max_input_bytes": (1, MOST),
    "max_output_bytes": (1, MOST),
    "max_checkpoint_bytes": (1, MOST),
    "max_checkpoints": (0, MOST),
    "max_error_chars": (100, MOST),
    "max_lease_ms": (1, LONGEST_MS),
    "max_releases": (0, MOST),
    "max_body_bytes": (1, MOST),
    "max_tombstone_age_ms": (0, LONGEST_MS),
    "max_waiting_requests": (0, MOST),
}
_MAY_BE_NONE: Final = frozenset({"max_tombstone_age_ms"})


def problems(given: Any) -> list[str]:
    """Return one sentence for each thing that is wrong with `given`, a value of the setting; none if it is right."""
    if not isinstance(given, Mapping):
        return [f"{SETTING} must be a dict, not {type(given).__name__}."]
    known = {limit.name.upper(): limit.name for limit in fields(Limits)}
    found = []
    for key, value in given.items():
        if key not in known:
            found.append(f"{SETTING}[{key!r}] is not a known setting; known are {', '.join(known)}.")
        elif expected := _expected(known[key], value):
            found.append(f"{SETTING}[{key!r}] must be {expected}, not {value!r}.")
    return found


def _expected(name: str, value: Any) -> str | None:
    if name not in _BOUNDS:
        return None if isinstance(value, bool) else "True or False"
    if value is None and name in _MAY_BE_NONE:
        return None
    least, most = _BOUNDS[name]
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return None
    return f"an integer from {least} to {most}" + (", or None" if name in _MAY_BE_NONE else "")


@cache
def limits() -> Limits:
    """Return the site's limits. `ImproperlyConfigured` names everything that is wrong with the setting."""
    given = getattr(settings, SETTING, {})
    if found := problems(given):
        raise ImproperlyConfigured(" ".join(found))
    return Limits(**{key.lower(): value for key, value in given.items()})


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == SETTING:
        limits.cache_clear()


setting_changed.connect(_forget, dispatch_uid="workloads.conf")
