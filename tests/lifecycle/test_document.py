"""docs/lifecycle.md says what the table says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from workloads.contract import WorkloadState
from workloads.lifecycle import document
from workloads.lifecycle.states import TRANSITIONS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "lifecycle.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == document.page(), (
        "run: python -m workloads.lifecycle.document > docs/lifecycle.md"
    )


def test_the_command_prints_the_page() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "workloads.lifecycle.document"], cwd=ROOT, capture_output=True, check=True
    )
    assert printed.stdout.decode("utf-8").replace("\r\n", "\n") == document.page()


def test_every_state_and_pair_is_on_it() -> None:
    lines = {line.strip() for line in document.diagram()}
    for source, targets in TRANSITIONS.items():
        assert document.MEANINGS[source]
        for target in WorkloadState:
            drawn = {f"{source} --> {target}", f"{source} --> {target}: release"} & lines
            assert len(drawn) == (1 if target in targets else 0)
    rows = list(document.table())
    assert len(rows) == 2 + len(WorkloadState)
    assert len({row.count(" | ") for row in rows}) == 1
