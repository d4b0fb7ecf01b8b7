"""What walks share: one site, one browser, and people who are logged in."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.browser import site as sites


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Have Debian's Chromium; nothing but this machine can be reached from it."""
    if reason := sites.why_not():
        if os.environ.get("WORKLOADS_REQUIRE_SERVICES", "") not in {"", "0"}:
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=sites.chromium(),
            args=["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
        )
        yield opened
        opened.close()


@pytest.fixture(scope="package")
def site(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sites.Site]:
    """Have a site with something of everything."""
    with sites.served(tmp_path_factory.mktemp("site"), "everyday", "hostile", "spare") as running:
        yield running


@pytest.fixture(scope="package")
def people(browser: Any, site: sites.Site) -> Iterator[Callable[..., Any]]:
    """Return a function that gives somebody by name: logged in once, with JavaScript or without, and then kept."""
    from tests.browser.visits import visitor

    kept: dict[tuple[str, bool], Any] = {}
    with ExitStack() as stack:

        def give(name: str, *, scripts: bool = True) -> Any:
            if (name, scripts) not in kept:
                kept[name, scripts] = stack.enter_context(visitor(browser, site, name, scripts=scripts))
            somebody = kept[name, scripts]
            somebody.noted.clear()
            somebody.shape("light", "wide")
            return somebody

        yield give


@pytest.fixture(scope="package")
def spare(site: sites.Site) -> Callable[[str], str]:
    """Return a function that gives the story of a workload that nobody has acted on yet: dead, waiting or held."""
    given = {kind: iter([name for name in site.ids if name.startswith(f"spare {kind} ")]) for kind in sites.SPARE}
    return lambda kind: next(given[kind])
