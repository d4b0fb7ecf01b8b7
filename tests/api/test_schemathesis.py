"""The running site keeps what its OpenAPI schema says: schemathesis, all of its checks, stateful too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from tests.api.server import ROOT, server
from tests.api.tools import APPLICATION, TENANT, Caller, place
from workloads import authority
from workloads.contract import AdmissionRequest
from workloads.models import Attempt, Checkpoint, Result, Workload

# The same questions of the same code: the normal run asks them on the database that sites run on.
pytestmark = [
    pytest.mark.django_db(transaction=True),
    *([pytest.mark.long] if connection.vendor == "sqlite" else []),
]

PATIENCE_S = 600


def test_the_running_site_keeps_to_its_schema(tmp_path):
    if connection.vendor == "mysql":
        pytest.skip("it asks the same of the same code; SQLite and PostgreSQL are its two ends")
    caller = Caller("rita", place("requester", "worker", "operator", "viewer", reads_payloads=True))
    seeds = [
        AdmissionRequest(
            tenant_id=TENANT,
            application_id=APPLICATION,
            requested_by="rita",
            idempotency_key=f"seed-{number}",
            definition_id="invoices.render",
        )
        for number in range(1_000)
    ]
    assert all(not isinstance(outcome, Exception) for outcome in authority.admit_many(seeds))
    authority.run_pass()
    with server() as running:
        report = tmp_path / "report.json"
        ran = _ask(running.api, caller.headers["authorization"].removeprefix("Bearer "), report)
        # Its findings, not all that it says.
        found_wrong = ran.stdout[ran.stdout.find("= FAILURES =") :].partition("= WARNINGS =")[0]
        assert ran.returncode == 0, found_wrong[:20_000] + ran.stderr
    found = json.loads(report.read_text())
    operations = json.loads(caller.get("schema/").text)["paths"]
    assert found["operations"]["tested"] == sum(map(len, operations.values())), found["operations"]
    # What was admitted flowed on: into claims, reports and ends of most kinds; claim ids are random, so not always all.
    assert Workload.objects.count() > len(seeds)
    assert Attempt.objects.count() > 10
    states = set(Workload.objects.values_list("state", flat=True))
    reached = {
        "results": Result.objects.exists(),
        "checkpoints": Checkpoint.objects.exists(),
        "cancellations": bool(states & {"CANCELLED", "CANCELLATION_REQUESTED"}),
        "failures": Attempt.objects.filter(status="FAILED").exists(),
        "time-outs": bool(states & {"TIMED_OUT", "DEAD_LETTER"}),
    }
    assert sum(reached.values()) >= 3, reached


def _ask(api: str, token: str, report: Path) -> subprocess.CompletedProcess[str]:
    """Let schemathesis ask the server all that schemathesis.toml says."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "--config-file",
            str(ROOT / "tests" / "api" / "schemathesis.toml"),
            "run",
            f"{api}schema/",
            "--url",
            api.rstrip("/"),
            "--report-json-path",
            str(report),
            "--no-color",
        ],
        # It remembers what it found beside where it runs: each run is to begin anew.
        cwd=report.parent,
        env={
            **os.environ,
            "WORKLOADS_TOKEN": token,
            "SCHEMATHESIS_HOOKS": "tests.api.schemathesis_hooks",
            "PYTHONPATH": str(ROOT),
            "NO_PROXY": "*",
            # It is no part of the product.
            "COVERAGE_PROCESS_START": "",
            "COVERAGE_PROCESS_CONFIG": "",
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
