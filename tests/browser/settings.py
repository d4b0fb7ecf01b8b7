"""The site's settings for a walk with a browser: static files without another server, and people who log in quickly."""

from __future__ import annotations

from project.settings import *  # noqa: F403 - the site, and what a walk needs besides

ROOT_URLCONF = "tests.browser.urls"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
