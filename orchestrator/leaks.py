"""What looks like a secret is not sent to a stranger's computer without being asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_NAMES = re.compile(
    r"(?:^|/)(?:\.env(?:\.[^/]*)?|\.envrc|[._]?netrc|\.git-credentials|\.npmrc|\.pypirc|\.pgpass|\.htpasswd"
    r"|id_(?:rsa|dsa|ecdsa|ed25519)(?:\.(?!pub$)[^/]*)?|credentials(?:\.json)?|secrets?\.(?:json|ya?ml|toml|env)|kubeconfig"
    r"|[^/]+\.(?:pem|p12|pfx|key|keystore|jks|ppk|kdbx))$"
    r"|(?:^|/)\.(?:aws|ssh|gnupg|azure|kube|docker|git)(?:/|$)",
    re.IGNORECASE,
)
_TEXTS = {
    "a_private_key": rb"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----",
    "an_AWS_key_id": rb"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "an_AWS_secret_key": rb"(?i:aws_secret_access_key[\"']?\s{0,4}[=:]\s{0,4}[\"']?[A-Za-z0-9/+]{40})",
    "a_Hugging_Face_token": rb"\bhf_[A-Za-z0-9]{30,128}",
    "a_GitHub_token": rb"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{40,128})",
    "an_API_key": rb"\b(?:sk-[A-Za-z0-9_-]{40,128}|rpa_[A-Z0-9]{30,128}"
    rb"|AIza[A-Za-z0-9_-]{35}|xox[abprs]-[A-Za-z0-9-]{20,128})",
}
_TEXT = re.compile(b"|".join(b"(?P<" + name.encode() + b">" + pattern + b")" for name, pattern in _TEXTS.items()))
_OVERLAP = 256  # longer than any match that counts: none hides on the edge between two chunks


def suspicious_name(path: str) -> bool:
    """Whether a file of that name usually holds a secret."""
    return bool(_NAMES.search(path))


class Scanner:
    """Looks for keys in a file that is read piece by piece."""

    def __init__(self, own_secrets: Iterable[tuple[str, str]] = ()) -> None:
        """`own_secrets`: (value, variable) pairs of this computer, which no uploaded file may hold."""
        self._own: Sequence[tuple[bytes, str]] = [
            (value.encode(errors="surrogateescape"), name) for value, name in own_secrets
        ]
        self._rest = b""
        self.found = ""

    def feed(self, chunk: bytes) -> None:
        """Look at the next piece; `found` says in words what was seen first."""
        if self.found:
            return
        window = self._rest + chunk
        match = _TEXT.search(window)
        if match:
            self.found = (match.lastgroup or "a_key").replace("_", " ")
        for value, name in self._own:
            if value in window:
                self.found = f"the value of ${name}"
        self._rest = window[-max([_OVERLAP, *(len(value) for value, _ in self._own)]) :]
