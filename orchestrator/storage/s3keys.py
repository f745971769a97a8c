"""Keys that are kept in a file and renewed from outside: each request is signed with what the file holds then."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Lock
from typing import Any

from botocore.credentials import Credentials, ReadOnlyCredentials


class FileCredentials(Credentials):
    """Credentials for botocore. A file that is missing or torn leaves the last good keys in force."""

    def __init__(self, path: Path) -> None:
        super().__init__("", "", None, method="tune-file")
        self._path = path
        self._lock = Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._keys = ReadOnlyCredentials("", "", None)
        self.get_frozen_credentials()

    def get_frozen_credentials(self) -> Any:
        """The keys as they are now."""
        with self._lock:
            try:
                status = self._path.stat()
                stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
                if stamp != self._stamp:
                    told = json.loads(self._path.read_bytes())
                    self._keys = ReadOnlyCredentials(
                        told["access_key_id"], told["secret_access_key"], told.get("session_token") or None
                    )
                    self._stamp = stamp
            except (OSError, ValueError, KeyError, TypeError):
                pass
            self.access_key, self.secret_key = self._keys.access_key, self._keys.secret_key
            self.token = self._keys.token  # type: ignore[assignment]  # None for keys that do not expire
            return self._keys
