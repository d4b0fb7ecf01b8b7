"""The app's system checks: each configuration that would break a promise is named, and the project's own is clean."""

from __future__ import annotations

import pytest
from django.core.checks import run_checks
from django.db import connection
from psycopg import IsolationLevel

from workloads import checks


def ids(messages):
    return [message.id for message in messages]


def ours(messages):
    return [message.id for message in messages if message.id.startswith("workloads.")]


def test_the_projects_own_settings_are_clean():
    assert ours(run_checks()) == []


@pytest.mark.django_db
def test_the_projects_own_database_is_clean():
    assert ours(run_checks(databases=["default"])) == []


@pytest.mark.parametrize(
    ("given", "errors"), [({}, 0), ({"MAX_RELEASES": 3}, 0), ({"NO": 1, "MAX_RELEASES": "x"}, 2), ([], 1)]
)
def test_a_wrong_limit_is_an_error(settings, given, errors):
    settings.WORKLOADS = given
    assert ours(run_checks()) == ["workloads.E001"] * errors


def test_instants_need_zones(settings):
    settings.USE_TZ = False
    assert ours(run_checks()) == ["workloads.E002"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, ["workloads.E003"]),
        ({"transaction_mode": None}, ["workloads.E003"]),
        ({"transaction_mode": "DEFERRED"}, ["workloads.E003"]),
        ({"transaction_mode": "IMMEDIATE"}, []),
        ({"transaction_mode": "exclusive"}, []),
    ],
)
def test_sqlite_begins_its_transactions_as_a_writer(options, found):
    assert ids(checks.judge_options("default", "sqlite", options)) == found


@pytest.mark.parametrize(
    ("vendor", "options", "found"),
    [
        ("postgresql", {}, []),
        ("postgresql", {"isolation_level": None}, []),
        ("postgresql", {"isolation_level": IsolationLevel.READ_COMMITTED}, []),
        ("postgresql", {"isolation_level": int(IsolationLevel.READ_COMMITTED)}, []),
        ("postgresql", {"isolation_level": IsolationLevel.REPEATABLE_READ}, ["workloads.E004"]),
        ("postgresql", {"isolation_level": int(IsolationLevel.SERIALIZABLE)}, ["workloads.E004"]),
        ("mysql", {}, []),
        ("mysql", {"isolation_level": "READ COMMITTED"}, []),
        ("mysql", {"isolation_level": "repeatable read"}, ["workloads.E004"]),
        ("mysql", {"isolation_level": None}, ["workloads.E004"]),
        ("oracle", {}, ["workloads.E006"]),
    ],
)
def test_transactions_run_at_read_committed(vendor, options, found):
    assert ids(checks.judge_options("default", vendor, options)) == found


def test_the_check_looks_at_the_database_that_holds_workloads(settings, monkeypatch):
    if connection.vendor != "sqlite":
        pytest.skip("the option is SQLite's")
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {})
    assert ours(run_checks()) == ["workloads.E003"]


@pytest.mark.parametrize(
    ("product", "version", "found"),
    [
        ("postgresql", (15, 0), []),
        ("postgresql", (14, 9), ["workloads.W001"]),
        ("mariadb", (10, 11, 2), []),
        ("mariadb", (10, 6, 20), ["workloads.W001"]),
        ("sqlite", (3, 37, 0), []),
        ("mysql", (8, 4, 0), ["workloads.E006"]),
    ],
)
def test_old_versions_are_a_warning_and_other_products_an_error(product, version, found):
    assert ids(checks.judge_version("default", product, version)) == found


@pytest.mark.django_db
def test_the_session_of_the_database_itself_is_asked():
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one isolation level")
    level = "REPEATABLE READ"
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        else:
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
    try:
        assert ids(checks.check_databases(None, databases=["default"])) == ["workloads.E004"]
    finally:
        if connection.vendor == "mysql":
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")


def test_a_database_that_is_not_asked_for_is_left_alone():
    assert checks.check_databases(None, databases=None) == []
    assert checks.check_databases(None, databases=["another"]) == []


@pytest.mark.django_db(transaction=True)
def test_a_column_that_takes_different_identifiers_for_equal_is_named():
    if connection.vendor != "mysql":
        pytest.skip("the collation is MariaDB's")
    change = "ALTER TABLE workloads_passrun ADD COLUMN spare varchar(10) COLLATE utf8mb4_general_ci"
    with connection.cursor() as cursor:
        cursor.execute(change)
    try:
        (found,) = checks.check_databases(None, databases=["default"])
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE workloads_passrun DROP COLUMN spare")
    assert found.id == "workloads.E005"
    assert "workloads_passrun.spare (utf8mb4_general_ci)" in found.msg
