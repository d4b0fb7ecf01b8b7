"""The environments that the peers run in: one for each, with its package at the version that is measured."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from peers.base import Peer

PYTHONS = ("python3.13", "python3.14", "python3.12")
"""Those that all the peers support, the one that the figures are for first."""
PATIENCE_S = 600


class NoEnvironment(Exception):
    """A peer can't be installed; the message says why."""


def find_python(given: str | None) -> str:
    """Return the Python that the peers' environments are made of."""
    if given:
        return given
    for name in PYTHONS:
        if found := shutil.which(name):
            # A version manager's stand-in answers for versions that it does not have.
            command = [found, "-c", "import sys; print(sys.executable)"]
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
            if answer.returncode == 0:
                return answer.stdout.strip()
        number = name.removeprefix("python")
        kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{number}.*/bin/python"))
        if kept:
            return str(kept[-1])
    raise NoEnvironment(
        "The peers need Python 3.12 to 3.14, and none was found on PATH or below ~/.pyenv. Name one with --peer-python."
    )


def python_of(name: str, peer: type[Peer], folder: Path, given: str | None) -> str:
    """Return the Python that has this peer's package, which is installed the first time."""
    if not peer.requirements:
        return sys.executable
    place = folder / name
    python = place / "bin" / "python"
    wanted = "\n".join(peer.requirements)
    note = place / "installed.txt"
    if note.exists() and note.read_text() == wanted:
        return str(python)
    shutil.rmtree(place, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    _do([find_python(given), "-m", "venv", str(place)])
    _do([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.requirements])
    note.write_text(wanted)
    return str(python)


def packages_of(python: str) -> dict[str, str]:
    """Return the version of Python and of every package that an environment has."""
    script = (
        "import importlib.metadata as m, json, platform; "
        "print(json.dumps({'python': platform.python_version()} | {d.name: d.version for d in m.distributions()}))"
    )
    import json

    answer = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(answer.stdout)
    return found


def _do(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoEnvironment(str(error)) from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()][-3:]
        raise NoEnvironment(f"{' '.join(command[1:4])} failed: " + " ".join(said))
