"""Is the instance what was paid for? Asked once, before anything is set up: a host that disappoints is given back."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from orchestrator import keys
from orchestrator.agent.bucket import Bucket, GivenUp
from orchestrator.agent.ending import AttemptEnds, Ending
from orchestrator.agent.home import Home, read_json, write_json
from orchestrator.clock import Clock
from orchestrator.errors import ObjectNotFound, StorageDenied, StorageError
from orchestrator.handover import Expected
from orchestrator.storage.base import Store
from orchestrator.types import Outcome

_log = logging.getLogger("tune.agent")

T = TypeVar("T")

_SMI_TIMEOUT_S = 30.0  # without its persistence daemon a healthy driver takes up to ten seconds for the first answer
_USED_MIB = 500.0  # an idle GPU holds some MiB; more than this is somebody else at work
_VRAM_KEPT = 0.9  # a card sold as 24 GB tells of 22.5 GiB when its error correction is on
_DISK_KEPT = 0.8  # the image and what is set up already lie on the same disk
_DISK_BYTES, _DISK_CHUNK, _DISK_S = 64 * 1024**2, 8 * 1024**2, 10.0
_DISK_SLOWEST_MB_S, _DISK_SLOW_MB_S = 2.0, 40.0  # at the first a small checkpoint takes minutes
_NET_BYTES = 4 * 1024**2
_NET_S = 40.0
_NET_SLOWEST_MBPS, _NET_SLOW_MBPS = 1.0, 20.0  # at the first a model of 5 GB takes half a day
_LOOK_TIMEOUT_S = 45.0
_CUDA = re.compile(r"CUDA[^:|]*Version\s*:\s*([0-9]+\.[0-9]+)")


@dataclass(slots=True)
class Report:
    """What was found. A fault is a reason to give the instance back; a note is for people."""

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __add__(self, other: Report) -> Report:
        return Report(self.faults + other.faults, self.notes + other.notes)


def probe(
    home: Home,
    expect: Expected,
    bucket: Bucket,
    *,
    clock: Clock,
    note: Callable[[str], None],
    free: Callable[[Path], int],
) -> bool | None:
    """Whether the instance can end itself; None when it has no way to ask.

    Raises AttemptEnds: HOST_FAULT where the instance is less than what was paid for, SETUP_FAILED where the bucket
    refuses its keys. An agent that was restarted does not ask again.
    """
    known = home.state / "probe.json"
    said = read_json(known)
    if not said:
        found = gpus(expect) + disk(home, expect, clock=clock, free=free)
        if not found.faults:
            found += storage(bucket, clock=clock)
        for text in found.notes:
            note(text)
        if found.faults:
            raise AttemptEnds(Ending(Outcome.HOST_FAULT, 1, f"not what was paid for: {'; '.join(found.faults)}"))
        said = {"can_end_itself": can_end_itself(home)}
        if said["can_end_itself"] is False:
            note("the instance cannot see itself with its own key: only the computers that started it can end it")
        write_json(known, said)
    can: bool | None = said.get("can_end_itself")
    return can


def gpus(expect: Expected, *, timeout_s: float = _SMI_TIMEOUT_S) -> Report:
    """Their number, name and memory, the driver, and that nobody else is at work on them."""
    if expect.gpu_count == 0:
        return Report()
    query = ("--query-gpu=name,memory.total,memory.used", "--format=csv,noheader,nounits")
    code, listed = _smi(*query, timeout_s=timeout_s)
    rows = [[cell.strip() for cell in line.split(",")] for line in listed.splitlines() if line.count(",") == 2]
    if code != 0 or not rows:
        last = listed.strip().splitlines()[-1:] or [f"code {code}"]
        return Report([f"{expect.gpu_count} GPUs expected, but nvidia-smi says: {last[0][:200]}"])
    report = Report()
    if len(rows) < expect.gpu_count:
        report.faults.append(f"{expect.gpu_count} GPUs expected, {len(rows)} found")
    for number, (name, total, used) in enumerate(rows):
        report += _gpu(f"GPU {number}", name, _number(total), _number(used), expect)
    return report + _driver(expect, timeout_s)


def _gpu(which: str, name: str, total_mib: float | None, used_mib: float | None, expect: Expected) -> Report:
    report = Report()
    if expect.gpu_name and not is_named(name, expect.gpu_name):
        numbers = re.findall(r"\d+", expect.gpu_name.partition("-")[0])
        is_other = bool(numbers) and max(numbers, key=len) not in re.findall(r"\d+", name)
        said = f"{which}: {expect.gpu_name} expected, {name} found"
        (report.faults if is_other else report.notes).append(said)
    if total_mib is not None and total_mib / 1024 < expect.vram_gib * _VRAM_KEPT:
        report.faults.append(f"{which}: {expect.vram_gib:g} GiB of memory expected, {total_mib / 1024:.1f} found")
    if used_mib is not None and used_mib > _USED_MIB:
        report.faults.append(f"{which}: {used_mib:.0f} MiB are in use by somebody else")
    return report


def is_named(found: str, expected: str) -> bool:
    """Whether the driver's name for a card may be ours: `RTX4090` is `NVIDIA GeForce RTX 4090`."""
    words = re.findall(r"[A-Z]+|\d+", expected.partition("-")[0].upper())  # memory and socket follow the dash
    theirs = iter(re.findall(r"[A-Z]+|\d+", found.upper()))
    return "".join(words) in re.sub(r"[^A-Z0-9]", "", found.upper()) or all(word in theirs for word in words)


