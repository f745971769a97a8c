"""A large file in parts: how many, how large, how many at a time, and the bytes of each."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.errors import StorageError
from orchestrator.storage.oserrors import translated

MIB = 1 << 20
GIB = 1 << 30
MAX_OBJECT_BYTES = 5 << 40  # S3's limits, here and below
MAX_PARTS = 10_000
PART_BYTES = 16 * MIB  # up to here one request is quickest; S3 would take 5 GiB
AT_ONCE = 8  # transfers per store, whichever files they belong to; more would wait for one another on the same line
_IN_FLIGHT_BYTES = GIB  # part size times concurrency: what a failure may cost to send again


@dataclass(frozen=True, slots=True)
class PartPlan:
    """How a file of `size` is sent: `parts` of `part_size`, the last one shorter, `concurrency` at a time."""

    size: int
    part_size: int
    parts: int
    concurrency: int

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """(part number from 1, offset, length)."""
        for number in range(self.parts):
            offset = number * self.part_size
            yield number + 1, offset, min(self.part_size, self.size - offset)


def part_plan(size: int) -> PartPlan:
    """Within S3's limits for any size up to 5 TiB. One part means a plain put."""
    if size > MAX_OBJECT_BYTES:
        raise StorageError(f"{size} bytes are more than S3 stores in one object (5 TiB)", hint="split the file")
    smallest = -(-size // MAX_PARTS)
    part_size = max(PART_BYTES, -(-smallest // MIB) * MIB)
    parts = max(1, -(-size // part_size))
    return PartPlan(size, part_size, parts, max(1, min(AT_ONCE, parts, _IN_FLIGHT_BYTES // part_size)))


class Section(io.RawIOBase):
    """A stretch of an open file as a file of its own; several may be read at once. Holds nothing in memory."""

    def __init__(self, fd: int, offset: int, length: int) -> None:
        super().__init__()
        self._fd = fd
        self._offset = offset
        self._length = length
        self._at = 0

    def __len__(self) -> int:
        return self._length

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._length - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        with translated("read the file that is being uploaded"):
            data = os.pread(self._fd, wanted, self._offset + self._at) if wanted else b""
        if wanted and not data:
            raise StorageError("the file became shorter while it was uploaded", hint="upload it again")
        self._at += len(data)
        return data
