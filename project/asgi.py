"""The site as ASGI servers load it."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

django_application = get_asgi_application()

# It reads the settings.
from workloads.api.asgi import limit_body, wait_for_work  # noqa: E402 - it needs Django to be set up

application = limit_body(wait_for_work(django_application))
