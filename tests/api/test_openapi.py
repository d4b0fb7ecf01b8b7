"""The OpenAPI schema: equal to the committed page, valid, whole, with examples that fit it, and no site's names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin, urlsplit

import jsonschema
import pytest
from django.conf import settings
from django.contrib.staticfiles import finders
from django.test import Client, override_settings
from django.urls import path
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.validation import validate_schema
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012
from rest_framework import serializers
from rest_framework.generics import RetrieveAPIView

from tests.openapi import PAGE, render
from workloads.api import errors, urls
from workloads.api.schema import generate

ROOT = "/api/v1/"


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return generate()


def operations(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for where, methods in schema["paths"].items():
        for method, said in methods.items():
            yield where, method, said


def resolve(schema: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """Follow a reference, if it is one."""
    if "$ref" not in value:
        return value
    found: Any = schema
    for step in value["$ref"].removeprefix("#/").split("/"):
        found = found[step]
    return found


def test_the_page_is_made_from_the_code():
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python -m tests.openapi"


def test_it_is_valid_without_a_warning():
    GENERATOR_STATS.reset()
    try:
        validate_schema(generate())
        assert not GENERATOR_STATS, [*GENERATOR_STATS._warn_cache, *GENERATOR_STATS._error_cache]
    finally:
        GENERATOR_STATS.reset()


def test_every_path_and_method_is_in_it(schema):
    found = set()

    def walk(patterns: list[Any], before: str) -> None:
        for pattern in patterns:
            where = before + re.sub(r"<str:(\w+)>", r"{\1}", str(pattern.pattern))
            if hasattr(pattern, "url_patterns"):
                walk(pattern.url_patterns, where)
            elif where not in ("schema/", "docs/"):
                view = pattern.callback.cls
                found.update(
                    (f"/{where}", method)
                    for method in ("get", "post", "put", "patch", "delete")
                    if hasattr(view, method)
                )

    walk(urls.paths, "")
    assert {(where, method) for where, method, _ in operations(schema)} == found


def test_every_operation_has_examples_and_every_one_fits(schema):
    registry = Registry().with_resource("urn:api", Resource(contents=schema, specification=DRAFT202012))

    def fit(value: Any, shape: dict[str, Any], where: str) -> None:
        pointed = {"$ref": f"urn:api{shape['$ref']}"} if "$ref" in shape else shape
        checker = jsonschema.Draft202012Validator(pointed, registry=registry, format_checker=jsonschema.FormatChecker())
        assert [error.message for error in checker.iter_errors(value)] == [], where

    for where, method, said in operations(schema):
        assert said["summary"] and said["description"] and said["tags"]
        contents = [answer["content"] for answer in said["responses"].values()]
        if "requestBody" in said:
            contents.append(said["requestBody"]["content"])
        for content in contents:
            (media,) = content.values()
            assert media["examples"], (where, method)
            for example in media["examples"].values():
                fit(resolve(schema, example)["value"], media["schema"], f"{method} {where}")
        for parameter in said.get("parameters", []):
            assert parameter["description"], parameter["name"]
            for example in parameter.get("examples", {}).values():
                fit(example["value"], parameter["schema"], f"{method} {where}: {parameter['name']}")


def test_every_code_stands_at_its_status(schema):
    seen = set()
    for where, method, said in operations(schema):
        for status, answer in said["responses"].items():
            (media,) = answer["content"].values()
            if not media["schema"]["$ref"].endswith("/WorkloadError"):
                continue
            for example in media["examples"].values():
                code = resolve(schema, example)["value"]["code"]
                assert errors.STATUSES[code] == int(status), (where, method, code)
                seen.add(code)
            assert sorted(answer["description"].split(", ")) == sorted(
                resolve(schema, example)["value"]["code"] for example in media["examples"].values()
            )
    # A wrong path or method is no operation, and what went wrong here is no answer of one.
    assert seen == set(errors.STATUSES) - {"NOT_FOUND", "METHOD_NOT_ALLOWED", "INTERNAL_ERROR"}


def test_every_link_leads_to_an_operation_that_takes_it(schema):
    by_id = {said["operationId"]: said for _, _, said in operations(schema)}
    links = [
        link
        for _, _, said in operations(schema)
        for answer in said["responses"].values()
        for link in answer.get("links", {}).values()
    ]
    assert links
    for link in links:
        target = by_id[link["operationId"]]
        taken = {parameter["name"] for parameter in target.get("parameters", []) if parameter["in"] == "path"}
        assert set(link.get("parameters", {})) == taken
        if "requestBody" in link:
            body = resolve(schema, target["requestBody"]["content"]["application/json"]["schema"])
            assert set(link["requestBody"]) <= set(body["properties"])


def test_the_sites_limit_stands_in_it():
    with override_settings(WORKLOADS={"MAX_LEASE_MS": 5_000}):
        said = generate()["components"]["schemas"]
    assert said["WorkloadClaimBody"]["properties"]["lease_ms"]["maximum"] == 5_000
    assert said["WorkloadHeartbeatBody"]["properties"]["extend_ms"]["maximum"] == 5_000
    assert (
        Client()
        .get(f"{ROOT}schema/")
        .json()["components"]["schemas"]["WorkloadClaimBody"]["properties"]["lease_ms"]["maximum"]
        == 86_400_000
    )


def test_a_site_may_have_names_of_its_own_and_describe_all_together():
    names = ("Error", "Count", "Event", "Claim", "Result", "Page", "Outcome", "AdmissionBody", "Stats", "StateName")
    patterns: list[Any] = list(urls.urlpatterns)
    for name in names:
        fields = {"state": serializers.ChoiceField(["on", "off"]), "status": serializers.CharField()}
        kind = type(name, (serializers.Serializer,), fields)

        class View(RetrieveAPIView):
            schema = AutoSchema()
            serializer_class = kind

        patterns.append(path(f"own/{name}/", View.as_view()))
    GENERATOR_STATS.reset()
    try:
        together = SchemaGenerator(patterns=patterns).get_schema(request=None, public=True)
        assert not GENERATOR_STATS, [*GENERATOR_STATS._warn_cache, *GENERATOR_STATS._error_cache]
    finally:
        GENERATOR_STATS.reset()
    validate_schema(together)
    own = {name for name in together["components"]["schemas"] if not name.startswith("Workload")}
    # The one more is what the library makes of the site's choices: ours are named, and left alone.
    assert own == {*names, "StateEnum"}
    assert {"workloadsToken", "workloadsSession"} <= set(together["components"]["securitySchemes"])


# The page


def test_the_docs_page_loads_nothing_from_another_host():
    answer = Client().get(f"{ROOT}docs/", headers={"accept": "text/html"})
    assert answer.status_code == 200 and answer["Content-Type"].startswith("text/html")
    html = answer.content.decode()
    # Every address in it, whatever loads it: nothing names a scheme or a host.
    assert re.findall(r"[a-z]+:\\?/\\?/[^\s\"'<>]*|[\"'(=]//[^\s\"'<>]*", html) == []
    loaded = re.findall(r"(?:src|href)=\"([^\"]+)\"", html)
    assert len(loaded) == 4
    for address in loaded:
        where = urljoin(f"{ROOT}docs/", address)
        assert urlsplit(where).netloc == "" and finders.find(where.removeprefix(f"/{settings.STATIC_URL.strip('/')}/"))
    assert 'url: "../schema/"' in html
    # Left out, it would be an address of the open net.
    assert '"validatorUrl": null' in html


def test_the_docs_page_answers_errors_in_the_one_form():
    assert Client().post(f"{ROOT}docs/", {}, content_type="application/json").json()["code"] == "METHOD_NOT_ALLOWED"
    assert Client().get(f"{ROOT}docs/?x=1").json()["code"] == "WORKLOAD_INVALID"
    assert Client().get(f"{ROOT}schema/?x=1").json()["code"] == "WORKLOAD_INVALID"


def test_the_schema_is_served_as_it_is_committed():
    answer = Client().get(f"{ROOT}schema/")
    assert answer["Content-Type"] == "application/json"
    assert answer.json() == generate()
