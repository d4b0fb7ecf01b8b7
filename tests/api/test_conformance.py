"""The conformance kit, run against the project's own site under gunicorn, two processes, with a pass that runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from tests.api.server import ROOT, server
from tests.api.tools import APPLICATION, TENANT, Caller, place
from tests.races.processes import database_url
from workloads import authority
from workloads.testing import conformance

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE_S = 300


@pytest.fixture
def running_pass():
    """`workloads_pass`, often."""
    child = subprocess.Popen(
        [sys.executable, "manage.py", "workloads_pass", "--interval", "0.5"],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database_url()},
        stdout=subprocess.DEVNULL,
    )
    yield child
    child.send_signal(signal.SIGTERM)
    assert child.wait(30) == 0


@pytest.mark.skipif(
    connection.vendor == "mysql",
    reason="the kit's calls are the suite's own, which run here too; SQLite and PostgreSQL are its two ends",
)
def test_the_site_conforms(running_pass, tmp_path):
    rita = Caller(
        "rita",
        place("requester", "worker", "operator", "viewer", worker_prefix="w-", capabilities=frozenset({"a", "b"})),
    )
    other = Caller("sam", place("requester", "worker", "operator", "viewer", tenant="elsewhere"))
    authority.run_pass()
    with server() as running:
        ran = conformance.run(
            [
                f"--workloads-url={running.api}",
                f"--workloads-tenant={TENANT}",
                f"--workloads-application={APPLICATION}",
                "--workloads-user=rita",
                "--workloads-worker-prefix=w-",
                "--workloads-capabilities=a,b",
            ],
            env={
                # A token on the command line is everybody's to read.
                "WORKLOADS_TOKEN": rita.headers["authorization"].removeprefix("Bearer "),
                "WORKLOADS_OTHER_TOKEN": other.headers["authorization"].removeprefix("Bearer "),
                "NO_PROXY": "*",
            },
            cwd=tmp_path,
            capture_output=True,
            timeout=PATIENCE_S,
        )
    assert ran.returncode == 0, ran.stdout[-30_000:] + ran.stderr
    summary = ran.stdout.strip().splitlines()[-1]
    assert re.search(r"\d\d\d passed", summary) and "skipped" not in summary, summary


def test_every_module_of_the_kit_is_in_the_suite():
    folder = Path(conformance.__file__).parent
    assert {path.stem for path in folder.glob("on_*.py")} == set(conformance.SUITE)


def test_the_kit_says_what_it_lacks(tmp_path):
    ran = conformance.run([], cwd=tmp_path, capture_output=True, env={"WORKLOADS_URL": "http://127.0.0.1:9/"})
    assert ran.returncode != 0 and "--workloads-token is missing" in ran.stdout


IMPORTED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"django", "rest_framework"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
from workloads.testing import conformance
for name in conformance.SUITE:
    __import__(f"workloads.testing.{name}")
"""


def test_the_kit_needs_no_django():
    ran = subprocess.run([sys.executable, "-c", IMPORTED], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
