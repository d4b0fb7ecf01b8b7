"""Which version of a function runs: the one that was written, or one of its mutants. Mutated code imports this.

While `watching`, it is also noted which lines of the written versions run.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

Function = Callable[..., Any]

reached: set[str] = set()
"""The functions called since somebody last cleared it, each by its module and mangled name."""

lines: set[tuple[str, int]] = set()
"""The lines run meanwhile, each by its module and number, as far as they were watched."""

generators: set[str] = set()
"""The functions whose lines run after their call has returned, and are not watched."""

starts: dict[str, int] = {}
"""The line of each function's `def`."""

watching = [False]

_modules: dict[str, str] = {}
_switches: dict[str, tuple[list[Function], dict[str, Function]]] = {}


def switchable(mutants: dict[str, Function], is_classmethod: bool = False) -> Callable[[Function], Function]:
    """Decorate a function that has mutants. `mutants` is filled with them by name, after the last is defined."""

    def decorate(written: Function) -> Function:
        chosen = [written]

        @functools.wraps(written)
        def call(*args: Any, **kwargs: Any) -> Any:
            reached.add(key)
            if not watching[0]:
                return chosen[0](*args, **kwargs)
            before = sys.gettrace()
            sys.settrace(_watch)
            try:
                return chosen[0](*args, **kwargs)
            finally:
                sys.settrace(before)

        # The mutants' names are not known yet; all begin with this.
        parts = written.__qualname__.split(".")
        mangled = f"x_{parts[0]}" if len(parts) == 1 else f"xǁ{parts[0]}ǁ{parts[1]}"
        key = f"{written.__module__}.{mangled}"
        _switches[key] = (chosen, mutants)
        code = written.__code__
        _modules[code.co_filename] = written.__module__
        starts[key] = code.co_firstlineno
        # Its decorators are counted as its own.
        while linecache.getline(code.co_filename, starts[key]).lstrip().startswith("@"):
            starts[key] += 1
        if inspect.isgeneratorfunction(written):
            generators.add(key)
        return call

    return decorate


def _watch(frame: FrameType, event: str, argument: Any) -> Any:
    module = _modules.get(frame.f_code.co_filename)
    if module is None:
        return None

    def note(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            lines.add((module, frame.f_lineno))
        return note

    return note


def choose(mutant: str) -> None:
    """Let a mutant, by its full name, run in the place of its function, here and from now on."""
    chosen, mutants = _switches[key_of(mutant)]
    function = mutants[mutant.rpartition(".")[2]]
    # A class method's mutant comes bound; the decorator stands below `@classmethod`, and is given the class.
    chosen[0] = getattr(function, "__func__", function)


def key_of(mutant: str) -> str:
    """Name the function that a mutant is of, as `reached` does."""
    return mutant.partition("__mutmut_")[0]
