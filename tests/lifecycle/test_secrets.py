"""Secret material: section 9 of the contract. Samples are put together from parts, so that no scanner takes them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from workloads.errors import WORKLOAD_SECRET_MATERIAL, WorkloadError
from workloads.lifecycle import secrets
from workloads.lifecycle.secrets import (
    SECRET_NAMES,
    Secret,
    check_keys,
    check_patterns,
    check_text,
    check_value,
    find_in_text,
    find_keyed,
    find_secret,
    is_reference,
    names_secret,
    redact,
)

HEX = "0123456789abcdef"
ALNUM = "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY"
DASHES = "-" * 5


def block(kind: str, *, end: bool = True) -> str:
    begin = f"{DASHES}BEGIN {kind}PRIVATE KEY{DASHES}\nMIIBVgIBADANBgkqhkiG9w0BAQEFAASC\n"
    return begin + (f"{DASHES}END {kind}PRIVATE KEY{DASHES}" if end else "")


def basic(plain: str) -> str:
    return base64.b64encode(plain.encode()).decode()


def segment(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


JWT = f"{segment({'alg': 'HS256', 'typ': 'JWT'})}.{segment({'sub': '1234567890'})}.{ALNUM}"
GITHUB = "ghp" + "_" + ALNUM + "abcd"

SAMPLES: list[tuple[str, str]] = [
    ("private_key", block("")),
    ("private_key", block("RSA ")),
    ("private_key", block("EC ")),
    ("private_key", block("OPENSSH ")),
    ("private_key", block("ENCRYPTED ")),
    ("private_key", block("", end=False)),
    ("private_key", f"{DASHES}BEGIN PGP PRIVATE KEY BLOCK{DASHES}"),
    ("private_key", "-" * 4 + " BEGIN SSH2 ENCRYPTED PRIVATE KEY " + "-" * 4),
    ("private_key", "PuTTY-User-Key-" + "File-3: ssh-ed25519"),
    ("jwt", JWT),
    ("jwt", f"session_{JWT}"),
    ("jwt", JWT.rpartition(".")[0] + "."),
    ("url_password", "postgres://app:hunter2@db.example:5432/app"),
    ("url_password", "https://user:p%40ss@example.com/path"),
    ("url_password", "redis://:hunter2@cache:6379/0"),
    ("url_password", "mysql+pymysql://root:a:b:c@localhost/x"),
    ("url_password", "http://u:8080@host/"),
    ("url_password", "HTTP://u:[x]@host/"),
    ("bearer", f"Bearer {ALNUM}"),
    ("bearer", f"Authorization: Bearer {ALNUM}"),
    ("bearer", f"curl -H 'authorization: bearer {ALNUM}'"),
    ("bearer", "Authorization: Bearer abc123"),
    ("bearer", '{"Authorization":"Bearer abc123"}'),
    ("bearer", "BEARER abcdefghijklmnopqrst"),
    ("bearer", "bearer mF_9.B5f-4.1JqM"),
    ("bearer", "Bearer a.b-c/d+e~f_9=="),
    ("bearer", "Bearer   abcdEfgh.ijkl_mnop"),
    ("bearer", "Authorization: Bearer abc1"),
    ("bearer", "Bearer abcdefg1"),
    ("bearer", "Bearer abcdefghijklmnop"),
    ("basic", f"Basic {basic('user:pass')}"),
    ("basic", f"Authorization: basic {basic('aladdin:opensesame')}"),
    ("basic", f"Basic {basic('aladdin:opensesame').rstrip('=')}"),
    ("basic", f"Basic basic {basic(':p')}"),
    ("basic", f"BASIC {basic('u:é?>~')}"),
    # Written so that a URL may hold it, and with a last letter that is no padding.
    *[("basic", "Basic " + base64.urlsafe_b64encode(plain).decode()) for plain in (b"u:>", b"u:?", b"u:W")],
    ("aws_access_key", "AKIA" + "IOSFODNN7EXAMPLE"),
    ("aws_access_key", "ASIA" + "A" * 16),
    ("aws_secret_key", "AWS_SECRET_ACCESS_KEY=" + "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYEXAMPLEKEY"),
    ("github_token", GITHUB),
    *[("github_token", f"gh{kind}_{'a' * 36}") for kind in "pousr"],
    ("github_token", "github" + "_pat_11ABCDEFG0" + ALNUM),
    ("gitlab_token", "glpat" + "-" + ALNUM[:20]),
    *[("slack_token", f"xox{kind}-" + "123456789012-" + ALNUM) for kind in "abprs"],
    ("slack_webhook", "https://hooks.slack.com/" + "services/T00000000/B00000000/" + ALNUM),
    ("stripe_key", "sk" + "_live_" + ALNUM),
    ("stripe_key", "rk" + "_live_" + ALNUM),
    ("stripe_key", "sk" + "_test_" + ALNUM),
    ("google_key", "AIza" + "SyA-_" + ALNUM[:30]),
    ("google_key", "GOCSPX" + "-" + ALNUM[:28]),
    ("google_key", "ya29" + "." + ALNUM),
    ("openai_key", "sk" + "-" + ALNUM * 2),
    ("openai_key", "sk" + "-proj-" + ALNUM + "_-" + ALNUM),
    ("anthropic_key", "sk" + "-ant-api03-" + ALNUM),
    ("npm_token", "npm" + "_" + ALNUM + "abcd"),
    ("pypi_token", "pypi" + "-AgEIcHlwaS5vcmc" + ALNUM),
    ("sendgrid_key", "SG" + "." + ALNUM[:22] + "." + ALNUM + "abcdefghijk"),
    ("twilio_key", "SK" + HEX * 2),
    ("mailgun_key", "key" + "-" + HEX * 2),
    ("mailchimp_key", HEX * 2 + "-us" + "12"),
    ("azure_key", "DefaultEndpointsProtocol=https;AccountName=x;Account" + "Key=" + ALNUM * 2 + "=="),
    ("digitalocean_token", "dop" + "_v1_" + HEX * 4),
    ("huggingface_token", "hf" + "_" + ALNUM + "ab"),
    ("shopify_token", "shpat" + "_" + HEX * 2),
    ("telegram_token", "123456789" + ":AA" + ALNUM + "a"),
    ("vault_token", "hvs" + "." + ALNUM),
    ("databricks_token", "dapi" + HEX * 2),
    ("grafana_token", "glsa" + "_" + ALNUM + "_abcdef12"),
    ("atlassian_token", "ATATT3" + ALNUM * 2),
    ("doppler_token", "dp" + ".pt." + ALNUM + ALNUM[:8]),
    ("linear_key", "lin" + "_api_" + ALNUM),
    ("postman_key", "PMAK-" + HEX + HEX[:8] + "-" + HEX * 2 + "ab"),
    ("age_key", "AGE-SECRET-" + "KEY-1" + "Q" * 58),
]

INNOCENT = [
    "",
    "bearer of bad news",
    "the bearer token expired",
    "Bearer authentication is required",
    "Bearer authentication-required for this",
    'WWW-Authenticate: Bearer error="invalid_token"',
    "Bearer abcdef1",
    "Bearer abcdefghijklmno",
    "forbearer 12345678901234567890",
    "Bearer <token>",
    "Bearer ${TOKEN}",
    "Basic authentication failed",
    "a basic understanding",
    "Basic " + basic("no colon here"),
    "Basic " + basic("user:"),
    "Basic " + base64.b64encode(b"\xff\xfe:\x00").decode(),
    "Basic ${CREDENTIALS}",
    "https://example.com:8080/path",
    "https://user@example.com/",
    "https://user:@example.com/",
    "https://example.com/a:b@c",
    "https://example.com:443/?q=a:b@c",
    "https://example.com?x=a:b@c",
    "http://[::1]:8080/a@b",
    '["http://a:80","me@example.com"]',
    "mailto:me@example.com",
    "https://user:***@example.com",
    "https://user:xxxxx@example.com",
    "postgres://app:${PASSWORD}@db/app",
    "https://{user}:{password}@example.com",
    "https://user:[redacted]@example.com",
    "see http://a:80 or me@example.com",
    f"{DASHES}BEGIN PUBLIC KEY{DASHES}",
    f"{DASHES}BEGIN CERTIFICATE{DASHES}",
    "the private key was not found",
    "eyJ.a.b",
    "eyJhbGciOiJIUzI1NiJ9",
    "AKIA",
    "AKIA" + "A" * 15,
    "AKIA" + "A" * 17,
    "XAKIA" + "A" * 16,
    "ghp_short",
    "alughp_" + "a" * 36,
    "sk-learn is a library; sk-folding-cube-and-other-spinners",
    "pk_live_" + "a" * 24,
    "npm_config_registry",
    "pypi-simple-index",
    "task SK12, key-value, focus-us1",
    "0" * 64,
    "d41d8cd98f00b204e9800998ecf8427e",
    "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
    "password: see the vault",
]


def refusal(found: WorkloadError) -> dict[str, Any]:
    assert found.code == WORKLOAD_SECRET_MATERIAL
    assert found.details is not None
    assert set(found.details) == {"path", "rule"}
    return found.details


@pytest.mark.parametrize(("rule", "sample"), SAMPLES)
def test_secret_material_is_refused_wherever_it_stands(rule: str, sample: str) -> None:
    assert find_in_text(sample) == rule
    assert find_in_text(f"It failed:\n({sample}") == rule
    with pytest.raises(WorkloadError) as caught:
        check_text(f"é {sample}", field="error")
    assert refusal(caught.value) == {"path": "$", "rule": rule}
    with pytest.raises(WorkloadError) as caught:
        check_patterns({"x": 1, "a": {"b": ["ok", (sample,)]}}, field="input")
    assert refusal(caught.value) == {"path": "$.a.b[1][0]", "rule": rule}


@pytest.mark.parametrize(("rule", "sample"), SAMPLES)
def test_a_key_of_secret_material_is_named_by_its_mapping(rule: str, sample: str) -> None:
    assert find_secret({"a": [0, {"ok": 1, sample: None}]}) == Secret("$.a[1]", rule)


@pytest.mark.parametrize(("rule", "sample"), SAMPLES)
def test_the_error_tells_nothing_of_the_secret(rule: str, sample: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        check_value({"a": sample}, field="output", scopes=())
    told = f"{caught.value} {caught.value.details}"
    assert sample not in told
    for part in sample.split():
        assert len(part) < 8 or part not in told
    assert "output" in caught.value.message


@pytest.mark.parametrize(("rule", "sample"), SAMPLES)
def test_redaction_leaves_the_rest(rule: str, sample: str) -> None:
    after = "" if rule == "private_key" and "END" not in sample else " after"
    redacted = redact(f"before {sample}{after}")
    assert redacted.startswith("before ")
    assert redacted.endswith(after)
    assert "[redacted]" in redacted
    assert find_in_text(redacted) is None


@pytest.mark.parametrize("text", INNOCENT)
def test_innocent_text_passes_unchanged(text: str) -> None:
    assert find_in_text(text) is None
    assert redact(text) == text
    check_text(text, field="reason")
    check_patterns({"text": text, text: 1}, field="input")


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("postgres://app:hunter2@db/app refused", "postgres://[redacted]@db/app refused"),
        (f"Authorization: Bearer {ALNUM}, twice {ALNUM}", f"Authorization: Bearer [redacted], twice {ALNUM}"),
        (f"Basic {basic('u:p')};", "Basic [redacted];"),
        (f"a {GITHUB} b {GITHUB} c", "a [redacted] b [redacted] c"),
        (f"{block('')}\nafter", "[redacted]\nafter"),
        (f"{block('', end=False)}\nafter", "[redacted]"),
        (f"x {block('')} y {block('RSA ')} z", "x [redacted] y [redacted] z"),
        (f"http://u:{GITHUB}@h and {JWT}", "http://[redacted]@h and [redacted]"),
    ],
)
def test_what_redaction_writes(text: str, redacted: str) -> None:
    assert redact(text) == redacted


FRAGMENTS = st.sampled_from(
    [sample for _, sample in SAMPLES]
    + [sample[: len(sample) // 2] for _, sample in SAMPLES]
    + [sample[len(sample) // 2 :] for _, sample in SAMPLES]
    + ["Bearer ", "basic ", "://", ":", "@", "a", "-", "_", ".", " ", "\n", '"', "[redacted]", "eyJ", "=", DASHES]
)


@given(st.lists(FRAGMENTS | st.text(max_size=5), max_size=12).map("".join))
def test_redacted_text_passes_and_redacting_it_again_changes_nothing(text: str) -> None:
    redacted = redact(text)
    check_text(redacted, field="error")
    assert redact(redacted) == redacted
    if find_in_text(text) is None:
        assert redacted == text


NAMES_SECRET = [
    *SECRET_NAMES,
    *[name.upper() for name in SECRET_NAMES],
    "db_password",
    "service_api_key",
    "googleClientSecret",
    "DBPassword",
    "Password",
    "pass_word",
    "PASS-WORD",
    "api_key",
    "api-key",
    "apiKey",
    "X-API-Key",
    "myAPIKey",
    "my_api_key",
    "Set-Cookie",
    "set_cookie",
    "client_secret",
    "clientSecret",
    "clientSe_cret",
    "GOOGLE_CLIENT_SECRET",
    "userIDToken",
    "OAuthToken",
    "oauth2Credentials",
    "DB2PASSWORD",
    "aws_secret_access_key",
    "AWSSecretKey",
    "Proxy-Authorization",
    "_password",
    "password_",
    "-_password_-",
    "a.b_secret",
    "élanSecret",
    "refresh-token",
    "DBPaSSword",
]

NAMES_NONE = [
    "",
    "_",
    "-",
    "tokens_used",
    "secretary",
    "passwordless",
    "passwords",
    "password2",
    "password_hash",
    "secret_id",
    "token",
    "access_tokens",
    "key",
    "author",
    "authorizations",
    "cookies",
    "cookie_name",
    "mypassword",
    "dbpassword",
    "DBPASSWORD",
    "my.password",
    "my.Password",
    "nosecret",
    "unsecret",
    "noSecretary",
    "compassWord",
    "encompass_word",
    "monkeyapi_key2",
    "fooXapikey",
    "DBP-assword",
    "apikeys",
    "x" * 300_000 + "password",
    "_" * 300_000,
    "a_" * 150_000,
]


@pytest.mark.parametrize("rounds", [0, 1])
def test_text_that_no_round_of_redaction_clears_goes_altogether(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # No text is known that needs more rounds than there are.
    monkeypatch.setattr(secrets, "_REDACTION_ROUNDS", rounds)
    assert redact("plain") == "plain"
    assert redact(f"a {GITHUB} b") == ("a [redacted] b" if rounds else "[redacted]")


@pytest.mark.parametrize("key", NAMES_SECRET)
def test_keys_that_name_a_secret(key: str) -> None:
    assert names_secret(key)
    assert find_keyed({"a": {key: "hunter2"}}) == Secret(f"$.a.{key}", "named_key")


@pytest.mark.parametrize("key", NAMES_NONE, ids=lambda key: key[:20])
def test_keys_that_name_none(key: str) -> None:
    assert not names_secret(key)
    assert find_keyed({key: "hunter2"}) is None


def test_a_long_key_may_name_a_secret() -> None:
    assert names_secret("x" * 300_000 + "_pass" + "_" * 300_000 + "word")


def reference_names_secret(key: str) -> bool:
    """The rule of section 9, read word by word."""
    rests = [key]
    for at in range(1, len(key)):
        before, here, after = key[at - 1], key[at], key[at + 1 : at + 2]
        hump = here.isupper() and (before.islower() or before.isdigit() or (before.isupper() and after.islower()))
        if before in "_-" or hump:
            rests.append(key[at:])
    return any(rest.replace("-", "").replace("_", "").lower() in SECRET_NAMES for rest in rests)


WORDS = st.sampled_from([*SECRET_NAMES, "db", "API", "key", "Key", "Pass", "word", "ID", "x", "9", "é", ".", "_", "-"])


@given(
    st.lists(WORDS.flatmap(lambda w: st.sampled_from([w, w.upper(), w.title(), w.lower()])), max_size=5).map("".join)
)
def test_keys_are_judged_as_the_contract_says(key: str) -> None:
    assert names_secret(key) is reference_names_secret(key)


@pytest.mark.parametrize("value", [1, 0, 1.5, True, False, None, "", [], {}, [1, None, ""], [[]]])
def test_numbers_booleans_null_and_empty_strings_pass_under_such_keys(value: Any) -> None:
    assert find_secret({"password": value}) is None


REFERENCES = [
    "secret://db/main",
    "vault:kv/db#password",
    "env:DB_PASSWORD",
    "${DB_PASSWORD}",
    "${a.b}",
    "${A:-${B}}",
    "${{ secrets.DB }}",
]


@pytest.mark.parametrize("value", REFERENCES)
def test_references_pass_under_such_keys(value: str) -> None:
    assert is_reference(value)
    check_value({"password": value, "apiKey": [[value]]}, field="input", scopes=())


@pytest.mark.parametrize(
    "value",
    [
        "hunter2",
        " ",
        "secret://",
        "vault:",
        "env:",
        "${}",
        "${ }",
        "${A}x",
        "x${A}",
        "${A}${B}",
        "${A",
        "$A",
        "$}",
        "{A}",
        "secret:x",
        "xvault:x",
        "vault: hunter2",
        "env:A\nhunter2",
        " env:A",
        "Secret://x",
        "environment",
    ],
)
def test_what_is_no_reference_is_refused_under_such_keys(value: str) -> None:
    assert not is_reference(value)
    assert find_keyed({"password": value}) == Secret("$.password", "named_key")


def test_scopes_excuse_what_stands_under_a_key() -> None:
    value = {"credentials": ["scope-a", "scope-b"]}
    check_keys(value, field="input", scopes=frozenset({"scope-a", "scope-b"}))
    check_value(value, field="input", scopes=frozenset({"scope-a", "scope-b"}))
    with pytest.raises(WorkloadError) as caught:
        check_keys(value, field="input", scopes=frozenset({"scope-a"}))
    assert refusal(caught.value) == {"path": "$.credentials[1]", "rule": "named_key"}
    assert find_keyed({"secret": "scope"}, excused={"scope-a"}) is not None


def test_scopes_do_not_excuse_secret_material_itself() -> None:
    assert find_secret({"password": GITHUB}, excused={GITHUB}) == Secret("$.password", "github_token")


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"password": "x"}, "$.password"),
        ({"a": {"b": [{"password": "x"}]}}, "$.a.b[0].password"),
        ({"password": ["x"]}, "$.password[0]"),
        ({"password": [1, "", [None, ["${A}", "x"]]]}, "$.password[2][1][1]"),
        ({"password": (0, ("x",))}, "$.password[1][0]"),
        ({"password": {"hint": "x"}}, None),
        ({"password": [{"hint": "x"}]}, None),
        ({"password": {"hint": ["x"]}}, None),
        ({"password": {"hint": "x", "secret": "y"}}, "$.password.secret"),
        ({"password": [{"list": ["x"]}, "y"]}, "$.password[1]"),
        (["password", "x"], None),
        ("password", None),
        ({"a.b": {"secret": "x"}}, "$.a.b.secret"),
    ],
)
def test_strings_in_lists_count_and_objects_begin_anew(value: Any, path: str | None) -> None:
    found = find_keyed(value)
    assert found == (None if path is None else Secret(path, "named_key"))


def test_the_two_kinds_of_rule_can_be_asked_apart() -> None:
    value = {"password": "hunter2", "note": GITHUB}
    assert find_keyed(value) == Secret("$.password", "named_key")
    with pytest.raises(WorkloadError) as caught:
        check_patterns(value, field="input")
    assert refusal(caught.value) == {"path": "$.note", "rule": "github_token"}
    check_patterns({"password": "hunter2"}, field="input")
    check_keys({"note": GITHUB}, field="input", scopes=())


def test_the_first_in_document_order_is_named() -> None:
    assert find_secret({"z": {"password": "x"}, "a": GITHUB}) == Secret("$.z.password", "named_key")
    assert find_secret({"z": GITHUB, "a": {"password": "x"}}) == Secret("$.z", "github_token")
    assert find_secret([[GITHUB], f"Bearer {ALNUM}"]) == Secret("$[0][0]", "github_token")
    assert find_secret([{"k": [[], {}, "v"]}, f"Bearer {ALNUM}", GITHUB]) == Secret("$[1]", "bearer")


def test_secret_material_is_not_put_together_from_two_strings() -> None:
    assert find_secret(["Bearer", ALNUM]) is None
    assert find_secret([GITHUB[:8], GITHUB[8:]]) is None


def test_deep_values_are_walked_without_recursion() -> None:
    value: Any = GITHUB
    for _ in range(100_000):
        value = [value]
    found = find_secret({"a": value})
    assert found == Secret("$.a" + "[0]" * 100_000, "github_token")


MEGABYTE = 1_000_000
HOSTILE = [
    "a",
    "-",
    " ",
    "://",
    "a://",
    "://a:",
    "://:a",
    "a://b:c",
    "a-",
    "a.",
    "eyJ",
    "eyJ-",
    "eyJ.",
    "eyJaaaaaaaa.",
    "eyJaaaaaaaa-",
    "eyJaaaaaaaa..",
    "bearer ",
    "bearer",
    "bearer:=",
    "bearer a",
    "bearer/",
    "authorization: bearer ",
    "authorization:",
    "basic ",
    "basic a",
    "basic/basic ",
    "basic=",
    f"{DASHES}BEGIN ",
    f"{DASHES}BEGIN A PRIVATE KEY",
    f"{DASHES}END PRIVATE KEY{DASHES}",
    f"{DASHES}BEGIN PRIVATE KEY{DASHES}",
    "sk-",
    "sk-ant-",
    "sk-proj-",
    "SG.",
    "SG.aaaaaaaaaaaaaaaaa-",
    "xoxb-",
    "pypi-",
    "AKIA",
    "ghp_",
    "0123456789abcdef",
    "0123456789:AA",
    "secret_access_key= ",
    "secret_access_key=aaaaaaaaaaaaaaaa/",
    "glc_",
    "dp.pt.",
    "[redacted]",
    "${",
    "}",
    "\0",
    "é",
]


@pytest.mark.parametrize("unit", HOSTILE)
@pytest.mark.parametrize(
    ("head", "length"),
    [("", MEGABYTE), ("bearer ", 200_000), ("a://u:", 200_000), ("eyJ", 200_000), (block("", end=False), 200_000)],
)
def test_hostile_text_is_searched_in_time_that_grows_with_its_length(head: str, length: int, unit: str) -> None:
    """No clock is read: what takes the square of a megabyte does not come to an end."""
    text = head + unit * (length // len(unit))
    redacted = redact(text)
    assert find_in_text(redacted) is None
    assert (redacted == text) is (find_in_text(text) is None)


@pytest.mark.parametrize(
    "text", ["${" * 500_000, "${" + "{}" * 500_000, "env:" + " " * MEGABYTE, "${" + "}" * MEGABYTE]
)
def test_hostile_text_is_no_reference(text: str) -> None:
    assert not is_reference(text)
