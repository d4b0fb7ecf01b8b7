"""Secret material: which text is a credential by its looks, which keys name one, and how text is freed of it.

Section 9 of the contract. What is recognised by its looks can be judged as soon as a value is given; what stands under
a key that names a secret is judged with the workload's connection scopes, which may excuse it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from workloads.errors import WORKLOAD_SECRET_MATERIAL, WorkloadError

REDACTED: Final = "[redacted]"
NAMED_KEY: Final = "named_key"

# fmt: off
SECRET_NAMES: Final = frozenset({
    "password", "passwd", "passphrase", "secret", "clientsecret", "apikey", "apitoken", "accesskey", "accesstoken",
    "refreshtoken", "idtoken", "authtoken", "sessiontoken", "privatekey", "secretkey", "signingkey", "encryptionkey",
    "authorization", "credential", "credentials", "cookie", "setcookie",
})
# fmt: on

_ENDINGS: Final = tuple(sorted(SECRET_NAMES))
_LONGEST_NAME: Final = max(map(len, SECRET_NAMES))
_REDACTION_ROUNDS: Final = 8


@dataclass(frozen=True, slots=True)
class Secret:
    """Where secret material stands, and by which rule it was known; nothing of what it says."""

    path: str
    rule: str


def check_text(text: str, *, field: str) -> None:
    """Let an error text or a reason through only if nothing in it looks like secret material. Its path is `$`."""
    _refuse(_find(text, patterns=True, keyed=False), field)


def check_patterns(value: object, *, field: str) -> None:
    """Let a JSON value through only if no string or key in it looks like secret material, whatever stands where."""
    _refuse(_find(value, patterns=True, keyed=False), field)


def check_keys(value: object, *, field: str, scopes: Collection[str]) -> None:
    """Let a JSON value through only if no string stands under a key that names a secret, save references and scopes."""
    _refuse(find_keyed(value, excused=scopes), field)


def check_value(value: object, *, field: str, scopes: Collection[str]) -> None:
    """Let a JSON value through only if both `check_patterns` and `check_keys` do; the first in document order tells."""
    _refuse(find_secret(value, excused=scopes), field)


def find_secret(value: object, *, excused: Collection[str] = ()) -> Secret | None:
    """Return the first secret material in document order, by either kind of rule. A bad key is its mapping's path."""
    return _find(value, patterns=True, keyed=True, excused=excused)


def find_keyed(value: object, *, excused: Collection[str] = ()) -> Secret | None:
    """Return the first string that stands under a key that names a secret, not being a reference or in `excused`."""
    return _find(value, patterns=False, keyed=True, excused=excused)


def find_in_text(text: str) -> str | None:
    """Return the name of the first rule by which the text holds secret material."""
    return _first_rule(text, _suspected(text))


def redact(text: str) -> str:
    """Return the text with `[redacted]` in place of all secret material, so that `check_text` lets it through."""
    for _ in range(_REDACTION_ROUNDS):
        if find_in_text(text) is None:
            return text
        for rule in _suspected(text):
            pieces: list[str] = []
            end = 0
            for start, stop in rule.spans(text):
                if start >= end:
                    pieces += text[end:start], REDACTED
                    end = stop
            text = "".join(pieces) + text[end:]
    return text if find_in_text(text) is None else REDACTED


def names_secret(key: str) -> bool:
    """Say whether a key names a secret: the whole of it, or what stands after a `_`, a `-` or a camel-case hump."""
    if not key.replace("-", "").replace("_", "").lower().endswith(_ENDINGS):
        return False
    # From the end: `name` is what stands from here on, reduced.
    name = ""
    for at in range(len(key) - 1, -1, -1):
        if key[at] not in "-_":
            name = key[at].lower() + name
            if len(name) > _LONGEST_NAME:
                return False
        if name in SECRET_NAMES and (at == 0 or key[at - 1] in "-_" or _is_hump(key, at)):
            return True
    return False


def is_reference(text: str) -> bool:
    """Say whether the whole text names a secret kept elsewhere: `secret://…`, `vault:…`, `env:…` or `${…}`."""
    return _REFERENCE.fullmatch(text) is not None or _is_placeholder(text)


_REFERENCE: Final = re.compile(r"(?:secret://|vault:|env:)\S+")


