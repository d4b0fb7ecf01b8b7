"""`settings.WORKLOADS`: defaults, bounds, and what is said of a wrong one. Section 9 of the contract."""

from __future__ import annotations

import dataclasses

import pytest
from django.core.exceptions import ImproperlyConfigured

from workloads import conf

SWITCHES = ("accept_late_reports", "notifications")
NUMBERS = [field.name for field in dataclasses.fields(conf.Limits) if field.name not in SWITCHES]


def test_the_defaults_are_those_of_the_contract_and_of_the_docs(settings):
    settings.WORKLOADS = {}
    assert dataclasses.asdict(conf.limits()) == {
        "max_input_bytes": 262_144,
        "max_output_bytes": 262_144,
        "max_checkpoint_bytes": 65_536,
        "max_checkpoints": 1_000,
        "max_error_chars": 8_000,
        "max_lease_ms": 86_400_000,
        "max_releases": 20,
        "max_body_bytes": 8_388_608,
        "accept_late_reports": False,
        "max_tombstone_age_ms": None,
        "notifications": True,
        "max_waiting_requests": 2,
    }


def test_a_site_without_the_setting_has_the_defaults(settings):
    del settings.WORKLOADS
    assert conf.limits() == conf.Limits()


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_read_under_its_name_in_upper_case(settings, name):
    settings.WORKLOADS = {name.upper(): 4_321}
    assert conf.limits() == conf.Limits(**{name: 4_321})


def test_a_change_of_the_setting_is_seen_at_once(settings):
    settings.WORKLOADS = {"ACCEPT_LATE_REPORTS": True}
    assert conf.limits().accept_late_reports is True
    settings.WORKLOADS = {"MAX_RELEASES": 0}
    assert (conf.limits().accept_late_reports, conf.limits().max_releases) == (False, 0)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [-1, 1.0, "5", True, 10**15])
def test_a_number_that_is_none_is_named(settings, name, value):
    settings.WORKLOADS = {name.upper(): value}
    with pytest.raises(ImproperlyConfigured, match=rf"WORKLOADS\['{name.upper()}'\] must be an integer"):
        conf.limits()


@pytest.mark.parametrize("name", [name for name in NUMBERS if name != "max_tombstone_age_ms"])
def test_only_the_age_of_tombstones_may_be_without_bound(settings, name):
    settings.WORKLOADS = {"MAX_TOMBSTONE_AGE_MS": None}
    assert conf.limits().max_tombstone_age_ms is None
    settings.WORKLOADS = {name.upper(): None}
    with pytest.raises(ImproperlyConfigured, match=name.upper()):
        conf.limits()


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("value", [0, 1, "yes", None])
def test_a_switch_is_true_or_false(settings, name, value):
    settings.WORKLOADS = {name.upper(): value}
    with pytest.raises(ImproperlyConfigured, match=rf"{name.upper()}.*True or False"):
        conf.limits()


@pytest.mark.parametrize("key", ["MAX_INPUTS", "max_input_bytes", 7])
def test_an_unknown_name_is_named(settings, key):
    settings.WORKLOADS = {key: 1}
    with pytest.raises(ImproperlyConfigured, match=rf"{key!r}.*not a known setting"):
        conf.limits()


@pytest.mark.parametrize("value", [None, [], "x"])
def test_the_setting_is_a_dict(settings, value):
    settings.WORKLOADS = value
    with pytest.raises(ImproperlyConfigured, match="must be a dict"):
        conf.limits()


def test_everything_that_is_wrong_is_said_at_once():
    assert len(conf.problems({"MAX_RELEASES": -1, "NO": 1, "MAX_LEASE_MS": 5})) == 2


def test_limits_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        conf.limits().max_releases = 3  # type: ignore[misc]
