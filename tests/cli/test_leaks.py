"""What looks like a secret does not leave this computer, and is not printed by it."""

from __future__ import annotations

import pytest

from orchestrator.cli.redact import harmless, redact
from orchestrator.leaks import Scanner, suspicious_name

AWS_ID = "AKIA" + "IOSFODNN7" + "ABCDEFG"  # in pieces, so that no scanner trips over this file


@pytest.mark.parametrize(
    "name",
    [
        ".env", "data/.env.local", ".netrc", "keys/id_rsa", "id_ed25519", "server.pem", "a/b.KEY", ".aws/credentials",
        "home/.ssh/config", "repo/.git/config", "secrets.yaml", "credentials.json", "store.p12",
    ],
)  # fmt: skip
def test_files_that_usually_hold_secrets_are_known_by_name(name: str) -> None:
    assert suspicious_name(name)


@pytest.mark.parametrize(
    "name", ["data.jsonl", "id_rsa.pub", "environment.json", "key.txt", "my.env.d/readme", "pem.jsonl", "git/log.txt"]
)
def test_ordinary_files_are_not(name: str) -> None:
    assert not suspicious_name(name)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("-----BEGIN OPENSSH " + "PRIVATE KEY-----", "a private key"),
        (f"id = {AWS_ID}", "an AWS key id"),
        ("aws_secret_access_key" + " = " + "a1B2" * 10, "an AWS secret key"),
        ("hf_" + "aB3d" * 9, "a Hugging Face token"),
        ("ghp_" + "aB3d" * 9, "a GitHub token"),
        ("sk-" + "proj-aB3d" * 9, "an API key"),
        ("rpa_" + "AB3D" * 9, "an API key"),
    ],
)
def test_keys_are_found_wherever_they_stand(text: str, what: str) -> None:
    scanner = Scanner()
    scanner.feed(b"x" * 5000 + b"\n" + text.encode() + b"\n" + b"y" * 5000)
    assert scanner.found == what


@pytest.mark.parametrize("cut", range(1, 20, 3))
def test_a_key_on_the_edge_between_two_pieces_is_found(cut: int) -> None:
    text = f" {AWS_ID} ".encode()
    scanner = Scanner()
    scanner.feed(b"x" * 1000 + text[:cut])
    assert not scanner.found
    scanner.feed(text[cut:] + b"y" * 1000)
    assert scanner.found


def test_a_secret_of_this_computer_is_found_in_any_form_of_file() -> None:
    scanner = Scanner([("correct horse battery", "MY_TOKEN")])
    scanner.feed(b"\x00\xffcorrect hor")
    scanner.feed(b"se battery\x00")
    assert scanner.found == "the value of $MY_TOKEN"


def test_ordinary_text_is_not_taken_for_a_key() -> None:
    scanner = Scanner()
    scanner.feed(b"The AKIA prefix, hf_short, sk-learn and -----BEGIN CERTIFICATE----- are all fine. " * 50)
    assert scanner.found == ""


def test_the_values_of_secret_variables_are_replaced_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "abcdef-123456")
    monkeypatch.setenv("LONGER_SECRET", "abcdef-123456-and-more")
    monkeypatch.setenv("SSL_KEY_FILE_TOKEN_PATH", "/etc/keys")
    said = redact("GET /?key=abcdef-123456&x=abcdef-123456-and-more from /etc/keys")
    assert said == "GET /?key=[SOME_API_KEY]&x=[LONGER_SECRET] from /etc/keys"


def test_short_values_are_left_alone_for_they_would_blank_out_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMPTY_TOKEN", "")
    monkeypatch.setenv("TINY_TOKEN", "a")
    assert redact("a banana") == "a banana"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("50%\r100%\r\n", "50%\n100%\n"),
        ("bell\x07 null\x00 \x9b31m", "bell null 31m"),
        ("tab\tand ünïcode stay", "tab\tand ünïcode stay"),
    ],
)
def test_nothing_that_is_printed_steers_the_terminal(text: str, shown: str) -> None:
    assert harmless(text) == shown
