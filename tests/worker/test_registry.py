"""Which function runs which work."""

from __future__ import annotations

import pytest

from workloads.worker.registry import Registry, discover


def one(attempt):
    return 1


def other(attempt):
    return 2


def test_a_revision_of_its_own_goes_before_every_revision():
    handlers = Registry()
    handlers.add(one, "d")
    handlers.add(other, "d", revisions=["2", "3"])
    assert handlers.find("d", "1").function is one
    assert handlers.find("d", "2").function is other
    assert handlers.find("d", "3").function is other
    assert handlers.find("e", "1") is None


def test_work_of_an_unknown_revision_has_no_handler():
    handlers = Registry()
    handlers.add(one, "d", revisions=["1"])
    assert handlers.find("d", "2") is None


@pytest.mark.parametrize("revisions", [None, ["1"], ["0", "1"]])
def test_a_second_handler_for_the_same_work_is_refused(revisions):
    handlers = Registry()
    handlers.add(one, "d", revisions=None if revisions is None else ["1"])
    with pytest.raises(ValueError, match="has a handler already"):
        handlers.add(other, "d", revisions=revisions)
    handlers.add(one, "d", revisions=None if revisions is None else ["1"])


@pytest.mark.parametrize("name", ["", " d", "d@1", "x" * 201, None])
def test_names_that_nothing_can_be_admitted_under_are_refused(name):
    with pytest.raises(ValueError, match="no definition or revision"):
        Registry().add(one, name)
    with pytest.raises(ValueError, match="no definition or revision"):
        Registry().add(one, "d", revisions=["1", name])


def test_one_string_is_no_list():
    with pytest.raises(TypeError):
        Registry().add(one, "d", revisions="12")
    with pytest.raises(TypeError):
        Registry().add(one, "d", capabilities="files:read")
    with pytest.raises(ValueError, match="never run"):
        Registry().add(one, "d", revisions=[])


def test_what_is_asked_for_is_what_is_known():
    handlers = Registry()
    handlers.add(one, "a", capabilities={"x"})
    handlers.add(one, "b", revisions=["1", "2"], capabilities={"y", "x"})
    assert handlers.selectors() == ["a", "b@1", "b@2"]
    assert handlers.capabilities() == {"x", "y"}
    assert handlers.narrow(["b"]) == ["b@1", "b@2"]
    assert handlers.narrow(["b@2", "a", "a@7", "b@2"]) == ["b@2", "a", "a@7"]
    for unknown in ("c", "b@3"):
        with pytest.raises(ValueError, match=f"no handler is registered for {unknown}"):
            handlers.narrow([unknown])


def test_modules_are_found():
    assert discover(["tests.worker.handlers"]).find("test.echo", "1") is not None
    with pytest.raises(ImportError):
        discover(["tests.worker.nowhere"])