def _driver(expect: Expected, timeout_s: float) -> Report:
    _, told = _smi(timeout_s=timeout_s)
    match = _CUDA.search(told)
    if match is None:
        return Report(notes=["the driver does not say which CUDA version it takes"] if expect.min_cuda else [])
    has, wanted = _version(match[1]), _version(f"{expect.min_cuda:g}")
    if expect.min_cuda and has < wanted:
        return Report([f"a driver for CUDA {expect.min_cuda:g} expected, this one takes {match[1]} at most"])
    return Report()


def disk(home: Home, expect: Expected, *, clock: Clock, free: Callable[[Path], int]) -> Report:
    """Room below the tune home, and that it takes what is written to it."""
    report = Report()
    free_gb = free(home.root) / 1e9
    if free_gb < expect.disk_gb * _DISK_KEPT:
        report.faults.append(f"{expect.disk_gb:g} GB of disk expected, {free_gb:.1f} GB free")
        return report
    try:
        speed = _write_speed(home.state / "probe.tmp", clock)
    except OSError as e:
        report.faults.append(f"the disk cannot be written: {e.strerror or e}")
        return report
    if speed < _DISK_SLOWEST_MB_S:
        report.faults.append(f"the disk takes {speed:.1f} MB/s")
    elif speed < _DISK_SLOW_MB_S:
        report.notes.append(f"a slow disk: {speed:.0f} MB/s")
    return report


def _write_speed(path: Path, clock: Clock) -> float:
    chunk, written, began = os.urandom(_DISK_CHUNK), 0, clock.monotonic()
    try:
        with path.open("wb") as file:
            while written < _DISK_BYTES and clock.monotonic() - began < _DISK_S:
                file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
                written += len(chunk)
    finally:
        path.unlink(missing_ok=True)
    return written / 1e6 / max(1e-6, clock.monotonic() - began)


def storage(bucket: Bucket, *, clock: Clock) -> Report:
    """That this attempt may write, read and delete its own objects, and how fast.

    A bucket that does not answer is no fault of the host, as far as it can tell: that is waited out later.
    """
    where = keys.probe(bucket.config.run_id, bucket.config.attempt)
    data = os.urandom(_NET_BYTES)

    def there_and_back(store: Store) -> tuple[float, float]:
        began = clock.monotonic()
        store.put(where, data)
        stored = clock.monotonic()
        got = store.get(where).data
        ended = clock.monotonic()
        with suppress(StorageDenied):  # keys that may not delete can do the work; the object stays, and is written over
            store.delete(where)
        if got != data:
            raise StorageError(f"{where} does not read back as it was written")
        return _mbps(stored - began), _mbps(ended - stored)

    try:
        until = clock.monotonic() + _NET_S
        up, down = within(_NET_S * 2, lambda: bucket.patiently(there_and_back, until=until))
    except TimeoutError:
        return Report([f"{_NET_BYTES / 1e6:.0f} MB to the bucket and back took more than {_NET_S * 2:g} s"])
    except ObjectNotFound:
        raise AttemptEnds(
            Ending(Outcome.SETUP_FAILED, 1, f"the bucket does not keep what is written to it: {where} is not there")
        ) from None
    except GivenUp as e:
        if isinstance(e.__cause__, StorageDenied):
            reason = f"the bucket refuses this instance's keys: {e}"
            raise AttemptEnds(Ending(Outcome.SETUP_FAILED, 1, reason)) from e
        return Report(notes=[f"the bucket does not answer yet: {e}"])
    if down < _NET_SLOWEST_MBPS:
        return Report([f"the bucket is read at {down:.2f} Mbit/s"])
    if min(up, down) < _NET_SLOW_MBPS:
        return Report(notes=[f"a slow line to the bucket: {up:.1f} Mbit/s up, {down:.1f} Mbit/s down"])
    return Report()


def can_end_itself(home: Home) -> bool | None:
    """Whether the key that the marketplace has put here can see this instance. None: there is no way to ask."""
    farewell = home.root / "farewell.sh"
    if not os.environ.get("TUNE_FAREWELL", "").strip():
        return False
    if not farewell.is_file():
        return None
    try:
        code, said = _call(["/bin/sh", str(farewell), "look"], _LOOK_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as e:  # TimeoutError is an OSError
        code, said = 1, str(e)
    if code != 0:
        _log.warning("%s leaves with code %d: %s", shlex.quote(str(farewell)), code, said[-200:])
    return code == 0


def within(seconds: float, doing: Callable[[], T]) -> T:
    """Its result, or TimeoutError; what cannot be ended goes on alone and is not waited for."""
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(doing())
        except BaseException as e:
            errors.append(e)

    worker = threading.Thread(target=work, name="probe", daemon=True)
    worker.start()
    worker.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]


def _smi(*words: str, timeout_s: float) -> tuple[int, str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return 127, "there is no nvidia-smi"
    try:
        return _call([program, *words], timeout_s)
    except (subprocess.TimeoutExpired, TimeoutError):
        return 124, f"no answer within {timeout_s:g} s"
    except OSError as e:
        return 126, str(e)


def _call(argv: Sequence[str], timeout_s: float) -> tuple[int, str]:
    """Exit code and both streams. A process that hangs in the driver cannot even be killed: it is left behind."""

    def run() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )

    done = within(timeout_s + 5, run)
    return done.returncode, done.stdout.decode(errors="replace")


def _mbps(seconds: float) -> float:
    return _NET_BYTES * 8 / 1e6 / max(1e-6, seconds)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # "[N/A]"


def _version(text: str) -> tuple[int, ...]:
    """Compared as numbers: 12.10 is newer than 12.8."""
    return tuple(int(part) for part in text.split("."))
