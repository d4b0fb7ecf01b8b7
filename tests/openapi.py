"""Writes docs/openapi.yaml from the code: `python -m tests.openapi`. A test keeps the two equal."""

from __future__ import annotations

import os
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "openapi.yaml"


def render() -> str:
    """Return the page: the schema of the interface at `/api/v1`, with the limits that a site has by default."""
    import yaml

    from workloads.api.schema import generate

    class Dumper(yaml.SafeDumper):
        # Each value is written out where it stands.
        def ignore_aliases(self, data: object) -> bool:
            return True

    text = yaml.dump(generate(), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110)
    return f"# Made from the code by `python -m tests.openapi`; a test keeps it equal.\n{text}"


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    import django

    django.setup()
    PAGE.write_text(render(), encoding="utf-8")
