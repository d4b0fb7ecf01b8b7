"""Which version of a function runs: the one that was written, or one of its mutants. Mutated code imports this."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]

reached: set[str] = set()
"""The functions called since somebody last cleared it, each by its module and mangled name."""

_switches: dict[str, tuple[list[Function], dict[str, Function]]] = {}


def switchable(mutants: dict[str, Function], is_classmethod: bool = False) -> Callable[[Function], Function]:
    """Decorate a function that has mutants. `mutants` is filled with them by name, after the last is defined."""

    def decorate(written: Function) -> Function:
        chosen = [written]

        @functools.wraps(written)
        def call(*args: Any, **kwargs: Any) -> Any:
            reached.add(key)
            return chosen[0](*args, **kwargs)

        # The mutants' names are not known yet; all begin with this.
        parts = written.__qualname__.split(".")
        mangled = f"x_{parts[0]}" if len(parts) == 1 else f"xǁ{parts[0]}ǁ{parts[1]}"
        key = f"{written.__module__}.{mangled}"
        _switches[key] = (chosen, mutants)
        return call

    return decorate


def choose(mutant: str) -> None:
    """Let a mutant, by its full name, run in the place of its function, here and from now on."""
    chosen, mutants = _switches[key_of(mutant)]
    function = mutants[mutant.rpartition(".")[2]]
    # A class method's mutant comes bound; the decorator stands below `@classmethod`, and is given the class.
    chosen[0] = getattr(function, "__func__", function)


def key_of(mutant: str) -> str:
    """Name the function that a mutant is of, as `reached` does."""
    return mutant.partition("__mutmut_")[0]
