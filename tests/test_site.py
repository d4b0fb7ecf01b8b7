"""The example site around the app: its front page, its documents, its errors, and what its pages may load."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.contrib.staticfiles import finders
from django.test import Client, override_settings
from django.urls import include, path

from project import pages, security
from project.urls import urlpatterns as the_sites

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
DOCUMENTS = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*") if path.is_file())


def fails(request):
    raise RuntimeError("a secret of the machine")


urlpatterns = [path("", include(the_sites)), path("fails/", fails)]


def linked(html: str) -> set[str]:
    """Return the addresses on this site that a page links to or loads."""
    return {found for found in re.findall(r'(?:href|src|action)="([^"#?]+)', html) if found}


@pytest.fixture
def people(db):
    return get_user_model().objects.create_user("viola", is_staff=True, is_superuser=True)


def test_the_front_page_explains_itself_and_leads_to_everything(client: Client, people) -> None:
    answer = client.get("/")
    text = answer.content.decode()
    assert answer.status_code == 200
    assert "admitted once" in text and "Not signed in" in text
    wanted = {
        "/admin/workloads/",
        "/admin/workloads/workload/",
        "/api/v1/docs/",
        "/api/v1/health/",
        "/README.md",
        "/docs/how-it-works.md",
    }
    assert wanted <= linked(text)
    client.force_login(people)
    for address in linked(text):
        if address.startswith("/static/"):
            assert finders.find(address.removeprefix("/static/")), address
        else:
            # A pass has not run here, which health says.
            assert client.get(address, follow=True).status_code in ({200, 503} if "health" in address else {200}), (
                address
            )


def test_the_front_page_says_who_is_signed_in_and_lets_them_out(client: Client, people) -> None:
    client.force_login(people)
    text = client.get("/").content.decode()
    assert "Signed in as <strong>viola</strong>" in text
    assert 'action="/admin/logout/"' in text
    client.post("/admin/logout/")
    assert "Not signed in" in client.get("/").content.decode()


@pytest.mark.django_db
def test_a_visitor_is_led_from_signing_in_to_the_overview(client: Client) -> None:
    get_user_model().objects.create_superuser("root", password="pass-of-root")
    assert 'href="/admin/login/?next=/admin/workloads/"' in client.get("/").content.decode()
    answer = client.post("/admin/login/?next=/admin/workloads/", {"username": "root", "password": "pass-of-root"})
    assert answer["Location"] == "/admin/workloads/"


def test_the_readme_is_a_page_whose_links_lead_somewhere(client: Client) -> None:
    text = client.get("/README.md").content.decode()
    assert "<h1" in text and "<table>" in text
    relative = {found for found in re.findall(r'href="([^"#]+)', text) if not found.startswith("/")}
    assert "docs/http.md" in relative
    for address in relative:
        assert client.get(f"/{address}").status_code == 200, address


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_document_is_a_page_and_its_links_lead_somewhere(client: Client, name: str) -> None:
    answer = client.get(f"/docs/{name}")
    assert answer.status_code == 200
    if not name.endswith(".md"):
        assert answer["Content-Type"] in ("text/plain; charset=utf-8", "image/png", "image/webp", "image/svg+xml")
        return
    text = answer.content.decode()
    for address, part in re.findall(r'(?:href|src)="([^"#/:][^"#:]*)(?:#([^"]+))?"', text):
        there = client.get(posixpath.normpath(f"/docs/{posixpath.dirname(name)}/{address}"))
        assert there.status_code == 200, address
        assert not part or f'id="{part}"' in there.content.decode(), part


@pytest.mark.parametrize(
    "name", ["nothing.md", "..%2fREADME.md", "%2e%2e", "settings.py", ".md", "../README.md", "a/../http.md"]
)
def test_what_is_no_document_is_not_found(client: Client, name: str) -> None:
    assert client.get(f"/docs/{name}").status_code == 404


def test_a_picture_beside_the_documents_is_one(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shots").mkdir()
    (tmp_path / "shots" / "a.png").write_bytes(b"PNG")
    (tmp_path / "shots" / "a.exe").write_bytes(b"MZ")
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    answer = client.get("/docs/shots/a.png")
    assert (answer.status_code, answer["Content-Type"], answer.content) == (200, "image/png", b"PNG")
    assert client.get("/docs/shots/a.exe").status_code == 404


def test_html_in_a_document_is_text(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.md").write_text("# <script>x</script>\n\n<img src=x onerror=y> [a](javascript:z)\n\n`<b>`")
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    text = client.get("/docs/a.md").content.decode()
    assert "<script>x" not in text and "<img src=x" not in text and 'href="javascript' not in text
    assert "&lt;b&gt;" in text


@override_settings(ROOT_URLCONF=__name__)
def test_a_failure_is_told_in_the_sites_look_and_without_its_reason() -> None:
    client = Client(raise_request_exception=False)
    answer = client.get("/fails/")
    text = answer.content.decode()
    assert answer.status_code == 500
    assert "Something went wrong here" in text and "site/site.css" in text
    assert "a secret of the machine" not in text and "RuntimeError" not in text


@pytest.mark.django_db
def test_the_other_errors_have_the_sites_look_too(client: Client) -> None:
    missing = client.get("/nothing/")
    assert missing.status_code == 404
    clerk = get_user_model().objects.create_user("clerk", is_staff=True)
    client.force_login(clerk)
    denied = client.get("/admin/workloads/access/")
    assert denied.status_code == 403
    strict = Client(enforce_csrf_checks=True)
    forged = strict.post("/admin/login/", {})
    assert forged.status_code == 403 and "This form" in forged.content.decode()
    bad = client.get("/", headers={"host": "elsewhere.example"})
    assert bad.status_code == 400
    for answer in (missing, denied, forged, bad):
        text = answer.content.decode()
        assert "site/site.css" in text and 'href="/"' in text
        assert answer[security.HEADER] == security.STRICT


def test_an_error_of_the_interface_stays_json(client: Client) -> None:
    answer = client.get("/api/v1/nothing/")
    assert (answer.status_code, answer["Content-Type"]) == (404, "application/json")


@pytest.mark.django_db
def test_pages_may_load_what_is_the_sites_own_alone(admin_client: Client) -> None:
    for address in ("/", "/README.md", "/admin/", "/admin/workloads/workload/", "/admin/workloads/access/add/"):
        answer = admin_client.get(address)
        text = answer.content.decode()
        assert answer[security.HEADER] == security.STRICT, address
        assert "unsafe" not in security.STRICT
        assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>(?!\s*\{)|<style|\sstyle=|\son\w+=", text), address
        assert not re.search(r'(?:src|href)="(?:https?:)?//(?!testserver)', _loaded(text)), address
    assert admin_client.get("/api/v1/docs/")[security.HEADER] == security.OF_THE_API_DOCS


def _loaded(text: str) -> str:
    """Return the elements that a browser loads something for."""
    return "".join(re.findall(r"<(?:link|script|img|iframe|source)\b[^>]*>", text))


@override_settings(DEBUG=True)
def test_a_developers_page_of_an_error_keeps_its_own_styles(client: Client) -> None:
    assert security.HEADER not in client.get("/nothing/").headers
