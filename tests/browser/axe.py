"""axe-core, which judges how accessible a page is: fetched from its npm package once, and judged by its digest."""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
import subprocess
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".cache" / "axe"
VERSION: Final = "4.14.1"
# The registry's `dist.integrity` of that version.
SHA512: Final = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="

GRAVE: Final = ("serious", "critical")

# All that another colour scheme can change.
COLOURS: Final = ["color-contrast", "link-in-text-block"]

RUN: Final = """async rules => {
    const options = {resultTypes: ["violations"], preload: false};
    const found = await axe.run(document, rules ? {...options, runOnly: rules} : options);
    return found.violations.map(({id, impact, help, nodes}) => ({
        id, impact, help, nodes: nodes.map(node => `${node.target.join(" ")}  ${node.html.slice(0, 200)}` +
            node.any.concat(node.all, node.none).map(check => `  (${check.message})`).join(""))
    }));
}"""


class NotThere(Exception):
    """The package can't be had."""


def package() -> Path:
    """Return the package's archive, fetched if it is not there yet. NotThere says why there is none."""
    kept = CACHE / f"axe-core-{VERSION}.tgz"
    if kept.exists():
        return kept
    npm = shutil.which("npm")
    if npm is None:
        raise NotThere(f"There is no npm to fetch axe-core {VERSION} with (on Debian: apt-get install npm).")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        command = [npm, "pack", f"axe-core@{VERSION}", "--silent", "--pack-destination", folder]
        packed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
        fetched = Path(folder, kept.name)
        if packed.returncode or not fetched.exists():
            said = (packed.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise NotThere(f"npm does not give axe-core {VERSION}: {said}")
        fetched.replace(kept)
    return kept


@cache
def source() -> str:
    """Return the script as a page can run it; a package of another digest is none."""
    raw = package().read_bytes()
    digest = base64.b64encode(hashlib.sha512(raw).digest()).decode()
    if digest != SHA512:
        raise AssertionError(f"{package()} is not axe-core {VERSION}: its SHA-512 is {digest}")
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


def faults(page: Any, *, rules: list[str] | None = None) -> list[str]:
    """Return what is wrong for people who can't see well, hear, or use a mouse, and is serious or critical.

    `rules` names the rules to be asked; without it, all are.
    """
    # Evaluated by the debugger, and not as an element of the page: a strict Content-Security-Policy stays in force.
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(source())
    return [
        f"axe: {found['impact']} {found['id']} ({found['help']}): " + "; ".join(found["nodes"][:5])
        for found in page.evaluate(RUN, rules)
        if found["impact"] in GRAVE
    ]
