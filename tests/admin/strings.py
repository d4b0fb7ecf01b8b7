"""Which texts the code shows: those marked for translation, and those that are not, found without gettext's tools."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final, NamedTuple

from django.template.base import Lexer, TokenType
from django.utils.translation.template import templatize

ROOT: Final = Path(__file__).resolve().parents[2]

# What a marking call is given, in the order of its arguments.
CALLS: Final = {
    "_": ("text",),
    "gettext": ("text",),
    "gettext_lazy": ("text",),
    "gettext_noop": ("text",),
    "ngettext": ("text", "plural"),
    "ngettext_lazy": ("text", "plural"),
    "pgettext": ("context", "text"),
    "pgettext_lazy": ("context", "text"),
    "npgettext": ("context", "text", "plural"),
    "npgettext_lazy": ("context", "text", "plural"),
}
# Attributes that are read or read out. `value` is, on a button.
SPOKEN: Final = frozenset({"alt", "aria-description", "aria-label", "label", "placeholder", "title"})
# Elements whose text is the contract's, a command's, or no text.
VERBATIM: Final = frozenset({"code", "script", "style"})
# Blocks of Django's that hold classes, not words.
CLASSES: Final = frozenset({"bodyclass", "coltype"})
# Arguments that are labels, be they one word.
LABELS: Final = frozenset({"description", "help_text", "label", "title", "verbose_name", "verbose_name_plural"})
# In the text of a template, where the template puts something in.
HOLE: Final = "\0"
TWO_WORDS: Final = re.compile(r"[^\W\d_]{2,},? [^\W\d_]{2,}")


class Message(NamedTuple):
    """What a catalogue has an entry for."""

    context: str | None
    text: str
    plural: str | None


class Found(NamedTuple):
    """A text, and where it stands."""

    place: str
    text: str


def python_files(*folders: str) -> list[Path]:
    """Return the Python files below these folders."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def templates(*folders: str) -> list[Path]:
    """Return the templates below these folders."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.html"))


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def in_python(source: str) -> Iterator[Message]:
    """Yield what Python marks. What is marked must stand there: no name, no f-string."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and (names := CALLS.get(_called(node))):
            given = dict(zip(names, (ast.literal_eval(argument) for argument in node.args), strict=False))
            yield Message(given.get("context"), given["text"], given.get("plural"))


def in_template(source: str) -> Iterator[Message]:
    """Yield what a template marks."""
    # Django's own reading of it: calls, with all else crossed out.
    literal = r"u?(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    for call in re.findall(rf"\b(?:_|n?p?gettext)\({literal}(?:, ?{literal})*", templatize(source)):
        yield from in_python(f"{call})")


def marked(*folders: str) -> set[Message]:
    """Return all that is marked below these folders. One text with and without a plural is one entry."""
    found = {message for path in python_files(*folders) for message in in_python(path.read_text(encoding="utf-8"))}
    found |= {message for path in templates(*folders) for message in in_template(path.read_text(encoding="utf-8"))}
    plurals = {(message.context, message.text) for message in found if message.plural is not None}
    return {m for m in found if m.plural is not None or (m.context, m.text) not in plurals}


class _Texts(HTMLParser):
    """Collects the texts of markup, with what is said of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._verbatim: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VERBATIM:
            self._verbatim.append(tag)
        given = dict(attrs)
        is_button = tag == "input" and given.get("type") in {"submit", "button"}
        self.found += [
            str(value) for name, value in attrs if value and (name in SPOKEN or (is_button and name == "value"))
        ]

    def handle_endtag(self, tag: str) -> None:
        if self._verbatim and self._verbatim[-1] == tag:
            self._verbatim.pop()

    def handle_data(self, data: str) -> None:
        if not self._verbatim and data.strip():
            self.found.append(" ".join(data.split()))


def texts_of(markup: str) -> list[str]:
    """Return each piece of text of a page or a part of one, attributes that are read out included."""
    parser = _Texts()
    parser.feed(markup)
    parser.close()
    return parser.found


def unmarked_in_template(path: Path) -> Iterator[Found]:
    """Yield the template's own words that nothing marks."""
    parts: list[str] = []
    until = ""
    for token in Lexer(path.read_text(encoding="utf-8")).tokenize():
        words = token.contents.split() if token.token_type is TokenType.BLOCK else [""]
        if until:
            until = "" if words[0] == until else until
        elif words[0] in {"blocktranslate", "comment"}:
            until = f"end{words[0]}"
        elif words[0] == "block" and words[1] in CLASSES:
            until = "endblock"
        elif token.token_type is TokenType.TEXT:
            parts.append(token.contents)
        elif token.token_type is TokenType.VAR:
            parts.append(HOLE)
        else:
            parts.append(" ")
    for text in texts_of("".join(parts)):
        if re.search(r"[^\W\d_]", text.replace(HOLE, "")):
            yield Found(path.relative_to(ROOT).as_posix(), text.replace(HOLE, "…").strip())


def unmarked_in_python(path: Path) -> Iterator[Found]:
    """Yield what reads like words for people and is not marked: two words in a row, outside of markup and of logs."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    silent: set[int] = set()
    labels: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (_called(node) in CALLS or _is_for_developers(node)):
            silent |= {id(inner) for inner in ast.walk(node)}
        elif isinstance(node, (ast.Raise, ast.Assert)):
            # A person is shown what `_` said; the rest ends in a log.
            silent |= {id(inner) for inner in ast.walk(node)}
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            silent.add(id(node.value))
        elif isinstance(node, ast.keyword) and node.arg in LABELS:
            labels.add(id(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            text = " ".join(re.sub(r"<[^>]*>?|[\w-]*=\"[^\"]*\"|%\(\w+\)\w|{\w*}", " ", node.value).split())
            if TWO_WORDS.search(text) or (id(node) in labels and re.search(r"[^\W\d_]", text)):
                yield Found(path.relative_to(ROOT).as_posix(), node.value)


def _is_for_developers(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") in {"logger", "re", "warnings"}


def words_in_script(path: Path) -> Iterator[Found]:
    """Yield what a script says in words of its own: it has to be given them by the page."""
    source = re.sub(r"/\*.*?\*/|^\s*//[^\n]*", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for text in re.findall(r"\"[^\"\n]*\"|'[^'\n]*'|`[^`]*`", source):
        # A selector begins with a point or a bracket.
        if TWO_WORDS.search(text) and text[1:-1] != "use strict" and text[1] not in ".[#":
            yield Found(path.relative_to(ROOT).as_posix(), text)
    for text in re.findall(r"(?:textContent|innerText|title|ariaLabel)\s*=\s*([\"'`][^\"'`]*[^\W\d_][^\"'`]*)", source):
        yield Found(path.relative_to(ROOT).as_posix(), text)
