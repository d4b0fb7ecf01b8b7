"""What a credential looks like: the rules by which `secrets` knows one in a text, whatever stands around it."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

# Nothing that is found is shorter; and how long a word is at the least in which a rule for `one_word` finds something.
_SHORTEST: Final = 6
_LONG_WORD: Final = 15


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A kind of secret material. Text that holds none of the `hints` need not be searched for `pattern`.

    What is secret is the pattern's group 1 where it has one, else all of it. Every pattern takes time in proportion to
    the text: what it repeats without a bound either ends it, or cannot hold the beginning of another match.
    What is found by a rule for `one_word` holds no white space, and is at least `_LONG_WORD` characters long.
    """

    name: str
    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    accepts: Callable[[re.Match[str]], bool] = lambda match: True
    any_case: bool = False
    one_word: bool = False

    def is_suspected(self, text: str) -> bool:
        """Say whether the text holds a hint, in the hint's case unless any case will do."""
        if self.any_case:
            text = text.lower()
        for hint in self.hints:  # noqa: SIM110 - a third of the time of any(), for every text there is
            if hint in text:
                return True
        return False

    def is_in(self, texts: Iterable[str]) -> bool:
        """Say whether any of the texts holds secret material of this kind."""
        hints, any_case = self.hints, self.any_case
        for text in texts:
            said = text.lower() if any_case else text
            for hint in hints:
                if hint in said:
                    for _ in self.spans(text):
                        return True
                    break
        return False

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Give where secret material begins and ends."""
        for match in self.pattern.finditer(text):
            if self.accepts(match):
                yield match.span(1 if self.pattern.groups else 0)


def _is_basic(match: re.Match[str]) -> bool:
    """Say whether the text after `Basic` decodes to a printable name, a colon and a password."""
    encoded = match[1].rstrip("=").replace("-", "+").replace("_", "/")
    try:
        plain = base64.b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except (binascii.Error, ValueError):
        return False
    return plain.isprintable() and plain.partition(":")[2] != ""


_AUTHORIZATION: Final = re.compile(r"authorization[\"']?\s?[:=]\s?[\"']?\Z", re.IGNORECASE)
_DIGIT: Final = re.compile(r"[0-9]")
_LONG_RUN: Final = re.compile(r"[A-Za-z0-9]{16}|[a-z][A-Z]")


def _is_bearer(match: re.Match[str]) -> bool:
    """Say whether what follows `Bearer` is no English word: it has a digit, or is longer or more mixed than words are.

    After an `Authorization:` header, fewer characters are enough.
    """
    credential = match[1]
    as_header = _AUTHORIZATION.search(match.string, max(0, match.start() - 20), match.start()) is not None
    if _DIGIT.search(credential) is not None:
        return len(credential) >= (4 if as_header else 8)
    return len(credential) >= 16 and _LONG_RUN.search(credential) is not None


# A password that is a mask or a placeholder gives nothing away.
_MASKED: Final = re.compile(r"[^:]*:(?:\*+|x{3,}|[$%]?\{[^{}]*\}|<[^<>]*>|\[redacted\])", re.IGNORECASE)


def _has_password(match: re.Match[str]) -> bool:
    return _MASKED.fullmatch(match[1]) is None


def _provider(name: str, hints: str, pattern: str, *, any_case: bool = False) -> Rule:
    """Return the rule of a provider's key format, which does not begin in the middle of a word."""
    compiled = re.compile(rf"(?<![A-Za-z0-9])(?:{pattern})")
    return Rule(name, tuple(hints.split()), compiled, any_case=any_case, one_word=not any_case)


_END: Final = r"(?![A-Za-z0-9])"

