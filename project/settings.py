"""The site's settings. Everything that differs between machines comes from the environment.

| variable | what it sets | without it |
|---|---|---|
| `DATABASE_URL` | the database, `sqlite:///…`, `postgres://…`, `mysql://…` (MariaDB) | `db.sqlite3` here |
| `DATABASE_PREPARES` | `1` lets PostgreSQL keep what is repeated; not behind a pooler in transaction mode | off |
| `SECRET_KEY` | the key that signs sessions and grants | one made at the first start, kept in `.secret_key` |
| `DEBUG` | `1` shows errors in the browser and serves static files | off |
| `ALLOWED_HOSTS` | host names, separated by commas | this machine only |
| `CSRF_TRUSTED_ORIGINS` | origins, separated by commas, when a proxy ends TLS | none |
| `HTTPS` | `1` sends cookies over TLS only | off |
| `LOG_LEVEL` | how much is logged | `INFO` |
| `WEB_THREADS` | how many threads each web process has: half of them may wait for work | 4, as in gunicorn.conf.py |
| `TEST_DB_SUFFIX` | ends the test database's name, so that suites can run side by side | empty |
"""

from __future__ import annotations

import datetime as dt
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

import dj_database_url

BASE_DIR = Path(__file__).resolve().parent.parent


def _flag(name: str) -> bool:
    return os.environ.get(name, "").lower() in {"1", "true", "yes", "on"}


def _names(name: str, default: str = "") -> list[str]:
    return [part.strip() for part in os.environ.get(name, default).split(",") if part.strip()]


def _secret_key() -> str:
    """Return the site's key, made and kept at the first start; whoever starts first makes it, all others read it."""
    if given := os.environ.get("SECRET_KEY"):
        return given
    path = BASE_DIR / ".secret_key"
    if not path.exists():
        mine = path.with_name(f".secret_key.{os.getpid()}")
        mine.touch(mode=0o600)
        mine.write_text(secrets.token_urlsafe(50))
        # A link appears whole or not at all, and never replaces a key that another process has begun to use.
        with suppress(FileExistsError):
            os.link(mine, path)
        mine.unlink()
    return path.read_text()


def _database() -> dict[str, Any]:
    """Return the database that DATABASE_URL names, with the options that the app's system checks ask for."""
    config: dict[str, Any] = dict(
        dj_database_url.config(
            default=f"sqlite:///{BASE_DIR / 'db.sqlite3'}", conn_max_age=600, conn_health_checks=True
        )
    )
    options = config.setdefault("OPTIONS", {})
    suffix = os.environ.get("TEST_DB_SUFFIX", "")
    if config["ENGINE"].endswith("sqlite3"):
        options.setdefault("transaction_mode", "IMMEDIATE")
        options.setdefault("timeout", 20)
        options.setdefault("init_command", "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;")
        # A file, since the tests' worker processes open it too.
        config["TEST"] = {"NAME": BASE_DIR / f"test_db{suffix}.sqlite3"}
    else:
        config["TEST"] = {"NAME": f"test_{config['NAME']}{suffix}"}
    if config["ENGINE"].endswith("postgresql") and os.environ.get("DATABASE_PREPARES") == "1":
        options.setdefault("server_side_binding", True)
        options.setdefault("prepare_threshold", 3)
        # Planned anew for each use: a plan from when a table was small would be kept until its next ANALYZE.
        options.setdefault("options", "-c plan_cache_mode=force_custom_plan")
    if config["ENGINE"].endswith("mysql"):
        options.setdefault("isolation_level", "read committed")
        options.setdefault("charset", "utf8mb4")
        options.setdefault("connect_timeout", 5)
    if config["ENGINE"].endswith("postgresql"):
        # Seconds, and milliseconds: a host that is gone without a word is noticed, not waited for by every request.
        options.setdefault("connect_timeout", 5)
        options.setdefault("keepalives_idle", 15)
        options.setdefault("keepalives_interval", 5)
        options.setdefault("keepalives_count", 3)
        options.setdefault("tcp_user_timeout", 15_000)
    return config


SECRET_KEY = _secret_key()
DEBUG = _flag("DEBUG")
ALLOWED_HOSTS = _names("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")
CSRF_TRUSTED_ORIGINS = _names("CSRF_TRUSTED_ORIGINS")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _flag("HTTPS")

INSTALLED_APPS = [
    "workloads",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "knox",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "project.security.ContentSecurityPolicy",
    "project.middleware.Sessions",
    "project.middleware.Languages",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "project.middleware.Users",
    "project.middleware.Messages",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
ASGI_APPLICATION = "project.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# On MariaDB the app's partial indexes hold every row: larger there, and in the same order.
SILENCED_SYSTEM_CHECKS = ["models.W037"]

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

LANGUAGE_CODE = "en"
# Whole in each of them; the browser says which it would have.
LANGUAGES = [("en", "English"), ("de", "Deutsch")]
LOCALE_PATHS = [BASE_DIR / "project" / "locale"]
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
STATICFILES_DIRS = [BASE_DIR / "project" / "static"]

# Who asks over HTTP says so by a session of this site, or by a token that expires.
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "project.tokens.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
REST_KNOX = {"AUTH_HEADER_PREFIX": "Bearer", "TOKEN_TTL": dt.timedelta(days=90)}

# The app's limits, by name, where the site wants others than the defaults: see workloads/conf.py.
WORKLOADS: dict[str, Any] = {"MAX_WAITING_REQUESTS": int(os.environ.get("WEB_THREADS", "4")) // 2}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {"workloads": {"level": os.environ.get("LOG_LEVEL", "INFO")}},
}
