"""Pages as a person has them: opened in a browser that notes whatever goes wrong, and looked at in each shape."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Response, Route, WebError

from tests.browser import axe
from tests.browser.site import PASSWORD, Site

SCHEMES: Final = ("light", "dark")
WIDTHS: Final = {"wide": (1_440, 900), "narrow": (375, 812)}
PATIENCE_MS: Final = 30_000

# Whatever stands beyond the right edge, and in nothing that can be scrolled to it but the page.
BEYOND: Final = """() => {
    const root = document.documentElement, found = [];
    if (root.scrollWidth > root.clientWidth)
        found.push(`the page is ${root.scrollWidth} px wide, the window ${root.clientWidth}`);
    const scrolls = element => {
        const is = getComputedStyle(element);
        return ["auto", "scroll"].includes(is.overflowX) && element.scrollWidth > element.clientWidth;
    };
    const frame = new Set(document.querySelectorAll("html, body, #container, #main, .main, .content, #content"));
    for (const element of document.body.querySelectorAll("*")) {
        const box = element.getBoundingClientRect();
        if (!box.width || !box.height || box.right <= root.clientWidth + 1) continue;
        if (getComputedStyle(element).visibility === "hidden") continue;
        let holder = element.parentElement, isHeld = false;
        while (holder && !isHeld) {
            const kind = getComputedStyle(holder).overflowX;
            isHeld = !frame.has(holder) && (scrolls(holder) || ["hidden", "clip"].includes(kind));
            holder = holder.parentElement;
        }
        if (!isHeld) {
            const is = `${element.tagName} ${element.className} ${element.id}`;
            found.push(`${is} ends at ${Math.round(box.right)} px: ${element.textContent.trim().slice(0, 60)}`);
        }
    }
    return found.slice(0, 5);
}"""

# What markup in a text would have become, had it not been escaped.
OWNED: Final = """() => [
    window.owned === undefined ? null : "a script of a text ran",
    document.querySelector("img[src=x]") ? "a picture of a text was made" : null,
    [...document.scripts].some(script => script.textContent.includes("owned=1")) ? "a script of a text was made" : null,
    document.documentElement.textContent.includes("{{ 49 }}") ? "a template of a text was read" : null,
].filter(Boolean)"""

# A colour on its way from one theme to the other is neither.
SETTLE: Final = "() => document.getAnimations().forEach(animation => animation.finish())"


@dataclass
class Visitor:
    """Somebody before the browser. `noted` is what has gone wrong since it was last asked for."""

    site: Site
    context: BrowserContext
    page: Page
    noted: list[str] = field(default_factory=list)

    def open(self, path: str) -> Response:
        """Go to a page of the site, and wait until all of it is there."""
        answer = self.page.goto(self.site.url + path, wait_until="load", timeout=PATIENCE_MS)
        assert answer is not None
        return answer

    def shape(self, scheme: str, width: str) -> None:
        """Prefer light or dark, in a wide or a narrow window."""
        across, down = WIDTHS[width]
        self.page.set_viewport_size({"width": across, "height": down})
        self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]

    def glance(self) -> list[str]:
        """Return what has gone wrong since the last look, and what of the page cannot be reached or was not escaped."""
        found = [*self.noted, *self.page.evaluate(BEYOND), *self.page.evaluate(OWNED)]
        self.noted.clear()
        return found

    def look(self, *, colours_alone: bool = False) -> list[str]:
        """Return what a glance tells, and what is wrong with the page for people who can't see it well."""
        self.page.evaluate(SETTLE)
        return self.glance() + axe.faults(self.page, rules=axe.COLOURS if colours_alone else None)

    def look_in_every_shape(self) -> list[str]:
        """Return what is wrong with the page as it stands, wide and narrow, light and dark."""
        found = []
        for width in WIDTHS:
            for scheme in SCHEMES:
                self.shape(scheme, width)
                found += [f"{width}, {scheme}: {fault}" for fault in self.look(colours_alone=scheme != SCHEMES[0])]
        self.shape(SCHEMES[0], next(iter(WIDTHS)))
        return found

    def reads(self) -> str:
        """Return the text that the page shows."""
        return self.page.inner_text("body")


def _watch(visitor: Visitor) -> None:
    """Note errors, warnings, requests that fail, and every request that would leave the machine, which is stopped."""
    context, noted = visitor.context, visitor.noted

    def stop(route: Route) -> None:
        noted.append(f"a request for {route.request.url}")
        route.abort()

    def hear(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning", "assert"}:
            noted.append(f"console: {message.type}: {message.text} ({message.location.get('url', '')})")

    def fall(error: WebError) -> None:
        noted.append(f"script: {error.error}")

    def miss(request: Request) -> None:
        # A page that is left breaks off what it had asked for.
        if "ERR_ABORTED" not in (request.failure or ""):
            noted.append(f"{request.url}: {request.failure}")

    def hold(answer: Response) -> None:
        if answer.status >= 400:
            noted.append(f"{answer.url}: {answer.status}")

    context.route(re.compile(rf"^(?!{re.escape(visitor.site.url)}/)"), stop)
    context.on("console", hear)
    context.on("weberror", fall)
    context.on("requestfailed", miss)
    context.on("response", hold)


@contextmanager
def visitor(browser: Browser, site: Site, name: str = "", *, scripts: bool = True, **options: Any) -> Iterator[Visitor]:
    """Have somebody, with JavaScript or without; logged in, where a name is given."""
    context = browser.new_context(
        **{"locale": "en-GB", "timezone_id": "UTC", "reduced_motion": "reduce", **options}, java_script_enabled=scripts
    )
    context.set_default_timeout(PATIENCE_MS)
    try:
        somebody = Visitor(site=site, context=context, page=context.new_page())
        _watch(somebody)
        if name:
            log_in(somebody, name)
        yield somebody
    finally:
        context.close()


def log_in(somebody: Visitor, name: str) -> None:
    """Log in by this name by the admin's form, by keyboard."""
    somebody.open("/admin/login/")
    somebody.page.fill("input[name=username]", name)
    somebody.page.fill("input[name=password]", PASSWORD)
    with somebody.page.expect_navigation():
        somebody.page.press("input[name=password]", "Enter")
    assert "/login/" not in somebody.page.url, somebody.reads()