RULES: Final = (
    Rule(
        "private_key",
        ("PRIVATE KEY", "PuTTY-User-Key-File-"),
        re.compile(
            r"(?:-{4,5} ?BEGIN [A-Z0-9 ]{0,40}?PRIVATE KEY(?: BLOCK)? ?-{4,5}|PuTTY-User-Key-File-\d)"
            r"(?:(?s:.*?)-{4,5} ?END [A-Z0-9 ]{0,40}?PRIVATE KEY(?: BLOCK)? ?-{4,5}|(?s:.*))"
        ),
    ),
    Rule(
        "jwt",
        ("eyJ",),
        # The look ahead comes first, so that a long run without dots is read once, not once for each place in it.
        re.compile(
            r"(?<![A-Za-z0-9_-])(?=[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{2,}\.)"
            r"[A-Za-z0-9_-]*?(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]*"
        ),
        one_word=True,
    ),
    Rule(
        "url_password",
        ("://",),
        # Not the port in `["http://a:80","b@c"]`, and not the address in `http://[::1]:80/@`.
        re.compile(r"(?<=[A-Za-z0-9+.-])://([^\s/?#:@\[\]]*:(?!\d{1,5}[\"',;)\]}&|\\])[^\s/?#@]+)@"),
        _has_password,
    ),
    # The look ahead leaves what follows the word to be searched too: `basic basic dTpw`.
    Rule(
        "bearer",
        ("bearer",),
        re.compile(r"\b(?ai:bearer)[\s:=]+[\"']?(?=([A-Za-z0-9._~+/-]{4,}=*))"),
        _is_bearer,
        any_case=True,
    ),
    Rule(
        "basic",
        ("basic",),
        re.compile(r"\b(?ai:basic)[\s:=]+[\"']?(?=([A-Za-z0-9+/_-]{3,}={0,2}))"),
        _is_basic,
        any_case=True,
    ),
    _provider("aws_access_key", "AKIA ASIA ABIA ACCA", rf"A(?:KI|SI|BI|CC)A[A-Z0-9]{{16}}{_END}"),
    _provider(
        "aws_secret_key",
        "secret_access_key secretaccesskey",
        r"(?ai:(?:aws_?)?secret_?access_?key)[\"']?\s{0,9}[:=]\s{0,9}[\"']?[A-Za-z0-9/+]{40}" + _END,
        any_case=True,
    ),
    _provider(
        "github_token",
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
        r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}",
    ),
    _provider(
        "gitlab_token",
        "glpat- gldt- glrt- gloas- glptt- glcbt- glft- glsoat- glagent- glimt- glffct-",
        r"gl(?:pat|dt|rt|oas|ptt|cbt|ft|soat|agent|imt|ffct)-[A-Za-z0-9_-]{20,}",
    ),
    _provider("slack_token", "xox xapp-", r"xox[abceoprs]-[A-Za-z0-9-]{10,}|xapp-\d-[A-Za-z0-9-]{10,}"),
    _provider(
        "slack_webhook",
        "hooks.slack.com/",
        r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9+/]{20,}",
    ),
    _provider(
        "stripe_key",
        "sk_live_ sk_test_ rk_live_ rk_test_ whsec_",
        r"[sr]k_(?:live|test)_[A-Za-z0-9]{10,}|whsec_[A-Za-z0-9+/]{24,}",
    ),
    _provider(
        "google_key",
        "AIza GOCSPX- ya29. 1//0",
        r"AIza[A-Za-z0-9_-]{30,}|GOCSPX-[A-Za-z0-9_-]{20,}|ya29\.[A-Za-z0-9_-]{20,}|1//0[A-Za-z0-9_-]{30,}",
    ),
    _provider("anthropic_key", "sk-ant-", r"sk-ant-[A-Za-z0-9_-]{16,}"),
    _provider("openai_key", "sk-", r"sk-(?:(?:proj|svcacct|admin|None|or-v1)-[A-Za-z0-9_-]{20,}|[A-Za-z0-9]{20,})"),
    _provider("npm_token", "npm_", r"npm_[A-Za-z0-9]{30,}"),
    _provider("pypi_token", "pypi-", r"pypi-(?:AgE[A-Za-z0-9_-]{16,}|[A-Za-z0-9_-]{50,})"),
    _provider("sendgrid_key", "SG.", r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    _provider("twilio_key", "SK", rf"SK[0-9a-f]{{32}}{_END}"),
    _provider("mailgun_key", "key-", rf"key-[0-9a-f]{{32}}{_END}"),
    _provider("mailchimp_key", "-us", rf"[0-9a-f]{{32}}-us[0-9]{{1,2}}{_END}"),
    _provider("azure_key", "AccountKey= AccessKey=", r"(?:Account|SharedAccess)Key=[A-Za-z0-9+/]{30,}={0,2}"),
    _provider("digitalocean_token", "dop_v1_ doo_v1_ dor_v1_", r"do[opr]_v1_[A-Fa-f0-9]{40,}"),
    _provider("huggingface_token", "hf_ api_org_", r"(?:hf|api_org)_[A-Za-z0-9]{30,}"),
    _provider("shopify_token", "shpat_ shpca_ shppa_ shpss_", r"shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32,}"),
    _provider("telegram_token", ":AA", r"[0-9]{8,10}:AA[A-Za-z0-9_-]{32,}"),
    _provider("vault_token", "hvs. hvb. hvr.", r"hv[sbr]\.[A-Za-z0-9_-]{24,}"),
    _provider("databricks_token", "dapi", rf"dapi[0-9a-f]{{32}}(?:-[0-9])?{_END}"),
    _provider("grafana_token", "glsa_ glc_", r"gl(?:sa|c)_[A-Za-z0-9+/_]{32,}"),
    _provider("atlassian_token", "ATATT3 ATCTT3", r"AT[AC]TT3[A-Za-z0-9_=-]{50,}"),
    _provider("doppler_token", "dp.pt. dp.st.", r"dp\.[ps]t\.[A-Za-z0-9._-]{40,}"),
    _provider("linear_key", "lin_api_", r"lin_api_[A-Za-z0-9]{32,}"),
    _provider("postman_key", "PMAK-", r"PMAK-[A-Fa-f0-9]{24}-[A-Fa-f0-9]{34}"),
    _provider("age_key", "AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1[A-Z0-9]{50,}"),
)


_Hints = tuple[tuple[str, Rule], ...]

_IN_LONG_WORDS: Final[_Hints] = tuple((hint, rule) for rule in RULES if rule.one_word for hint in rule.hints)
_ANYWHERE: Final[_Hints] = tuple(
    (hint, rule) for rule in RULES if not (rule.one_word or rule.any_case) for hint in rule.hints
)
_ANY_CASE: Final[_Hints] = tuple((hint, rule) for rule in RULES if rule.any_case for hint in rule.hints)


def suspected(text: str) -> list[Rule]:
    """Return the rules, in their order, that the text holds a hint of where they could find something."""
    if len(text) < _SHORTEST:
        return []
    lower = text.lower()
    found = [rule for hint, rule in _ANYWHERE if hint in text]
    found += [rule for hint, rule in _ANY_CASE if hint in lower]
    # Most text has few words that are long enough for the other hints, which are many.
    if words := "\n".join([word for word in text.split() if len(word) >= _LONG_WORD]):
        found += [rule for hint, rule in _IN_LONG_WORDS if hint in words]
    return [rule for rule in RULES if rule in found] if found else []


def first_rule(text: str, rules: Iterable[Rule]) -> str | None:
    for rule in rules:
        if rule.is_suspected(text):
            for _ in rule.spans(text):
                return rule.name
    return None
