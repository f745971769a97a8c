"""Nothing that leaves the instance holds a secret, in whatever spelling."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

COVER = "[secret]"
SHORTEST = 8  # shorter values are words and numbers that occur everywhere; covering them would hide nothing
SHORTEST_IN_FILES = 16  # a file is left out only for what can be no word; a region or a profile name can


class Redactor:
    """Covers every known secret: as it is, URL-quoted, in JSON, in base64 at any alignment, line by line."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._forms: set[str] = set()
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        """Learn more of them; a renewed key does not make the old one public."""
        for secret in secrets:
            for part in {secret, secret.strip(), *(line.strip() for line in secret.splitlines())}:
                if len(part) >= SHORTEST:
                    self._forms |= _spellings(part)
        longest_first = sorted(self._forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._in_files = tuple(form.encode() for form in longest_first if len(form) >= SHORTEST_IN_FILES)

    @property
    def longest(self) -> int:
        """Characters of the longest spelling: how much a cut must leave out so that no half of one shows."""
        return max(map(len, self._forms), default=0)

    @property
    def longest_in_files(self) -> int:
        """Bytes of the longest spelling that is looked for in files."""
        return max(map(len, self._in_files), default=1)

    def text(self, text: str) -> str:
        """The text with every secret covered."""
        return self._pattern.sub(COVER, text) if self._pattern else text

    def holds_secret(self, data: bytes) -> bool:
        """For files that cannot be altered, only left out."""
        return any(form in data for form in self._in_files)


def _spellings(secret: str) -> set[str]:
    forms = {secret, quote(secret, safe=""), quote(secret), quote_plus(secret)}
    forms |= {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}
    raw = secret.encode()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        forms.add(encode(raw).decode())
        for shift in range(3):
            # Within a longer text ("user:secret") the first and last characters mix with the neighbours.
            body = encode(b"\0" * shift + raw).decode().rstrip("=")
            inner = body[(shift * 8 + 5) // 6 :]
            if (shift + len(raw)) % 3:
                inner = inner[:-1]
            if len(inner) >= SHORTEST:
                forms.add(inner)
    return forms