def _is_placeholder(text: str) -> bool:
    """Say whether the brace that opens after the leading `$` is the one that ends the text."""
    if not (text.startswith("${") and text.endswith("}") and text[2:-1].strip()):
        return False
    depth = 0
    for at in range(1, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return at == len(text) - 1
    return False


def _is_hump(key: str, at: int) -> bool:
    """Say whether a capital at `at` (not 0) begins a word: `clientSecret`, `v2Secret`, and `DBPassword` at its P."""
    before, here = key[at - 1], key[at]
    if not here.isupper():
        return False
    if before.islower() or before.isdigit():
        return True
    return before.isupper() and key[at + 1 : at + 2].islower()


def _refuse(secret: Secret | None, field: str) -> None:
    if secret is not None:
        raise WorkloadError(
            WORKLOAD_SECRET_MATERIAL,
            f"{field}: secret material at {secret.path} ({secret.rule})",
            {"path": secret.path, "rule": secret.rule},
        )


# The steps to a place, innermost first; kept as a chain, since a path is written out only for what is refused.
_Steps = tuple[Any, str] | None


def _path(steps: _Steps) -> str:
    parts: list[str] = []
    while steps is not None:
        steps, part = steps
        parts.append(part)
    return "$" + "".join(reversed(parts))


def _find(value: object, *, patterns: bool, keyed: bool, excused: Collection[str] = ()) -> Secret | None:
    places = list(_strings(value))
    # No hint spans two strings, since none holds a line break: one look at all of them leaves few rules, or none.
    rules = list(_suspected("\n".join([text for text, _, _ in places]))) if patterns else []
    if not (rules or keyed):
        return None
    for text, steps, secret_key in places:
        if rules and (rule := _first_rule(text, rules)) is not None:
            return Secret(_path(steps), rule)
        if keyed and secret_key and text and text not in excused and not is_reference(text):
            return Secret(_path(steps), NAMED_KEY)
    return None


def _strings(value: object) -> Iterator[tuple[str, _Steps, bool]]:
    """Give every string and key of a JSON value (one that has an end) in document order: its text, its steps, and
    whether a key above it names a secret.

    A key has its mapping's steps and is never itself under a key. Lists hand on what the key above them says; a mapping
    begins anew.
    """
    start: tuple[object, _Steps, bool] = (value, None, False)
    stack: list[Iterator[tuple[object, _Steps, bool]]] = [iter([start])]
    while stack:
        for item, steps, secret_key in stack[-1]:
            if isinstance(item, str):
                yield item, steps, secret_key
            elif isinstance(item, dict):
                stack.append(_members(item, steps))
                break
            elif isinstance(item, (list, tuple)):
                stack.append(_items(item, steps, secret_key))
                break
        else:
            stack.pop()


def _members(mapping: dict[Any, Any], steps: _Steps) -> Iterator[tuple[object, _Steps, bool]]:
    for key, item in mapping.items():
        name = str(key)
        yield name, steps, False
        yield item, (steps, f".{name}"), names_secret(name)


def _items(
    items: list[Any] | tuple[Any, ...], steps: _Steps, secret_key: bool
) -> Iterator[tuple[object, _Steps, bool]]:
    for index, item in enumerate(items):
        yield item, (steps, f"[{index}]"), secret_key


@dataclass(frozen=True, slots=True)
class _Rule:
    """A kind of secret material. Text that holds none of the `hints` need not be searched for `pattern`.

    What is secret is the pattern's group 1 where it has one, else all of it. Every pattern takes time in proportion to
    the text: what it repeats without a bound either ends it, or cannot hold the beginning of another match.
    """

    name: str
    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    accepts: Callable[[re.Match[str]], bool] = lambda match: True
    any_case: bool = False

    def is_suspected(self, text: str) -> bool:
        """Say whether the text holds a hint, in the hint's case unless any case will do."""
        if self.any_case:
            text = text.lower()
        for hint in self.hints:  # noqa: SIM110 - a third of the time of any(), for every text there is
            if hint in text:
                return True
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


def _provider(name: str, hints: str, pattern: str, *, any_case: bool = False) -> _Rule:
    """Return the rule of a provider's key format, which does not begin in the middle of a word."""
    return _Rule(name, tuple(hints.split()), re.compile(rf"(?<![A-Za-z0-9])(?:{pattern})"), any_case=any_case)


_END: Final = r"(?![A-Za-z0-9])"

_RULES: Final = (
    _Rule(
        "private_key",
        ("PRIVATE KEY", "PuTTY-User-Key-File-"),
        re.compile(
            r"(?:-{4,5} ?BEGIN [A-Z0-9 ]{0,40}?PRIVATE KEY(?: BLOCK)? ?-{4,5}|PuTTY-User-Key-File-\d)"
            r"(?:(?s:.*?)-{4,5} ?END [A-Z0-9 ]{0,40}?PRIVATE KEY(?: BLOCK)? ?-{4,5}|(?s:.*))"
        ),
    ),
    _Rule(
        "jwt",
        ("eyJ",),
        # The look ahead comes first, so that a long run without dots is read once, not once for each place in it.
        re.compile(
            r"(?<![A-Za-z0-9_-])(?=[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{2,}\.)"
            r"[A-Za-z0-9_-]*?(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]*"
        ),
    ),
    _Rule(
        "url_password",
        ("://",),
        # Not the port in `["http://a:80","b@c"]`, and not the address in `http://[::1]:80/@`.
        re.compile(r"(?<=[A-Za-z0-9+.-])://([^\s/?#:@\[\]]*:(?!\d{1,5}[\"',;)\]}&|\\])[^\s/?#@]+)@"),
        _has_password,
    ),
    # The look ahead leaves what follows the word to be searched too: `basic basic dTpw`.
    _Rule(
        "bearer",
        ("bearer",),
        re.compile(r"\b(?ai:bearer)[\s:=]+[\"']?(?=([A-Za-z0-9._~+/-]{4,}=*))"),
        _is_bearer,
        any_case=True,
    ),
    _Rule(
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


def _suspected(text: str) -> Iterator[_Rule]:
    """Give the rules, in their order, that the text holds a hint of."""
    return filter(lambda rule: rule.is_suspected(text), _RULES)


def _first_rule(text: str, rules: Iterable[_Rule]) -> str | None:
    for rule in rules:
        if rule.is_suspected(text):
            for _ in rule.spans(text):
                return rule.name
    return None
