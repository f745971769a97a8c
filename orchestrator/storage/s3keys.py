"""Keys that are kept in a file and renewed from outside: each request is signed with what the file holds then."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from threading import Lock

from botocore.credentials import Credentials, ReadOnlyCredentials
from botocore.exceptions import NoCredentialsError


class FileCredentials(Credentials):
    """Credentials for botocore, which asks for them each time it signs.

    A file that is missing or torn leaves the last good keys in force: the bucket says whether they still open anything.
    """

    def __init__(self, path: Path) -> None:
        super().__init__("", "", None, method="tune-file")
        self._path = path
        self._lock = Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._keys: ReadOnlyCredentials | None = None

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """The keys as they are now; NoCredentialsError as long as there have never been any."""
        with self._lock:
            with suppress(OSError, ValueError, KeyError, TypeError):
                self._read_if_new()
            if self._keys is None:
                raise NoCredentialsError
            return self._keys

    def _read_if_new(self) -> None:
        status = self._path.stat()
        stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
        if stamp == self._stamp:
            return
        told = json.loads(self._path.read_bytes())
        key, secret = str(told["access_key_id"]).strip(), str(told["secret_access_key"]).strip()
        if not key or not secret:
            raise ValueError("an empty key")
        self._keys = ReadOnlyCredentials(key, secret, told.get("session_token") or None)
        self._stamp = stamp
