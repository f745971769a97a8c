"""Secrets that sing: values which open nothing, and a search for every place where one of them has turned up."""

from __future__ import annotations

import base64
import binascii
import gzip
import re
import secrets
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

KINDS = ("VAST_API_KEY", "RUNPOD_API_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "WANDB_API_KEY")
_PACKED = re.compile(rb"H4sI[A-Za-z0-9+/]{20,}={0,2}")  # gzip in base64, as start commands are sent
_SHORTEST = 12  # below that a value turns up by chance


def _drawn() -> dict[str, str]:
    return {name: f"canary-{name.lower().replace('_', '-')}-{secrets.token_hex(8)}" for name in KINDS}


@dataclass(frozen=True)
class Canaries:
    """One value per secret, drawn anew each time."""

    values: Mapping[str, str] = field(default_factory=_drawn)

    def with_value(self, name: str, value: str) -> Canaries:
        """One more to look for: a key that a marketplace has made up."""
        assert len(value) >= _SHORTEST
        return Canaries({**self.values, name: value})

    def sightings(self, places: Iterable[tuple[str, bytes]]) -> list[str]:
        """`HF_TOKEN in bucket: runs/…`, for everything found, plain, packed or encoded."""
        forms = {name: set(_forms(value)) for name, value in self.values.items()}
        found = []
        for place, data in places:
            text = b"\n".join(_opened(data))
            found += [f"{name} in {place}" for name, shapes in forms.items() if any(shape in text for shape in shapes)]
        return found


def _forms(value: str) -> Iterator[bytes]:
    plain = value.encode()
    yield plain
    yield urllib.parse.quote(value, safe="").encode()
    yield plain.hex().encode()
    for lead in range(3):  # base64 looks different for each position in a group of three bytes
        whole = base64.b64encode(b"\0" * lead + plain)
        yield whole[4 if lead else 0 :].rstrip(b"=")[:-1]


def _opened(data: bytes) -> Iterator[bytes]:
    """The data, and whatever is packed in it."""
    yield data
    if data[:2] == b"\x1f\x8b":
        yield from _gunzipped(data)
    for found in _PACKED.findall(data):
        try:
            packed = base64.b64decode(found)
        except binascii.Error:
            continue
        yield from _gunzipped(packed)


def _gunzipped(data: bytes) -> Iterator[bytes]:
    try:
        yield from _opened(gzip.decompress(data))
    except (OSError, EOFError, ValueError):
        return
