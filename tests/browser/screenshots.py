"""Makes docs/screenshots/ and docs/screenshots.md anew: `python -m tests.browser.screenshots [name …]`.

It makes a site on a scratch database, as the tests do, and takes a picture of each page. Ages and instants in them are
those of the day; all else is the same each time. With Pillow installed, pictures are kept in 256 colours, and small.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.browser.pages import ACCESS, LIST, TOKENS, WORKERS, at, of
from tests.browser.site import ROOT, Site, chromium, served, why_not

FOLDER: Final = ROOT / "docs" / "screenshots"
INDEX: Final = ROOT / "docs" / "screenshots.md"
FREQUENT: Final = 96
TALLEST_PX: Final = {"wide": 1_400, "narrow": 1_800}

Act = Callable[[Any], None]


@dataclass(frozen=True)
class Shot:
    """One picture: who looks at which page, what they do there first, and what is to be said of it."""

    name: str
    says: str
    path: Callable[[Site], str]
    act: Act = lambda somebody: None
    shapes: tuple[str, ...] = ("light-wide",)
    role: str = "operator"


def press(name: str) -> Act:
    """Follow the link of this name, first."""

    def act(somebody: Any) -> None:
        with somebody.page.expect_navigation():
            somebody.page.locator("#content a", has_text=name).first.click()

    return act


def fill_in(somebody: Any) -> None:
    """Begin to re-arm, and give a reason."""
    press("Re-arm…")(somebody)
    somebody.page.get_by_label("Reason").fill("The address was added: ticket 4723.")


def ask_of_many(somebody: Any) -> None:
    """Choose to re-arm all that match, as one can where they are more than a page holds."""
    page = somebody.page
    page.check("#action-toggle")
    page.locator("input.select-across").evaluate("field => { field.value = 1; }")
    page.select_option("select[name=action]", "rearm")
    page.locator("button[name=index]").click()
    page.get_by_label("Reason").fill("The server is back: ticket 4724.")


def decide_on_many(somebody: Any) -> None:
    """Re-arm all that match."""
    ask_of_many(somebody)
    somebody.page.locator("#content [type=submit]").first.click()
    somebody.page.get_by_text("All that was selected has been decided on.").wait_for()


SHOTS: Final = [
    Shot(
        "front-page",
        "The example site's front page says what it is and where to go.",
        at("/"),
        shapes=("light-wide", "dark-narrow"),
    ),
    Shot(
        "overview",
        "Is anything wrong, and what exactly? What stands where, what has happened of late, who is at work.",
        at("/admin/workloads/"),
        shapes=("light-wide", "dark-wide", "light-narrow"),
    ),
    Shot(
        "workers",
        "The workers: when each was last heard of, what it can do, and what it holds.",
        at(WORKERS),
        shapes=("light-wide", "dark-narrow"),
    ),
    Shot(
        "list",
        "The workloads, newest first: each with its state as a word, its age, its attempts and its last failure.",
        at(LIST),
        shapes=("light-wide", "dark-narrow"),
    ),
    Shot(
        "dead-letters",
        "The list, filtered: what died in one definition, ready to be acted on at once.",
        at(f"{LIST}?state=DEAD_LETTER&definition=invoice.send"),
    ),
    Shot(
        "recovered",
        "One workload: its worker was lost, and another went on from the last checkpoint.",
        of("recovered"),
        shapes=("light-wide", "dark-wide", "light-narrow"),
    ),
    Shot(
        "running",
        "An attempt in progress: its checkpoints, its lease, and each deadline that may end it.",
        of("running"),
    ),
    Shot("retrying", "Two attempts failed; the picture shows when the third is due.", of("retrying")),
    Shot("dead", "A dead letter: what went wrong, and what can be done about it.", of("dead"), shapes=("dark-wide",)),
    Shot("blocked", "Why it is not running, and what it waits for.", of("blocked")),
    Shot(
        "re-arm",
        "Before anything is done: what will happen, to what, and why it is wanted.",
        of("dead"),
        act=fill_in,
        shapes=("light-wide", "dark-narrow"),
    ),
    Shot(
        "many-asked",
        "All that match a filter: how many, in which states, and what will become of them.",
        at(f"{LIST}?state=parked"),
        act=ask_of_many,
    ),
    Shot(
        "many-done",
        "What became of all that was selected: done, or refused, and why.",
        at(f"{LIST}?state=parked"),
        act=decide_on_many,
        shapes=("dark-wide",),
    ),
    Shot("access", "Who may do what over HTTP.", at(ACCESS), role="superuser"),
    Shot(
        "tokens",
        "The tokens that programs come with: a token is shown once, when it is made.",
        at(TOKENS),
        role="superuser",
    ),
]


def take(somebody: Any, shot: Shot, shape: str) -> Path:
    """Take one picture, from the page's top down to a bound; return where it is."""
    scheme, width = shape.split("-")
    somebody.shape(scheme, width)
    answer = somebody.open(shot.path(somebody.site))
    assert answer.status == 200, f"{shot.name}: {answer.status}"
    shot.act(somebody)
    somebody.page.evaluate("() => document.getAnimations().forEach(animation => animation.finish())")
    size = somebody.page.evaluate("() => [innerWidth, document.documentElement.scrollHeight]")
    path = FOLDER / f"{shot.name}-{shape}.png"
    height = min(size[1], TALLEST_PX[width])
    somebody.page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": size[0], "height": height})
    assert not somebody.noted, (shot.name, somebody.noted)
    shrink(path)
    return path


