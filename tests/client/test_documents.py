"""What the documents tell people to run, run."""

from __future__ import annotations

import hashlib
import os
import subprocess

from tests.api.tools import APPLICATION, TENANT, Caller, place
from tests.races.processes import ROOT
from workloads import authority
from workloads.contract import AdmissionRequest


def test_the_worker_in_shell_runs_and_reports(live, tmp_path):
    caller = Caller("shell", place("worker", worker_prefix="shell-"))
    good = tmp_path / "good.txt"
    good.write_bytes(b"some bytes\n")
    paths = [str(good), str(tmp_path / "no \"such\" file")]
    ids = [
        authority.admit(
            AdmissionRequest(
                tenant_id=TENANT,
                application_id=APPLICATION,
                requested_by="rita",
                idempotency_key=path,
                definition_id="shell.checksum",
                input={"path": path},
            )
        ).workload.workload_id
        for path in paths
    ]
    ran = subprocess.run(
        ["bash", str(ROOT / "docs" / "worker.sh")],
        env={
            **os.environ,
            "URL": f"{live.url}/api/v1",
            "TOKEN": caller.headers["authorization"].removeprefix("Bearer "),
            "WORKER_ID": "shell-1",
            "DRAIN": "1",
            "WAIT_MS": "0",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    done, failed = (authority.get(i) for i in ids)
    assert done.result.output == {"sha256": hashlib.sha256(b"some bytes\n").hexdigest()}
    assert failed.state == "DEAD_LETTER" and failed.attempts.get().failure_kind == "unreadable"
    assert "No such file" in failed.last_failure
