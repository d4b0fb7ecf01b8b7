"""The site as WSGI servers load it."""

from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

application = get_wsgi_application()

# It reads the settings.
from workloads.api.waiting import end_with_server  # noqa: E402 - it needs Django to be set up

end_with_server()
