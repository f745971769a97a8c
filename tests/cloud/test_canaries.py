"""A search that finds nothing proves nothing unless it would have found something."""

from __future__ import annotations

import base64
import gzip
import urllib.parse

import pytest

from tests.cloud.canaries import Canaries

VALUE = "canary value/with+odd=characters"
CANARIES = Canaries({"HF_TOKEN": VALUE})


@pytest.mark.parametrize(
    "hidden",
    [
        VALUE.encode(),
        b"export HF_TOKEN=" + VALUE.encode() + b"\n",
        urllib.parse.quote(VALUE, safe="").encode(),
        VALUE.encode().hex().encode(),
        *(base64.b64encode(b"Basic user:"[:n] + VALUE.encode() + b" and more"[:n]) for n in range(9)),
        gzip.compress(VALUE.encode(), mtime=0),
        b"f=$(mktemp) && echo "
        + base64.b64encode(
            gzip.compress(b"x='" + base64.b64encode(gzip.compress(VALUE.encode(), mtime=0)) + b"'", mtime=0)
        )
        + b"|base64 -d|gzip -dc>$f",
    ],
)
def test_a_secret_is_found_however_it_is_wrapped(hidden: bytes) -> None:
    assert CANARIES.sightings([("nothing", b"canary"), ("there", hidden)]) == ["HF_TOKEN in there"]


def test_what_only_looks_packed_is_no_trouble() -> None:
    assert CANARIES.sightings([("a", b"H4sI" + b"A" * 41), ("b", b"\x1f\x8b broken"), ("c", b"")]) == []


def test_drawn_values_are_never_the_same() -> None:
    assert not set(Canaries().values.values()) & set(Canaries().values.values())
