"""The run's examples to the rows that are trained, in the trainer's environment.

Encoding, cutting and packing are those of the dataset check, so that what was counted there is what is trained here.
"""

from __future__ import annotations

import hashlib
import json
import random
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tune_rows
import tune_steps

MEGABATCH = 50  # batches that are sorted by length together: enough to save padding, few enough to stay shuffled
IGNORED = -100  # what the loss skips
CHUNK_ROWS = 10_000  # keeps the offsets of one chunk within 32 bits whatever the size of the data


class Line(NamedTuple):
    """One row of a batch: one example, or several packed ones with their lengths."""

    input_ids: list[int] | array
    labels: list[int] | array
    lengths: list[int]


def rows(settings: dict[str, Any], job: Path, tokenizer: Any) -> tuple[list[Line], list[Line]]:
    """What is trained on and what is held out."""
    train = list(_encoded(settings["train_files"], settings, job, tokenizer))
    held_out = list(_encoded(settings["eval_files"], settings, job, tokenizer))
    if settings.get("val_set_size"):
        train, apart = split(train, settings["val_set_size"], settings["seed"])
        held_out += apart
    if settings.get("sample_packing"):
        return packed(train, settings["sequence_len"]), packed(held_out, settings["sequence_len"])
    return train, held_out


def _encoded(names: Iterable[str], settings: dict[str, Any], job: Path, tokenizer: Any) -> Iterator[Line]:
    examples = (example for name in names for example in _examples(job / name))
    for row in tune_rows.prepare(
        examples,
        tokenizer,
        sequence_len=settings["sequence_len"],
        strategy=settings.get("excess_length_strategy") or "drop",
        train_on_inputs=bool(settings.get("train_on_inputs")),
    ):
        labels = array(
            "i", (token if learned else -100 for token, learned in zip(row.input_ids, row.mask, strict=True))
        )
        yield Line(array("i", row.input_ids), labels, [len(row.input_ids)])


def _examples(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def split(lines: list[Line], size: float, seed: int) -> tuple[list[Line], list[Line]]:
    """(kept, held out): a share below 1, or a count."""
    apart = tune_rows.hold_out(len(lines), size, seed)
    kept = [line for i, line in enumerate(lines) if i not in apart]
    return kept, [lines[i] for i in sorted(apart)]


def packed(lines: list[Line], capacity: int) -> list[Line]:
    """Several examples to a row, each attending to itself alone."""
    made = []
    for group in pack([len(line.input_ids) for line in lines], capacity):
        ids, labels = array("i"), array("i")
        for i in group:
            ids.extend(lines[i].input_ids)
            labels.extend(lines[i].labels)
        made.append(Line(ids, labels, [len(lines[i].input_ids) for i in group]))
    return made


def pack(lengths: list[int], capacity: int) -> list[list[int]]:
    """Which rows share a sequence: best fit, longest first, among so many neighbours as the dataset check assumes."""
    groups: list[list[int]] = []
    for start in range(0, len(lengths), tune_steps.PACKING_BATCH):
        room: list[tuple[int, int]] = []  # (free, group), ascending
        batch = range(start, min(start + tune_steps.PACKING_BATCH, len(lengths)))
        for i in sorted(batch, key=lambda i: -lengths[i]):
            at = bisect_left(room, (lengths[i], -1))
            free, group = room.pop(at) if at < len(room) else (capacity, len(groups))
            if group == len(groups):
                groups.append([])
            groups[group].append(i)
            if free > lengths[i]:
                insort(room, (free - lengths[i], group))
    return groups


class EpochSampler:
    """An order that hangs on the seed and the epoch alone, so that a resumed epoch is the interrupted one."""

    def __init__(self, count: int, *, seed: int, lengths: list[int] | None, batch: int) -> None:
        self._count = count
        self._seed = seed
        self._lengths = lengths
        self._batch = batch
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the data loader at the start of each pass."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        draw = random.Random(f"{self._seed}/{self._epoch}")  # noqa: S311 - repeatable, not secret
        order = list(range(self._count))
        draw.shuffle(order)
        if self._lengths is None:
            return iter(order)
        lengths, size = self._lengths, self._batch * MEGABATCH
        grouped: list[int] = []
        for start in range(0, self._count, size):
            grouped += sorted(order[start : start + size], key=lambda i: -lengths[i])
        batches = [grouped[i : i + self._batch] for i in range(0, self._count, self._batch)]
        whole, rest = [b for b in batches if len(b) == self._batch], [b for b in batches if len(b) < self._batch]
        draw.shuffle(whole)
        return iter([i for batch in (*whole, *rest) for i in batch])


def fingerprint(lines: Iterable[Line]) -> str:
    """Changes with any token, label or border of what is trained."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(array("i", line.lengths).tobytes())
        digest.update(array("i", line.input_ids).tobytes())
        digest.update(array("i", line.labels).tobytes())
    return digest.hexdigest()[:32]


def dataset(lines: list[Line]) -> Any:
    """A data set in memory, without a cache on the disk that could be stale."""
    import pyarrow as pa
    from datasets import Dataset

    tables = []
    for start in range(0, len(lines), CHUNK_ROWS):
        part = lines[start : start + CHUNK_ROWS]
        columns = {
            "input_ids": _column([line.input_ids for line in part]),
            "labels": _column([line.labels for line in part]),
            "seq_lengths": _column([array("i", line.lengths) for line in part]),
        }
        tables.append(pa.table(columns))
    return Dataset(pa.concat_tables(tables))


def _column(values: list[Any]) -> Any:
    import pyarrow as pa

    offsets, flat = array("i", [0]), array("i")
    for value in values:
        flat.extend(value)
        offsets.append(len(flat))
    return pa.ListArray.from_arrays(pa.array(memoryview(offsets), pa.int32()), pa.array(memoryview(flat), pa.int32()))
