"""What no adapter may judge differently from the others: addresses, bodies, and whether a request had left."""

from __future__ import annotations

from decimal import Decimal

import pytest
import requests

from orchestrator.errors import UsageError
from orchestrator.providers import asking
from orchestrator.providers.runpod import credentials as runpod
from orchestrator.providers.vastai import credentials as vastai


@pytest.mark.parametrize("adapter", [runpod, vastai], ids=["runpod", "vastai"])
@pytest.mark.parametrize(
    "bad", ["http://[::1", "ftp://x", "console", "https://", "https://u:p@x", "https://x/?a=b", "https://x/#y"]
)
def test_what_is_no_address_is_refused_in_words_and_not_with_a_traceback(adapter: object, bad: str) -> None:
    made = adapter.base_url  # type: ignore[attr-defined]
    variable = adapter.URL_VARIABLE  # type: ignore[attr-defined]
    for environ, options, source in (({variable: bad}, {}, variable), ({}, {"api_url": bad}, "api_url")):
        with pytest.raises(UsageError, match="is not the address of an API") as told:
            made(environ, options)
        assert source in told.value.message


def test_a_request_that_found_nobody_has_left_nothing_and_one_that_was_cut_may_have() -> None:
    with pytest.raises(requests.ConnectionError) as refused:
        requests.get("http://127.0.0.1:9/", timeout=5)
    assert asking.never_left(refused.value)
    assert not asking.never_left(requests.ReadTimeout("too late"))
    assert not asking.never_left(requests.ConnectionError("reset by peer"))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b" \n", "no body"),
        (b"<!DOCTYPE html><p>502", "a web page"),
        (b"<html>", "a web page"),
        (b"oops", "other text"),
        (b"null", "another JSON than expected"),
        (b"[1]", "another JSON than expected"),
    ],
)
def test_a_body_that_is_not_what_was_asked_for_is_called_by_its_name(body: bytes, kind: str) -> None:
    assert asking.kind_of(body) == kind


def test_money_is_read_as_written_and_what_is_no_number_is_no_json() -> None:
    assert asking.parsed(b'{"usd": 0.1}') == {"usd": Decimal("0.1")}
    for odd in (b"", b"NaN", b'{"a": Infinity}', b"{", b"[" * 100_000):
        assert asking.parsed(odd) is asking.NOT_JSON


def test_a_key_that_is_echoed_does_not_get_into_an_error() -> None:
    said = asking.one_line("no such key:\n  s3cr3t " + "x" * 1000, "s3cr3t")
    assert said.startswith("no such key: *** x")
    assert len(said) == asking.TEXT_CHARS
