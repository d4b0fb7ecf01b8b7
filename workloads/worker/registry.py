"""Which function runs which work: handlers by definition and revision."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from workloads.worker.attempt import Attempt

HandlerFunction = Callable[["Attempt"], Any]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """A handler as it was registered. `revision` None is every revision that has no handler of its own."""

    definition_id: str
    revision: str | None
    capabilities: frozenset[str]
    function: HandlerFunction

    @property
    def selector(self) -> str:
        """Return what a claim asks for to get this handler's work: `id` or `id@revision`."""
        return self.definition_id if self.revision is None else f"{self.definition_id}@{self.revision}"


class Registry:
    """A set of handlers, at most one for each definition and revision."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str | None], Registration] = {}

    def add(
        self,
        function: HandlerFunction,
        definition_id: str,
        *,
        revisions: Iterable[str] | None = None,
        capabilities: Iterable[str] = (),
    ) -> None:
        """Let `function` run the definition's work: of these revisions, or of all that have no handler of their own.

        A ValueError refuses names that the contract would refuse, and a second handler for the same work; the very
        same function may be registered again, as it is when its module is read twice.
        """
        if isinstance(revisions, str) or isinstance(capabilities, str):
            raise TypeError("revisions and capabilities are lists or sets of strings, not one string")
        named = [] if revisions is None else list(dict.fromkeys(revisions))
        if revisions is not None and not named:
            raise ValueError(f"{definition_id}: an empty list of revisions would never run")
        names: list[Any] = [definition_id, *named]
        for name in names:
            if not isinstance(name, str) or not name or name != name.strip() or "@" in name or len(name) > 200:
                raise ValueError(f"{name!r} can name no definition or revision")
        for revision in named if revisions is not None else [None]:
            registration = Registration(
                definition_id=definition_id,
                revision=revision,
                capabilities=frozenset(capabilities),
                function=function,
            )
            known = self._found.get((definition_id, revision))
            if known is not None and not _is_same(known.function, function):
                raise ValueError(
                    f"{registration.selector} has a handler already: {_name(known.function)}, so not {_name(function)}"
                )
            self._found[definition_id, revision] = registration

    def find(self, definition_id: str, revision: str) -> Registration | None:
        """Return the handler for this revision, else the definition's handler for every revision, else None."""
        return self._found.get((definition_id, revision)) or self._found.get((definition_id, None))

    def selectors(self) -> list[str]:
        """Return what a claim must ask for to get the work of all handlers, sorted."""
        return sorted(registration.selector for registration in self._found.values())

    def capabilities(self) -> frozenset[str]:
        """Return the capabilities that the handlers need, all together."""
        return frozenset().union(*(registration.capabilities for registration in self._found.values()))

    def narrow(self, selectors: Sequence[str]) -> list[str]:
        """Return what to ask for so that only known work of the selected definitions is got.

        `id` selects all handlers of a definition; `id@revision` the handler that would run that revision. A selector
        that no handler stands behind is a ValueError.
        """
        narrowed: list[str] = []
        for selector in selectors:
            definition_id, at, revision = selector.partition("@")
            if at:
                found = [selector] if self.find(definition_id, revision) else []
            else:
                found = sorted(r.selector for r in self._found.values() if r.definition_id == definition_id)
            if not found:
                raise ValueError(f"no handler is registered for {selector}")
            narrowed += [name for name in found if name not in narrowed]
        return narrowed


def _name(function: HandlerFunction) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def _is_same(one: HandlerFunction, other: HandlerFunction) -> bool:
    return one is other or (_name(one) == _name(other) and "<locals>" not in _name(one))


handlers: Final = Registry()
"""The handlers of this site, as `handler` registers them."""


def handler(
    definition_id: str, *, revisions: Iterable[str] | None = None, capabilities: Iterable[str] = ()
) -> Callable[[F], F]:
    """Register the decorated function for a definition's work; it takes an Attempt and returns the output.

    `revisions` None is every revision that has no handler of its own. `capabilities` are what the function needs: the
    worker offers them to the authority, and work that was admitted without them is failed, not run.
    """

    def register(function: F) -> F:
        handlers.add(function, definition_id, revisions=revisions, capabilities=capabilities)
        return function

    return register


def discover(modules: Iterable[str] = ()) -> Registry:
    """Import what registers the site's handlers, and return them.

    That is the `handlers` module of each installed app, the one beside the site's root URLconf, and the modules named.
    """
    # Here, so that handlers are registered where there is no Django.
    from django.conf import settings
    from django.utils.module_loading import autodiscover_modules

    autodiscover_modules("handlers")
    package = getattr(settings, "ROOT_URLCONF", "").rpartition(".")[0]
    beside = [f"{package}.handlers"] if package and importlib.util.find_spec(f"{package}.handlers") else []
    for module in [*beside, *modules]:
        importlib.import_module(module)
    return handlers
