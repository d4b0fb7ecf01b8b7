"""What a site must have set for the promises to hold, asked as Django system checks (`workloads.E…`, `workloads.W…`).

`manage.py check` looks at the settings; `manage.py check --database default`, and `migrate` before it begins, look at
the database as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning as CheckWarning, register
from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor

from workloads import conf

COLLATION: Final = "utf8mb4_nopad_bin"
POSTGRESQL_FLOOR: Final = (15,)
MARIADB_FLOOR: Final = (10, 11)


def register_all() -> None:
    """Make every check of this module part of Django's."""
    register(check_limits)
    register(check_time_zones)
    register(check_database_options)
    register(check_databases, Tags.database)
    register(check_http, Tags.security, deploy=True)


def check_limits(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """E001: `settings.WORKLOADS` holds a name that is not known, or a value that is not of its kind."""
    return [Error(found, id="workloads.E001") for found in conf.problems(getattr(settings, conf.SETTING, {}))]


def check_time_zones(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """E002: instants would lose their zone."""
    if settings.USE_TZ:
        return []
    return [
        Error("Workloads keep aware instants: USE_TZ must be True.", hint="Set USE_TZ = True.", id="workloads.E002")
    ]


def check_database_options(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """E003, E004, E006: the settings of the database that holds workloads, without connecting to it."""
    alias = _alias()
    return judge_options(alias, connections[alias].vendor, connections[alias].settings_dict.get("OPTIONS") or {})


def check_databases(app_configs: Any, databases: Iterable[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E004, E005, E006, W001: the database that holds workloads, as it is, if `databases` names it."""
    alias = _alias()
    if alias not in (databases or ()):
        return []
    connection = connections[alias]
    product, version = _product(connection)
    found = judge_version(alias, product, version)
    if product in _ISOLATION:
        found += judge_isolation(alias, _ask(connection, _ISOLATION[product])[0][0])
    if product == "mariadb" and _is_migrated(connection):
        found += judge_collations(alias, _ask(connection, _COLUMNS, [_tables(), COLLATION]))
    return found


def check_http(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """W002 to W005, of a site that serves the HTTP interface: settings by which it is open to more than is meant."""
    if not apps.is_installed("rest_framework"):
        return []
    rest = getattr(settings, "REST_FRAMEWORK", {})
    ways = [str(way) for way in rest.get("DEFAULT_AUTHENTICATION_CLASSES", _REST_FRAMEWORKS_OWN)]
    found: list[CheckMessage] = []
    if any(way.endswith(("BasicAuthentication", "RemoteUserAuthentication")) for way in ways):
        found.append(
            CheckWarning(
                "Passwords, or a header that a proxy sets, open the HTTP interface.",
                hint='Name token and session classes in REST_FRAMEWORK["DEFAULT_AUTHENTICATION_CLASSES"].',
                id="workloads.W002",
            )
        )
    if any("knox" in way for way in ways) and getattr(settings, "REST_KNOX", {}).get("TOKEN_TTL", 0) is None:
        found.append(
            CheckWarning("Tokens never expire.", hint='Set REST_KNOX["TOKEN_TTL"] to a timedelta.', id="workloads.W003")
        )
    if "UNAUTHENTICATED_USER" in rest and "AnonymousUser" not in str(rest["UNAUTHENTICATED_USER"]):
        found.append(
            CheckWarning(
                "Who has not said who it is may be taken for a user.",
                hint='Leave out REST_FRAMEWORK["UNAUTHENTICATED_USER"].',
                id="workloads.W004",
            )
        )
    if not settings.SECURE_SSL_REDIRECT and not settings.SECURE_PROXY_SSL_HEADER:
        found.append(
            CheckWarning(
                "Tokens may travel in clear.",
                hint="Set SECURE_SSL_REDIRECT, or SECURE_PROXY_SSL_HEADER behind a proxy that ends TLS.",
                id="workloads.W005",
            )
        )
    return found


def judge_options(alias: str, vendor: str, options: Mapping[str, Any]) -> list[CheckMessage]:
    """Return what is wrong with the OPTIONS of a database of this vendor."""
    if vendor == "sqlite":
        if str(options.get("transaction_mode") or "").upper() in {"IMMEDIATE", "EXCLUSIVE"}:
            return []
        return [
            Error(
                f"SQLite has no row locks: the database {alias!r} must begin its transactions as writers.",
                hint=f'Set DATABASES[{alias!r}]["OPTIONS"]["transaction_mode"] = "IMMEDIATE".',
                id="workloads.E003",
            )
        ]
    if vendor == "mysql":
        # Left out, it is Django's own choice, read committed. None is the server's, most often repeatable read.
        return judge_isolation(alias, options.get("isolation_level", "read committed"))
    if vendor == "postgresql":
        level = options.get("isolation_level")
        return [] if level is None else judge_isolation(alias, level)
    return [_unsupported(alias, vendor)]


def judge_isolation(alias: str, level: Any) -> list[CheckMessage]:
    """Return an error if a level (a name, or psycopg's enum or number) is not read committed."""
    name = getattr(level, "name", level)
    if name == 2 or str(name).replace("_", " ").replace("-", " ").lower() == "read committed":
        return []
    return [
        Error(
            f"The database {alias!r} runs its transactions at {name!s}; workloads need read committed.",
            hint="A duplicate admission would break its caller's transaction, and a claim would judge an old row. "
            f'Set DATABASES[{alias!r}]["OPTIONS"]["isolation_level"], or the default of the server or role.',
            id="workloads.E004",
        )
    ]


def judge_collations(alias: str, columns: Sequence[tuple[str, str, str]]) -> list[CheckMessage]:
    """Return an error for the text columns (table, column, collation) that do not compare byte for byte."""
    if not columns:
        return []
    named = ", ".join(f"{table}.{column} ({collation})" for table, column, collation in columns)
    return [
        Error(
            f"In the database {alias!r}, identifiers that differ would be taken for equal: {named}.",
            hint=f"ALTER TABLE … CONVERT TO CHARACTER SET utf8mb4 COLLATE {COLLATION}; for each of these tables.",
            id="workloads.E005",
        )
    ]


def judge_version(alias: str, product: str, version: tuple[int, ...]) -> list[CheckMessage]:
    """Return an error for a product that is not supported, a warning for a version below those that are tested."""
    floors = {"postgresql": POSTGRESQL_FLOOR, "mariadb": MARIADB_FLOOR, "sqlite": ()}
    if product not in floors:
        return [_unsupported(alias, product)]
    if version >= floors[product]:
        return []
    has, floor = (".".join(map(str, numbers)) for numbers in (version, floors[product]))
    return [
        CheckWarning(
            f"The database {alias!r} is {product} {has}; workloads are tested from {floor} on.", id="workloads.W001"
        )
    ]


def _unsupported(alias: str, product: str) -> CheckMessage:
    return Error(
        f"The database {alias!r} is {product}; workloads need PostgreSQL, MariaDB or SQLite.", id="workloads.E006"
    )


def _alias() -> str:
    from workloads.models import Workload

    return router.db_for_write(Workload)


def _product(connection: BaseDatabaseWrapper) -> tuple[str, tuple[int, ...]]:
    """Return what the server is, MariaDB and MySQL told apart, and its version."""
    product = connection.vendor
    if product == "mysql" and getattr(connection, "mysql_is_mariadb", False):
        product = "mariadb"
    return product, connection.get_database_version()


_REST_FRAMEWORKS_OWN: Final = ("SessionAuthentication", "BasicAuthentication")

_ISOLATION: Final = {"postgresql": "SHOW transaction_isolation", "mariadb": "SELECT @@tx_isolation"}

_COLUMNS: Final = """
SELECT table_name, column_name, collation_name FROM information_schema.columns
WHERE table_schema = DATABASE() AND table_name IN %s AND collation_name IS NOT NULL AND collation_name <> %s
ORDER BY table_name, ordinal_position
"""


def _tables() -> tuple[str, ...]:
    return tuple(model._meta.db_table for model in apps.get_app_config("workloads").get_models())


def _is_migrated(connection: BaseDatabaseWrapper) -> bool:
    """Say whether every migration of the app is applied; until then `migrate` must not be held up by what it mends."""
    executor = MigrationExecutor(connection)
    return not executor.migration_plan(executor.loader.graph.leaf_nodes("workloads"))


def _ask(connection: BaseDatabaseWrapper, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        return list(cursor.fetchall())
