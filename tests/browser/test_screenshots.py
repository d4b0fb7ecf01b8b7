"""The pictures in docs/: the page that shows them is the script's, and each that it names is there."""

from __future__ import annotations

from tests.browser.screenshots import FOLDER, INDEX, SHOTS, describe

MOST_BYTES = 4 * 1024 * 1024


def test_the_page_of_pictures_is_what_the_script_writes() -> None:
    # `python -m tests.browser.screenshots` makes both anew.
    assert INDEX.read_text(encoding="utf-8") == describe()


def test_each_picture_is_there_and_no_other() -> None:
    wanted = {f"{shot.name}-{shape}.png" for shot in SHOTS for shape in shot.shapes}
    assert {path.name for path in FOLDER.iterdir()} == wanted
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < MOST_BYTES
