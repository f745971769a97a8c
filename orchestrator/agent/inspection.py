"""Is this checkpoint or artifact what it says it is? Looks into files without ever running what they hold.

Standard library only: it runs beside the trainer, in an environment that has no torch, and must never unpickle.
"""

from __future__ import annotations

import json
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

_CHUNK = 1 << 23  # a multiple of every element size
_HEADER_MAX = 100_000_000  # the format's own limit
_ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64"), 8),
}


def _top_bytes(*starts: int, width: int) -> bytes:
    """A translate table: 1 for each byte from which the exponent may be all ones, else 0."""
    table = bytearray(256)
    for start in starts:
        for value in range(start, start + width):
            table[value] = 1
    return bytes(table)


@dataclass(frozen=True, slots=True)
class _Float:
    """Little-endian: NaN and infinity have every exponent bit set, in the top byte and (some of) the one below."""

    size: int
    top: bytes
    below_min: int  # the second byte is at least this when the rest of the exponent is ones too


_FLOATS = {
    "F32": _Float(4, _top_bytes(0x7F, 0xFF, width=1), 0x80),
    "BF16": _Float(2, _top_bytes(0x7F, 0xFF, width=1), 0x80),
    "F16": _Float(2, _top_bytes(0x7C, 0xFC, width=4), 0),
    "F64": _Float(8, _top_bytes(0x7F, 0xFF, width=1), 0xF0),
}


def checkpoint_problems(
    folder: Path, files: Mapping[str, int], *, step: int, world_size: int, allow_optimizer_reset: bool = False
) -> list[str]:
    """Why a trainer must not go on from this folder; empty when it may."""
    problems = _sizes(folder, files)
    if problems:
        return problems
    names = {PurePosixPath(name).name for name in files}
    problems += _state_problems(folder, files, step=step)
    if not any(name.endswith(".safetensors") for name in names):
        problems.append("no weights (*.safetensors)")
    if not allow_optimizer_reset:
        problems += [f"{what} is missing" for what in _missing_state(names, world_size)]
    return problems + _content_problems(folder, files)


def artifact_problems(folder: Path, files: Mapping[str, int]) -> list[str]:
    """Why this is not a result anybody wants; empty when it is one."""
    problems = _sizes(folder, files)
    if problems:
        return problems
    if not any(name.endswith(".safetensors") for name in files):
        return ["no weights (*.safetensors)"]
    return _content_problems(folder, files) + _untrained(folder, files)


def best_step(folder: Path) -> int | None:
    """The step whose checkpoint the trainer wants to load at the end, as its state file says."""
    try:
        state = json.loads((folder / "trainer_state.json").read_bytes())
    except (OSError, ValueError):
        return None
    place = state.get("best_model_checkpoint") if isinstance(state, dict) else None
    match = re.search(r"-([0-9]+)/?$", place) if isinstance(place, str) else None
    return int(match[1]) if match else None


def _sizes(folder: Path, files: Mapping[str, int]) -> list[str]:
    problems = [] if files else ["it names no files"]
    for name, size in files.items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif path.stat().st_size != size:
            problems.append(f"{name} has {path.stat().st_size} bytes instead of {size}")
    return problems


def _state_problems(folder: Path, files: Mapping[str, int], *, step: int) -> list[str]:
    if "trainer_state.json" not in files:
        return ["trainer_state.json is missing"]
    try:
        state = json.loads((folder / "trainer_state.json").read_bytes())
    except ValueError as e:
        return [f"trainer_state.json is not JSON: {e}"]
    at = state.get("global_step") if isinstance(state, dict) else None
    return [] if at == step else [f"trainer_state.json is at step {at} instead of {step}"]


def _missing_state(names: set[str], world_size: int) -> Iterator[str]:
    """Without these a resumed run looks fine and is not: momentum, schedule and dropout silently start anew."""
    if not names & {"optimizer.pt", "optimizer.bin"}:
        yield "optimizer.pt"
    if "scheduler.pt" not in names:
        yield "scheduler.pt"
    wanted = ["rng_state.pth"] if world_size == 1 else [f"rng_state_{rank}.pth" for rank in range(world_size)]
    yield from (name for name in wanted if name not in names)


def _content_problems(folder: Path, files: Mapping[str, int]) -> list[str]:
    problems = []
    for name in files:
        path = folder / name
        if name.endswith(".safetensors"):
            problems += [f"{name}: {text}" for text in safetensors_problems(path)]
        elif name.endswith((".pt", ".pth", ".bin")):
            problems += [f"{name}: {text}" for text in _zip_problems(path)]
        elif name.endswith(".json"):
            try:
                json.loads(path.read_bytes())
            except ValueError as e:
                problems.append(f"{name} is not JSON: {e}")
    return problems


