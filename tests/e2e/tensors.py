"""Reading an adapter without the program under test."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path


def tensor_hashes(path: Path) -> dict[str, str]:
    """Name -> sha256 of dtype, shape and bytes, straight from the safetensors layout."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    body = memoryview(data)[8 + length :]
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        digest = hashlib.sha256(f"{entry['dtype']}{entry['shape']}".encode())
        digest.update(body[begin:end])
        found[name] = digest.hexdigest()
    assert found
    return found
