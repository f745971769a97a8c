"""One transfer in a process of its own, as `upload` measures it: what the agent does, what the store does, what boto3 does."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator import codec, keys
from orchestrator.agent.bucket import Bucket
from orchestrator.agent.files import download
from orchestrator.agent.home import Home
from orchestrator.agent.parallel import in_parallel
from orchestrator.agent.publishing import Local, Publishing
from orchestrator.agent.redact import Redactor
from orchestrator.agent.supervise import Supervisor
from orchestrator.clock import SystemClock
from orchestrator.handover import AgentConfig
from orchestrator.storage.base import Store
from orchestrator.storage.open import open_store
from orchestrator.types import CheckpointManifest, StoredFile

RUN_ID = "20260101-000000-bench"
SECRETS = ("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "hf_abcdefghijklmnopqrstuvwxyz")
FILES_AT_ONCE = 10  # boto3 sends one file per call; `aws s3 cp` has ten requests under way (`max_concurrent_requests`)


def agent(folder: Path, url: str) -> Callable[[], None]:
    """Every file hashed, searched and stored, the manifest written, everything it names looked at, old ones pruned."""
    assert Supervisor, "all that runs on an instance is in memory as well"
    home = Home(Path(tempfile.mkdtemp()))
    config = AgentConfig(RUN_ID, 1, url, "r" * 64, "d" * 64)
    redactor = Redactor(SECRETS)
    bucket = Bucket(config, home, redactor, clock=SystemClock(), open_store=lambda: open_store(url))
    publishing = Publishing(bucket, redactor, note=print)
    bucket.store.now()  # connected, as it is long before the first checkpoint

    def run() -> None:
        publishing.require_command()
        files = publishing.upload(Local(path.name, path) for path in sorted(folder.iterdir()))
        now = SystemClock().now()
        publishing.publish_checkpoint(CheckpointManifest(RUN_ID, 1, 2, 1, now, files, "r" * 64, "d" * 64, 1, 1))
        publishing.prune(keep=2)

    return run


def store(folder: Path, url: str) -> Callable[[], None]:
    """The bytes alone, several files at a time."""
    opened = open_store(url)
    opened.now()
    files = sorted(folder.iterdir())
    return lambda: _ignore(in_parallel(lambda path: opened.upload(f"runs/{RUN_ID}/{path.name}", path), files))


def boto3(folder: Path, url: str) -> Callable[[], None]:
    """`upload_file` as it comes: ten parts of 8 MiB at a time; and ten files at a time."""
    client, (bucket, prefix) = _client(), _split(url)
    files = sorted(folder.iterdir())

    def run() -> None:
        with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            list(pool.map(lambda path: client.upload_file(str(path), bucket, f"{prefix}/{path.name}"), files))

    return run


def restore(folder: Path, url: str) -> Callable[[], None]:
    """What `agent` has stored comes back to a new disk, every file checked against its hash."""
    opened = open_store(url)
    manifest = _manifest(opened)

    def bring(file: StoredFile) -> None:
        download(opened, file.key, folder / file.name, size=file.size, sha256=file.sha256, moved=lambda _: None)

    return lambda: _ignore(in_parallel(bring, manifest.files))


def boto3_back(folder: Path, url: str) -> Callable[[], None]:
    """`download_file` as it comes, ten files at a time, nothing checked."""
    client, (bucket, prefix) = _client(), _split(url)
    files = _manifest(open_store(url)).files

    def bring(file: StoredFile) -> None:
        client.download_file(bucket, f"{prefix}/{file.key}", str(folder / file.name))

    def run() -> None:
        with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            list(pool.map(bring, files))

    return run


KINDS = {one.__name__: one for one in (agent, store, boto3, restore, boto3_back)}


def _manifest(store: Store) -> CheckpointManifest:
    where = keys.checkpoint(RUN_ID, 1, 1)
    return codec.load(CheckpointManifest, store.get(where).data, where=where)


def _client():
    import boto3 as sdk
    from botocore.config import Config

    return sdk.client("s3", config=Config(max_pool_connections=2 * FILES_AT_ONCE))


def _split(url: str) -> tuple[str, str]:
    at = urlsplit(url)
    return at.netloc, at.path.strip("/")


def _ignore(_result: object) -> None:
    return None


def peak_mb() -> float:
    """`VmHWM`, because `ru_maxrss` remembers the process that this one was forked from."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


def main() -> None:
    kind, folder, url = sys.argv[1:]
    run = KINDS[kind](Path(folder), url)
    begun, cpu = time.perf_counter(), time.process_time()
    run()
    took_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
    print(json.dumps({"seconds": took_s, "cpu_s": cpu_s, "peak_mb": peak_mb()}))


if __name__ == "__main__":
    main()
