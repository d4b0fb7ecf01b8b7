"""What a handler's exception or output means: the failure's kind, and error text fit to be stored. Sections 6, 9."""

from __future__ import annotations

import traceback
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from workloads.contract import Effect
from workloads.errors import WORKLOAD_INVALID, WORKLOAD_SECRET_MATERIAL, WORKLOAD_TOO_LARGE, WorkloadError
from workloads.lifecycle import arguments, canonical, secrets
from workloads.worker.port import Bounds

EXCEPTION: Final = "exception"
AS_DELIVERED: Final = Bounds()
CAPABILITY_MISSING: Final = "capability_missing"
MOST_FRAMES: Final = 30
LONGEST_TEXT: Final = 100_000
"""Longer text is cut before it is searched for secrets."""

_SUFFIXES: Final = {
    WORKLOAD_INVALID: "invalid",
    WORKLOAD_TOO_LARGE: "too_large",
    WORKLOAD_SECRET_MATERIAL: "secret",
}
_kinds: dict[type[BaseException], str] = {TimeoutError: "timeout", ConnectionError: "transient_connection"}


class WorkloadFailure(Exception):
    """Raised by a handler to say exactly how its attempt failed.

    `kind` is what the retry policy judges; `effect` is None, `none` or `unknown` (what the attempt may have done to the
    world); `retry_after_ms` asks for a delay of at least that many milliseconds. A subclass may set them as attributes.
    """

    kind: str = EXCEPTION
    message: str = ""
    effect: Effect | str | None = None
    retry_after_ms: int | None = None

    def __init__(
        self,
        kind: str,
        message: str = "",
        *,
        effect: Effect | str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message
        self.effect = effect
        self.retry_after_ms = retry_after_ms

    def __str__(self) -> str:
        # A subclass that does not call the method above has its arguments as any exception has them.
        return self.message or (self.kind if self.args == (self.kind, self.message) else super().__str__()) or self.kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A failure as it is reported: arguments that the authority takes as they are."""

    kind: str
    error: str
    effect: Effect | None = None
    retry_after_ms: int | None = None


def register_failure_kind(exception: Any, kind: str) -> None:
    """Let a handler's exception of this class be a failure of `kind`; of the classes above it, the nearest counts."""
    arguments.identifier(kind, "kind")
    if not (isinstance(exception, type) and issubclass(exception, BaseException)):
        raise TypeError(f"{exception!r} is no class of exceptions")
    _kinds[exception] = kind


def kind_of(error: BaseException) -> str:
    """Return the failure kind that the table gives an exception, `exception` where it names none."""
    return next((_kinds[cls] for cls in type(error).__mro__ if cls in _kinds), EXCEPTION)


def describe(error: BaseException, bounds: Bounds = AS_DELIVERED) -> Failure:
    """Return what to report of an exception that left a handler. Never fails itself, whatever the exception is like."""
    try:
        return _describe(error, bounds)
    except BaseException:
        return Failure(kind=EXCEPTION, error=f"{type(error).__name__[:200]}: (what it says could not be read)")


def _describe(error: BaseException, bounds: Bounds) -> Failure:
    if not isinstance(error, WorkloadFailure):
        return Failure(kind=kind_of(error), error=presentable(f"{_headline(error)}\n\n{_trace(error)}", bounds))
    text = _text_of(error)
    if error.__cause__ is not None:
        text = f"{text}\n\n{_trace(error.__cause__)}"
    kind, effect, retry_after_ms = error.kind, None, None
    said: Any = error.effect
    try:
        arguments.identifier(kind, "kind")
    except WorkloadError:
        kind, text = EXCEPTION, f"(reported under the kind {_repr(error.kind)}, which is none)\n{text}"
    if said is not None:
        # An effect that can't be read is one that is not known.
        known = isinstance(said, str) and said in {e.value for e in Effect}
        effect = Effect(said) if known else Effect.UNKNOWN
    given = error.retry_after_ms
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        retry_after_ms = given
    return Failure(kind=kind, error=presentable(text, bounds), effect=effect, retry_after_ms=retry_after_ms)


def refusal_kind(refusal: WorkloadError, field: str) -> str | None:
    """Return the failure kind for a value that the authority does not store, None if that is not why it refuses.

    `output_invalid`, `output_too_large`, `output_secret`, and likewise for `checkpoint`.
    """
    suffix = _SUFFIXES.get(refusal.code)
    return None if suffix is None else f"{field}_{suffix}"


def settle_output(output: Any, *, scopes: Collection[str], bounds: Bounds = AS_DELIVERED) -> tuple[Any, Failure | None]:
    """Return a handler's output as plain values, and the failure that it is if the authority would not take it.

    The copy is what is reported, each time the same: the handler may have kept the original, and go on changing it.
    """
    try:
        text = canonical.canonical(output, field="output")
        size = canonical.measure(text)
        limit = bounds.max_output_bytes
        if size > limit:
            raise WorkloadError(WORKLOAD_TOO_LARGE, f"The output has {size} bytes of JSON, {limit} are the most.")
        plain = canonical.parse(text)
        if isinstance(plain, (str, list, dict)):
            secrets.check_value(plain, field="output", scopes=scopes)
    except WorkloadError as refusal:
        return None, output_failure(refusal, bounds)
    except BaseException as error:
        return None, Failure(
            kind="output_invalid", error=presentable(f"The output can't be read: {_headline(error)}", bounds)
        )
    return plain, None


def output_failure(refusal: WorkloadError, bounds: Bounds = AS_DELIVERED) -> Failure:
    """Return the failure of an attempt whose output the authority does not take."""
    return Failure(
        kind=refusal_kind(refusal, "output") or EXCEPTION,
        error=presentable(f"The handler returned, but its output was refused. {refusal}", bounds),
    )


def presentable(text: str, bounds: Bounds = AS_DELIVERED) -> str:
    """Return error text that the authority stores: mended, redacted, and cut to the site's maximum."""
    limit = bounds.max_error_chars
    text = text[:LONGEST_TEXT]
    for _ in range(3):
        text = arguments.mend_error(secrets.redact(text), limit)
        # A cut may make a key out of what was no key, since its format ends where the text now does.
        if secrets.find_in_text(text) is None:
            return text
    return arguments.mend_error(secrets.REDACTED, limit)


def _headline(error: BaseException) -> str:
    said = _text_of(error)
    name = type(error).__qualname__
    return f"{name}: {said}" if said else name


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return "(its text could not be made)"


def _repr(value: object) -> str:
    try:
        return repr(value)[:200]
    except BaseException:
        return "(its text could not be made)"


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-MOST_FRAMES)).rstrip()
    except BaseException:
        return "(its traceback could not be made)"
