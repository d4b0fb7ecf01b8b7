"""The site's settings behind a pooler in transaction mode, as docs/operating.md says that they must be."""

from __future__ import annotations

from project.settings import *  # noqa: F403 - all of the settings, and then a few others
from project.settings import DATABASES, WORKLOADS

DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True
WORKLOADS["NOTIFICATIONS"] = False
