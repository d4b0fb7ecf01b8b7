"""What the documents tell people to run, run."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from tests.api.tools import APPLICATION, TENANT, Caller, place
from tests.races.processes import ROOT, database_url
from workloads import authority
from workloads.contract import AdmissionRequest


def test_the_worker_in_shell_runs_and_reports(live, tmp_path):
    caller = Caller("shell", place("worker", worker_prefix="shell-"))
    good = tmp_path / "good.txt"
    good.write_bytes(b"some bytes\n")
    paths = [str(good), str(tmp_path / 'no "such" file')]
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


class _Asked(BaseHTTPRequestHandler):
    """Says when to come back, then that it is no worker's."""

    def do_POST(self):
        self.server.asked_at.append(time.monotonic())
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        seen = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it has ended meanwhile
                seen.append(path.read_bytes())
        self.server.told += [line for line in seen if b"t0ken-of-shell" in line or asked["request_id"].encode() in line]
        self.server.authorized.add(self.headers["Authorization"])
        status, body = self.server.answers.pop(0)
        self.send_response(status)
        self.send_header("Retry-After", "2")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""


def test_the_worker_in_shell_comes_back_when_it_is_asked_to_and_shows_its_token_to_nobody():
    with HTTPServer(("127.0.0.1", 0), _Asked) as server:
        server.asked_at, server.told, server.authorized = [], [], set()
        server.answers = [(503, b"{}"), (200, b'{"claims": []}'), (403, b'{"code": "FORBIDDEN"}')]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        ran = subprocess.run(
            ["bash", str(ROOT / "docs" / "worker.sh")],
            env={
                **os.environ,
                "NO_PROXY": "127.0.0.1",
                "URL": f"http://127.0.0.1:{server.server_port}",
                "TOKEN": "t0ken-of-shell",
                "WAIT_MS": "0",
            },
            capture_output=True,
            text=True,
            timeout=60,
        )
        server.shutdown()
        thread.join()
    assert ran.returncode == 1 and "FORBIDDEN" in ran.stderr
    first, second, third = server.asked_at
    assert second - first >= 2 and third - second >= 2
    assert (server.authorized, server.told) == ({"Bearer t0ken-of-shell"}, [])


def section(title: str) -> list[tuple[str, str]]:
    """Return the code blocks of a section of the README: language and text."""
    text = (ROOT / "README.md").read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[str]:
    """Return what stands behind the prompts of a console block."""
    return [part.rstrip("\n") for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part.strip()]


def shell(live, *lines: str) -> str:
    """Run lines as a reader would, who has `python` and the site's settings; return what they print."""
    first = f'python() {{ {sys.executable} "$@"; }}'
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join([first, *lines])],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database_url()},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_readmes_workers_work_by_copying(live, tmp_path):
    (_, access), (_, curl), (_, remote), (language, python) = section("Workers anywhere")
    given = [line.replace("http://127.0.0.1:8000", live.url) for line in commands(access)]
    define, admit, claim, complete = commands(curl)

    # As printed, up to the claim, whose answer names what the dots stand for.
    said = shell(live, *given, define, admit, claim).splitlines()
    assert said[0] == "acme/billing: requester, worker; capabilities mail:send; worker ids press-…"
    workload_id = json.loads(said[1])["workload_id"]
    (held,) = json.loads(said[2])["claims"]
    assert held["input"] == {"number": 17}
    complete = complete.replace("workload_…", workload_id).replace(
        '"claim_id": "…"', f'"claim_id": "{held["claim_id"]}"'
    )
    assert json.loads(shell(live, *given[1:], define, complete))["result_id"] == "invoice-17-sent"
    assert authority.get(workload_id).state == "SUCCEEDED"

    # The same handlers, from the command and from Python.
    package = tmp_path / "billing"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "handlers.py").write_text(
        "from workloads.worker import handler\n\n\n"
        '@handler("invoice.send", capabilities={"mail:send"})\n'
        "def send_invoice(attempt):\n    return attempt.input\n"
    )
    admit = admit.replace('"idempotency_key": "invoice-17"', '"idempotency_key": "invoice-%s"').replace("17}", "%s}")
    path = f"export PYTHONPATH={tmp_path}:{ROOT}"
    shell(live, *given[1:], define, admit.replace("%s", "18"), path, f"{commands(remote)[0]} --drain")
    assert [w.state for w in authority.list_for("acme", "billing")] == ["SUCCEEDED", "SUCCEEDED"]
    shell(live, *given[1:], define, admit.replace("%s", "19"))
    program = (
        "import os, billing.handlers\nurl, token = os.environ['URL'], os.environ['TOKEN']\n"
        + python.replace("concurrency=4)", "concurrency=4, drain=True)")
        + "\nprint(next(authority.list_for('acme', 'billing')).state)\n"
    )
    assert language == "python"
    (tmp_path / "program.py").write_text(program)
    assert shell(live, *given[1:], path, f"python {tmp_path / 'program.py'}").endswith("SUCCEEDED\n")
