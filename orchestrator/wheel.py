"""A wheel of this very package, made from the files that are running now, for the agent on an instance."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from orchestrator import __version__

DISTRIBUTION = "spot_tune"
_ROOMS = ("agent", "storage")  # folders that the agent needs; of the top level it gets every module
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same bytes whenever it is made


def file_name() -> str:
    """As installers want it."""
    return f"{DISTRIBUTION}-{__version__}-py3-none-any.whl"


@cache
def build() -> bytes:
    """The wheel. Deterministic: equal packages give equal bytes."""
    contents = dict(_modules())
    info = f"{DISTRIBUTION}-{__version__}.dist-info"
    contents[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: spot-tune\nVersion: {__version__}\n".encode()
    contents[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: spot-tune\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in contents.items())
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in contents.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return out.getvalue()


def _modules() -> Iterator[tuple[str, bytes]]:
    package = Path(__file__).parent
    folders = [package, *(package / room for room in _ROOMS)]
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.suffix in (".py", ".sh"):
                yield f"{package.name}/{path.relative_to(package).as_posix()}", path.read_bytes()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
