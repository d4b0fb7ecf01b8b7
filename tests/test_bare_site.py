"""The smallest site: the app and Django alone, with none of the packages that the HTTP interface needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SITE = """
import sys

EXTRAS = {"rest_framework", "django_filters", "drf_spectacular", "drf_spectacular_sidecar", "knox", "httpx"}


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in EXTRAS:
            raise ImportError(name)


sys.meta_path.insert(0, Blocked())
from django.conf import settings

settings.configure(
    SECRET_KEY="of a test",
    USE_TZ=True,
    ROOT_URLCONF="no_urls",
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": sys.argv[1],
            "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        }
    },
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "workloads"],
)
import django

django.setup()
from django.core.management import CommandError, call_command

call_command("check", fail_level="WARNING")
call_command("migrate", verbosity=0)
from workloads import authority
from workloads.contract import AdmissionRequest
from workloads.worker import Worker
from workloads.worker.registry import Registry

request = AdmissionRequest(
    tenant_id="t", application_id="a", requested_by="u", idempotency_key="k", definition_id="d", input=1
)
workload = authority.admit(request).workload
handlers = Registry()
handlers.add(lambda attempt: attempt.input + 1, "d")
Worker(handlers=handlers, drain=True).run()
assert authority.get(workload.workload_id).result.output == 2
try:
    call_command("workloads_token", "nobody")
except CommandError as refusal:
    assert "knox" in str(refusal)
print("all is well")
"""


def test_a_site_without_the_extras_admits_runs_and_reads(tmp_path):
    (tmp_path / "no_urls.py").write_text("urlpatterns = []\n")
    (tmp_path / "site_alone.py").write_text(SITE)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO")}
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "site_alone.py"), str(tmp_path / "db.sqlite3")],
        env=environment | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("all is well\n")
