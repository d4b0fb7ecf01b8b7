"""Every string is marked for translation, and the German catalogues are whole: each string, once, as safe as it was."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import polib
import pytest
from django.conf import settings

from tests.admin import strings
from tests.admin.strings import ROOT, Message

CATALOGUES: Final = {"workloads": ("workloads",), "project": ("project", "templates")}
"""Who ships a catalogue, and the folders whose strings it holds."""
PLACEHOLDER: Final = re.compile(r"%\(\w+\)[a-z]|%%|%[a-z]|{\w*}")
TAG: Final = re.compile(r"<[^>]*>")

# (file, text): why it is nobody's language.
AS_IT_IS: Final = {
    ("workloads/admin/page_blockers.py", "manage.py workloads_pass"): "a command",
    ("workloads/admin/page_rows.py", "CAST(%(expressions)s AS BLOB)"): "SQL",
    ("workloads/models/rows.py", "This row is written by workloads.authority alone, and history is never changed."): (
        "an exception's, which no page shows"
    ),
    ("workloads/models/work.py", "Can re-arm a workload"): "Django keeps a right's name in the database",
    ("workloads/models/work.py", "Can cancel a workload"): "as above",
    ("workloads/models/work.py", "Can time out a workload"): "as above",
    ("workloads/models/work.py", "Can read inputs, outputs and checkpoints"): "as above",
    ("workloads/templates/admin/workloads/access/token_once.html", "Authorization: Bearer …"): "a header",
}


@cache
def catalogue(name: str) -> polib.POFile:
    """Return what translators write."""
    return polib.pofile(str(ROOT / name / "locale" / "de" / "LC_MESSAGES" / "django.po"))


def entries(*names: str) -> list[polib.POEntry]:
    return [entry for name in names or CATALOGUES for entry in catalogue(name)]


def forms(entry: polib.POEntry) -> list[tuple[str, str]]:
    """Return each English form with the German one."""
    if not entry.msgid_plural:
        return [(entry.msgid, entry.msgstr)]
    return [(entry.msgid, entry.msgstr_plural[0]), (entry.msgid_plural, entry.msgstr_plural[1])]


def shown_files() -> Iterator[Any]:
    """Return the Python of which a page may show what stands there."""
    yield from strings.python_files("workloads/admin", "workloads/models", "workloads/templatetags")
    yield ROOT / "workloads" / "apps.py"
    yield ROOT / "project" / "pages.py"


# The catalogues


@pytest.mark.parametrize("name", CATALOGUES)
def test_the_catalogue_holds_each_string_that_is_marked_and_no_other(name: str) -> None:
    held = [Message(entry.msgctxt, entry.msgid, entry.msgid_plural or None) for entry in entries(name)]
    found = strings.marked(*CATALOGUES[name])
    # Missing, and no longer used: `makemessages -l de` in that folder mends both.
    assert (sorted(found - set(held), key=str), sorted(set(held) - found, key=str)) == ([], [])
    assert len(set(held)) == len(held)


@pytest.mark.parametrize("name", CATALOGUES)
def test_each_entry_is_translated(name: str) -> None:
    assert [entry.msgid for entry in entries(name) if entry.fuzzy or entry.obsolete] == []
    assert [english for entry in entries(name) for english, german in forms(entry) if not german.strip()] == []
    same = [english for entry in entries(name) for english, german in forms(entry) if english == german]
    assert [english for english in same if strings.TWO_WORDS.search(PLACEHOLDER.sub("", english))] == []


@pytest.mark.parametrize("name", CATALOGUES)
def test_a_translation_has_the_same_placeholders_and_markup_and_is_as_safe(name: str) -> None:
    wrong = []
    for entry in entries(name):
        for english, german in forms(entry):
            told = Counter(PLACEHOLDER.findall(english)), Counter(TAG.findall(english))
            kept = Counter(PLACEHOLDER.findall(german)), Counter(TAG.findall(german))
            # `translate` escapes no literal: outside of tags, what ends an attribute or begins a tag is the original's.
            own, others = TAG.sub("", english), TAG.sub("", german)
            is_as_safe = all(own.count(sign) == others.count(sign) for sign in "<>&\"'") or not set("<>&\"'") & {
                *others
            }
            if told != kept or not is_as_safe or german != german.strip():
                wrong.append((english, german))
    assert wrong == []


def test_what_both_catalogues_hold_they_say_alike() -> None:
    # A site's catalogue goes before an app's.
    said: dict[tuple[str | None, str], list[Any]] = {}
    for entry in entries():
        said.setdefault((entry.msgctxt, entry.msgid), []).append(forms(entry))
    assert [forms for forms in said.values() if forms.count(forms[0]) < len(forms)] == []


@pytest.mark.parametrize("name", CATALOGUES)
def test_the_compiled_catalogue_is_what_was_written(name: str) -> None:
    folder = ROOT / name / "locale" / "de" / "LC_MESSAGES"
    compiled = polib.mofile(str(folder / "django.mo"))

    def content(entries: Any) -> dict[Any, Any]:
        return {(entry.msgctxt, entry.msgid): forms(entry) for entry in entries}

    # `compilemessages` in that folder mends it.
    assert content(compiled) == content(entries(name))
    assert compiled.metadata == catalogue(name).metadata
    assert compiled.metadata["Plural-Forms"] == "nplurals=2; plural=(n != 1);"


# What is not marked


def test_no_template_has_words_that_are_not_marked() -> None:
    found = [
        each for path in strings.templates("workloads", "templates") for each in strings.unmarked_in_template(path)
    ]
    # "Workloads" is the site's name.
    assert [each for each in found if each not in AS_IT_IS and each.text.strip("… |") != "Workloads"] == []


def test_no_page_has_words_from_python_that_are_not_marked() -> None:
    found = [each for path in shown_files() for each in strings.unmarked_in_python(path)]
    assert [each for each in found if each not in AS_IT_IS] == []


def test_no_script_has_words_of_its_own() -> None:
    scripts = sorted(path for folder in ("workloads", "project") for path in (ROOT / folder).rglob("static/**/*.js"))
    assert scripts != []
    assert [each for path in scripts for each in strings.words_in_script(path)] == []


def test_what_is_excused_is_still_there() -> None:
    found = {each for path in shown_files() for each in strings.unmarked_in_python(path)}
    found |= {each for path in strings.templates("workloads") for each in strings.unmarked_in_template(path)}
    assert set(AS_IT_IS) <= found


def test_the_search_for_strings_finds_them(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strings, "ROOT", tmp_path)
    python = tmp_path / "a.py"
    python.write_text(
        '"""All of it."""\nA = _("one") + ngettext("an %(a)d", "many %(a)d", 2) + pgettext("of b", "two")\n'
        'B = format_html("<b class=\\"x y\\">{} was seen</b>", C)\nD = field(label="State")\n'
        'logger.info("so it is")\nraise ValueError("that is wrong")\n'
    )
    assert strings.marked() == set()
    assert set(strings.in_python(python.read_text())) == {
        Message(None, "one", None),
        Message(None, "an %(a)d", "many %(a)d"),
        Message("of b", "two", None),
    }
    assert [each.text for each in strings.unmarked_in_python(python)] == ['<b class="x y">{} was seen</b>', "State"]
    template = tmp_path / "a.html"
    template.write_text(
        "{% load i18n %}<p{% if a %} class='x y'{% endif %} title='Told'>{{ a }} is here</p><code>a b</code>"
        "{% translate 'three' %}{% blocktranslate count n=a %}a {{ n }}{% plural %}all {{ n }}{% endblocktranslate %}"
        '<input type="submit" value="Go"><input value="kept">{# no #}{% comment %}nor this{% endcomment %}'
    )
    assert set(strings.in_template(template.read_text())) == {
        Message(None, "three", None),
        Message(None, "a %(n)s", "all %(n)s"),
    }
    assert [each.text for each in strings.unmarked_in_template(template)] == ["Told", "… is here", "Go"]
    script = tmp_path / "a.js"
    script.write_text(
        "'use strict';\n// so it is\n/* and so */\na.textContent = 'Stop';\nb('.x form');\nc(`it is ${d}`);"
    )
    assert [each.text for each in strings.words_in_script(script)] == ["`it is ${d}`", "'Stop"]


def test_the_site_offers_what_is_whole() -> None:
    assert [code for code, _name in settings.LANGUAGES] == ["en", "de"]
