"""Which files the demonstration sums up, and the second computation that its checksums are held against."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

MIB: Final = 1024 * 1024
LARGE_MIB: Final = 24
LEFT_OUT: Final = frozenset(
    {".git", ".hg", "__pycache__", "node_modules", ".reports", ".hypothesis", ".mypy_cache", ".pytest_cache"}
    | {".ruff_cache", ".import_linter_cache"}
)


def find(folder: Path) -> Iterator[Path]:
    """Yield the regular files under a folder, sorted; no links, environments, caches or databases in use."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT and not name.startswith(".venv"))
        for name in sorted(names):
            path = Path(root, name)
            if ".sqlite3" not in name and path.is_file() and not path.is_symlink():
                yield path


def make_large(path: Path) -> Path:
    """Make a file that takes a while."""
    with path.open("wb") as file:
        for _ in range(LARGE_MIB):
            file.write(os.urandom(MIB))
    return path


def make_unreadable(path: Path) -> Path:
    """Make a file that nobody can read, the superuser neither: a link to nothing."""
    path.symlink_to(path.with_name("nothing"))
    return path


def as_input(path: Path) -> dict[str, Any]:
    """Return the input that names a file, also one whose name is no text."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return {"path_bytes": os.fsencode(path).hex()}
    return {"path": str(path)}


def fault(path: Path, output: dict[str, Any]) -> str | None:
    """Compute the checksum a second time, apart from the handler; return what is wrong, None if nothing is."""
    whole = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(output["block_bytes"]):
                whole.update(hashlib.sha256(block).digest())
    except OSError as error:
        return None if was_changed(path, output) else f"it can't be read a second time: {error}"
    if was_changed(path, output):
        return None
    if whole.hexdigest() != output["checksum"]:
        return f"its checksum is {whole.hexdigest()}, the record says {output['checksum']}"
    return None


def was_changed(path: Path, output: dict[str, Any]) -> bool:
    """Whether the file was written to, or removed, since its record was made: nobody can tell what it held."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return True
    return found.st_mtime_ns != output["modified_ns"]
