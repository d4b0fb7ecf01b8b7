"""The project's documents as pages of the site: README.md, and what lies in docs/, read anew at each request."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any, Final

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.safestring import mark_safe
from django.utils.text import slugify
from markdown_it import MarkdownIt

PROJECT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = PROJECT / "docs"
KINDS: Final = {
    ".md": "text/html",
    ".yaml": "text/plain; charset=utf-8",
    ".sh": "text/plain; charset=utf-8",
    ".png": "image/png",
    ".webp": "image/webp",
    ".svg": "image/svg+xml",
}
# HTML within a document is shown as text.
MARKDOWN: Final = MarkdownIt("js-default")


def readme(request: HttpRequest) -> HttpResponse:
    """Show what the project is."""
    return _shown(request, PROJECT / "README.md")


def document(request: HttpRequest, name: str) -> HttpResponse:
    """Show a document. Pictures are pictures, and what else is no Markdown is plain text."""
    # Looked up among those that are there, and never made into a path.
    found = {path.relative_to(DOCS).as_posix(): path for path in DOCS.rglob("*") if path.suffix in KINDS}
    if name not in found:
        raise Http404
    path = found[name]
    if path.suffix == ".md":
        return _shown(request, path)
    return HttpResponse(path.read_bytes(), content_type=KINDS[path.suffix])


def _shown(request: HttpRequest, path: Path) -> HttpResponse:
    tokens = MARKDOWN.parse(path.read_text(encoding="utf-8"))
    title = path.name
    for heading, inner in itertools.pairwise(tokens):
        if heading.type == "heading_open":
            text = "".join(child.content for child in inner.children or ())
            title = text if heading.tag == "h1" else title
            heading.attrSet("id", slugify(text, allow_unicode=True))
    html: Any = MARKDOWN.renderer.render(tokens, MARKDOWN.options, {})
    html = re.sub(r"<pre>", '<pre tabindex="0">', html)
    html = html.replace("<table>", '<div class="wide" tabindex="0"><table>').replace("</table>", "</table></div>")
    # The project's own text, in which HTML was escaped.
    return render(request, "document.html", {"title": title, "text": mark_safe(html)})  # noqa: S308 - as said