def _zip_problems(path: Path) -> list[str]:
    """Checks every member's CRC; never looks at what the pickles inside would do."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, struct.error) as e:
        return [f"not a complete archive: {e}"]
    return [f"{damaged} is damaged"] if damaged else []


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    dtype: str
    start: int
    end: int


def safetensors_problems(path: Path) -> list[str]:
    """Header against size, no empty tensors, and no NaN or infinity anywhere."""
    try:
        tensors = _tensors(path)
    except ValueError as e:
        return [str(e)]
    with path.open("rb") as file:
        for tensor in tensors:
            kind = _FLOATS.get(tensor.dtype)
            if kind and not all(is_finite(chunk, kind) for chunk in _chunks(file, tensor)):
                return [f"{tensor.name} holds NaN or infinity"]
    return []


def _tensors(path: Path) -> list[_Tensor]:
    """The header, checked; ValueError says what is wrong."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length_bytes = file.read(8)
        length = int.from_bytes(length_bytes, "little")
        if len(length_bytes) < 8 or length > min(size - 8, _HEADER_MAX):
            raise ValueError(f"cut short: {size} bytes")
        header = json.loads(file.read(length))
    base = 8 + length
    entries = header.items() if isinstance(header, dict) else ()
    tensors = [_tensor(name, entry, base) for name, entry in entries if name != "__metadata__"]
    if not tensors:
        raise ValueError(f"no tensors in it ({size} bytes)")
    position = base
    for tensor in sorted(tensors, key=lambda t: t.start):
        if tensor.start != position:
            raise ValueError(f"{tensor.name} does not follow the tensor before it")
        position = tensor.end
    if position != size:
        raise ValueError(f"cut short or padded: {size} bytes instead of {position}")
    return tensors


def _tensor(name: str, entry: Any, base: int) -> _Tensor:
    try:
        dtype, shape = str(entry["dtype"]), [int(n) for n in entry["shape"]]
        begin, end = (int(n) for n in entry["data_offsets"])
    except (TypeError, KeyError, ValueError):
        raise ValueError(f"the header says nothing usable about {name}") from None
    if 0 in shape:
        raise ValueError(f"{name} has shape {shape}: it is empty")
    if begin < 0 or end - begin != math.prod(shape) * _ITEM_BYTES.get(dtype, (end - begin) / math.prod(shape)):
        raise ValueError(f"{name} has {end - begin} bytes, which does not fit {dtype} {shape}")
    return _Tensor(name, dtype, base + begin, base + end)


def _chunks(file: Any, tensor: _Tensor) -> Iterator[bytes]:
    file.seek(tensor.start)
    left = tensor.end - tensor.start
    while left > 0:
        chunk = file.read(min(left, _CHUNK))
        if not chunk:
            return
        left -= len(chunk)
        yield chunk


def is_finite(data: bytes, kind: _Float) -> bool:
    """No NaN and no infinity. Works on whole byte columns, some hundred times faster than unpacking each number.

    Ordinary weights never come near the largest exponent, so the first look, one pass over the top bytes, settles it.
    """
    suspects = data[kind.size - 1 :: kind.size].translate(kind.top)
    if kind.below_min == 0:
        return 1 not in suspects
    at = suspects.find(1)
    while at >= 0:
        if data[at * kind.size + kind.size - 2] >= kind.below_min:
            return False
        at = suspects.find(1, at + 1)
    return True


def float_kind(dtype: str) -> _Float:
    """How numbers of this safetensors dtype are laid out."""
    return _FLOATS[dtype]


def _untrained(folder: Path, files: Mapping[str, int]) -> list[str]:
    """LoRA's B starts at zero: if all of it still is, nothing was learned, whatever the loss said."""
    seen = False
    for name in files:
        if not name.endswith(".safetensors"):
            continue
        path = folder / name
        try:
            tensors = [t for t in _tensors(path) if "lora_B" in t.name]
        except ValueError:
            return []  # said already
        with path.open("rb") as file:
            for tensor in tensors:
                seen = True
                if any(chunk.count(0) != len(chunk) for chunk in _chunks(file, tensor)):
                    return []
    return ["every lora_B is zero: the adapter learned nothing"] if seen else []
