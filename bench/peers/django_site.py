"""A Django site with one peer's app and nothing else, on connections that persist."""

from __future__ import annotations

from typing import Any

from peers.base import parts_of


def configure(dsn: str, *apps: str, **settings: Any) -> None:
    """Set Django up."""
    import django
    from django.conf import settings as site

    site.configure(
        SECRET_KEY="of no use to anybody",
        INSTALLED_APPS=list(apps),
        DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "CONN_MAX_AGE": None, **parts_of(dsn)}},
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        LOGGING_CONFIG=None,
        **settings,
    )
    django.setup()


def migrate() -> None:
    """Make the tables."""
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
