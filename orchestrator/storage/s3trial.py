"""The parts of S3's language that only large files need, tried one by one."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from typing import Any

from orchestrator.errors import ObjectNotFound
from orchestrator.storage.s3client import Connection
from orchestrator.storage.s3parts import MIB, PartPlan
from orchestrator.storage.s3upload import Multipart

PART_BYTES = 5 * MIB  # the smallest that S3 takes: enough to be stopped by a proxy that takes only small bodies


class Trial:
    """Calls that a store may lack, or keys may not be allowed. Each raises StorageError when it is refused."""

    def __init__(self, connection: Connection, bucket: str, prefix: str, multipart: Multipart) -> None:
        self._connection = connection
        self._bucket = bucket
        self._prefix = prefix
        self._multipart = multipart

    def parts(self, key: str) -> None:
        """Upload two parts, and have them joined."""
        plan = PartPlan(PART_BYTES + 1, PART_BYTES, parts=2, concurrency=1)
        with tempfile.TemporaryFile() as file:
            file.write(os.urandom(plan.size))
            file.flush()
            self._multipart.send(key, file.fileno(), plan, None)

    def unfinished(self, folder: str) -> None:
        """Ask for the uploads below a folder that were begun and never ended."""
        where: Any = {"Bucket": self._bucket, "Prefix": self._prefix + folder}
        self._connection.call(lambda c: c.list_multipart_uploads(**where), doing="list unfinished uploads")

    def abort(self, key: str) -> None:
        """Begin an upload and give it up. What stays when that is refused is an empty upload."""
        where: dict[str, Any] = {"Bucket": self._bucket, "Key": self._prefix + key}
        begun = self._connection.call(lambda c: c.create_multipart_upload(**where), doing=f"begin the upload of {key}")
        where["UploadId"] = begun["UploadId"]
        with suppress(ObjectNotFound):
            self._connection.call(lambda c: c.abort_multipart_upload(**where), doing="abort an unfinished upload")
