"""The kit's front door: `python -m workloads.testing.conformance --workloads-url … --workloads-token …`.

Or, among other tests: `pytest -p workloads.testing.conformance --pyargs workloads.testing.on_fences …`. Each option may
come from the environment: `--workloads-url` as WORKLOADS_URL, and so on. docs/conformance.md says what the server must
hold beforehand.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from workloads.testing.site import Site
from workloads.testing.wire import Line

SUITE: Final = (
    "on_admission",
    "on_json",
    "on_claims",
    "on_fences",
    "on_reports",
    "on_clock",
    "on_operators",
    "on_reading",
    "on_isolation",
    "on_errors",
)

OPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "url": ("", "where the interface is mounted, as http://localhost:8000/api/v1/"),
    "token": ("", "of a user with all four roles in the application"),
    "other-token": ("", "of a user without any access to the tenant"),
    "user": ("", "the name of the first user"),
    "tenant": ("conformance", "the tenant in which work is admitted"),
    "application": ("conformance", "the application in which work is admitted"),
    "worker-prefix": ("", "what worker ids must begin with"),
    "capabilities": ("", "two that the Access row holds, separated by a comma"),
    "max-body-bytes": ("8388608", "the server's MAX_BODY_BYTES"),
    "patience-s": ("30", "how long to wait for what a pass of the server decides"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the options be given on the command line."""
    group = parser.getgroup("workloads", "a server of workloads to be checked against the contract")
    for name, (default, said) in OPTIONS.items():
        group.addoption(f"--workloads-{name}", default=_given(name) or default, help=said)


def _given(name: str) -> str:
    return os.environ.get(f"WORKLOADS_{name.replace('-', '_').upper()}", "")


def _option(config: pytest.Config, name: str) -> str:
    value = str(config.getoption(f"--workloads-{name}"))
    if not value and not OPTIONS[name][0] and name in ("url", "token", "other-token", "user"):
        raise pytest.UsageError(f"--workloads-{name} is missing: {OPTIONS[name][1]}")
    return value


@pytest.fixture(scope="session")
def line(pytestconfig: pytest.Config) -> Iterator[Line]:
    """The caller with all roles."""
    yield from _line(pytestconfig, _option(pytestconfig, "token"))


@pytest.fixture(scope="session")
def stranger(pytestconfig: pytest.Config) -> Iterator[Line]:
    """A caller who has a token, and no access."""
    yield from _line(pytestconfig, _option(pytestconfig, "other-token"))


@pytest.fixture(scope="session")
def nobody(pytestconfig: pytest.Config) -> Iterator[Line]:
    """A caller without a token."""
    yield from _line(pytestconfig, None)


def _line(config: pytest.Config, credential: str | None) -> Iterator[Line]:
    made = Line(_option(config, "url").rstrip("/") + "/", credential)
    yield made
    made.end()


@pytest.fixture
def site(pytestconfig: pytest.Config, line: Line) -> Site:
    """The place where this test admits its work, under a definition of its own."""
    return Site(
        line=line,
        user=_option(pytestconfig, "user"),
        tenant=_option(pytestconfig, "tenant"),
        application=_option(pytestconfig, "application"),
        prefix=_option(pytestconfig, "worker-prefix"),
    )


@pytest.fixture
def capabilities(pytestconfig: pytest.Config) -> list[str]:
    """Two capabilities that the caller may present."""
    named = [part for part in _option(pytestconfig, "capabilities").split(",") if part]
    if len(named) != 2:
        pytest.skip("--workloads-capabilities names no two capabilities that the caller's Access row holds")
    return named


@pytest.fixture
def max_body_bytes(pytestconfig: pytest.Config) -> int:
    """The longest body that the server reads."""
    return int(_option(pytestconfig, "max-body-bytes"))


@pytest.fixture
def patience_s(pytestconfig: pytest.Config, line: Line) -> float:
    """How long a pass may take to come; skips where the server says that none has come for as long."""
    patience_s = float(_option(pytestconfig, "patience-s"))
    found = line.get("health/").body.get("details", {}).get("pass", {})
    if found.get("age_ms") is None or found["age_ms"] > patience_s * 1_000:
        pytest.skip(f"health/ says that no pass has run for {patience_s:g} s: start `workloads_pass --interval 1`")
    return patience_s


def run(arguments: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the whole kit in a process of its own, with nothing of the folder's own pytest settings."""
    here = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(here), "--import-mode=importlib"]
    command += ["-p", "no:cacheprovider", "-p", "no:django", "-p", "workloads.testing.conformance", "-ra", "-v"]
    suite = [str(here / f"{name}.py") for name in SUITE]
    # What the suite imports is found where this file is.
    found = os.pathsep.join(filter(None, [str(here.parents[1]), os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, "PYTHONPATH": found, **options.pop("env", {})}
    return subprocess.run([*command, *arguments, *suite], env=env, text=True, **options)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]).returncode)