def shrink(path: Path) -> None:
    """Keep a picture in 256 colours, where Pillow is installed: its most frequent, and some near each of the others."""
    if importlib.util.find_spec("PIL") is None:
        return
    from PIL import Image

    with Image.open(path) as picture:
        full = picture.convert("RGB")
    raw = full.tobytes()
    pixels = list(zip(raw[0::3], raw[1::3], raw[2::3], strict=True))
    colours = [colour for colour, _ in Counter(pixels).most_common()]
    palette = colours[:FREQUENT]
    if rare := colours[FREQUENT:]:
        strip = Image.new("RGB", (len(rare), 1))
        strip.putdata(rare)
        few = strip.quantize(256 - FREQUENT, method=Image.Quantize.MEDIANCUT).convert("RGB")
        palette += [colour for _, colour in few.getcolors(few.width) or []]
    # Pillow's own way to a given palette is rough: white would not stay white.
    nearest = {colour: place for place, colour in enumerate(palette)}
    for colour in rare:
        nearest[colour] = min(range(len(palette)), key=lambda place: _distance(colour, palette[place]))
    small = Image.frombytes("P", full.size, bytes(nearest[colour] for colour in pixels))
    small.putpalette([part for colour in palette for part in colour])
    small.save(path, optimize=True)


def _distance(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def describe() -> str:
    """Return the page that shows the pictures."""
    lines = [
        "# The admin in pictures",
        "",
        "Made by `python -m tests.browser.screenshots`, on a site that it makes for it.",
        "Wide is 1,440 pixels, narrow 375; light and dark follow the reader's system.",
    ]
    for shot in SHOTS:
        lines += ["", f"## {shot.name.replace('-', ' ').capitalize()}", "", shot.says]
        for shape in shot.shapes:
            title = f"{shot.name}, {shape.replace('-', ', ')}"
            lines += ["", f"![{title}](screenshots/{shot.name}-{shape}.png)"]
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> int:
    """Take the pictures of these names, or all."""
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    from playwright.sync_api import sync_playwright

    from tests.browser.visits import visitor

    FOLDER.mkdir(parents=True, exist_ok=True)
    if not names:
        for old in FOLDER.glob("*.png"):
            old.unlink()
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), "everyday") as site, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for role in dict.fromkeys(shot.role for shot in SHOTS):
            with visitor(browser, site, role) as somebody:
                for shot in SHOTS:
                    if shot.role == role and (not names or shot.name in names):
                        for shape in shot.shapes:
                            path = take(somebody, shot, shape)
                            print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1024:.0f} KiB")
        browser.close()
    INDEX.write_text(describe(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.browser.settings")
    os.environ.setdefault("SECRET_KEY", "of a site that is walked through")
    sys.exit(main(sys.argv[1:]))
