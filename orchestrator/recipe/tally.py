"""Count what becomes of every row, in one pass and without keeping the rows."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.recipe import formats, rows, steps, tokens
from orchestrator.recipe.model import DatasetRef, Recipe
from orchestrator.recipe.readers import Fault, RawRow
from orchestrator.recipe.report import DataReport, DatasetCount, RowProblem, histogram, with_notices

SAMPLE_ROWS = 20  # faulty rows that the report names one by one; it counts all
DEFAULT_SEQUENCE_LEN = 512  # Axolotl's

Progress = Callable[[int, str], None]  # called after every few hundred rows: rows read so far, and their dataset


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A row on its way: as the file has it, and its example or its fault."""

    path: Path
    raw: RawRow
    example: formats.Example | None
    fault: Fault | None


@dataclass(frozen=True, slots=True)
class Settings:
    """The training keys that decide what becomes of a row, with Axolotl's defaults."""

    sequence_len: int
    strategy: str
    train_on_inputs: bool
    packing: bool
    micro_batch_size: int
    gradient_accumulation_steps: int
    num_epochs: float
    max_steps: int
    val_set_size: float
    seed: int
    world_size: int
    drop_last: bool

    @classmethod
    def of(cls, recipe: Recipe) -> Settings:
        said = recipe.training
        micro = int(said.get("micro_batch_size") or 1)
        accumulate = said.get("gradient_accumulation_steps") or int(said.get("batch_size") or micro) // micro
        packing = bool(said.get("sample_packing"))
        return cls(
            sequence_len=int(said.get("sequence_len") or DEFAULT_SEQUENCE_LEN),
            strategy=str(said.get("excess_length_strategy") or "drop"),
            train_on_inputs=bool(said.get("train_on_inputs")),
            packing=packing,
            micro_batch_size=micro,
            gradient_accumulation_steps=max(1, int(accumulate)),
            num_epochs=float(said.get("num_epochs") or 1),
            max_steps=int(said.get("max_steps") or 0),
            val_set_size=float(said.get("val_set_size") or 0),
            seed=int(said.get("seed") or 42),
            world_size=recipe.tune.gpu_count or 1,
            drop_last=packing and recipe.tune.trainer == "axolotl",
        )


class Tally:
    """Counts what becomes of every row, one pass, without keeping the rows."""

    def __init__(self, settings: Settings, found: tokens.Tokens, progress: Progress) -> None:
        self.settings = settings
        self.found = found
        self.progress = progress
        self.hash = hashlib.sha256()
        self.kinds = Counter[str]()  # whole, split, truncated, too_long, unsupervised, faulty, refused
        self.reasons = Counter[str]()
        self.sample: list[RowProblem] = []
        self.datasets: list[DatasetCount] = []
        self.lengths = array("l")  # of sequences that are trained on
        self.full_lengths = Counter[int]()
        self.tokens = 0
        self.supervised_tokens = 0
        self.rows = 0

    def dataset(self, ref: DatasetRef, read: Iterator[ReadRow]) -> None:
        """Takes in one entry; rows held out for evaluation are checked alike, but not trained on."""
        fields = {k: v for k, v in asdict(ref).items() if k not in ("path", "data_files", "index", "line")}
        self.hash.update(_canonical(fields) + b"\n")
        count = used = 0
        for batch in rows.batches(read, rows.BATCH_ROWS):
            count += len(batch)
            used += self._batch(ref, batch)
            self.rows += len(batch)
            self.progress(self.rows, ref.path)
        shape = ref.type or "user-defined"
        self.datasets.append(DatasetCount(ref.path, shape, count, used, ref.held_out))

    def _batch(self, ref: DatasetRef, batch: list[ReadRow]) -> int:
        for item in batch:
            value = item.raw.value
            self.hash.update((_canonical(value) if value is not None else b"!" + item.raw.raw) + b"\n")
        readable = [item.example for item in batch if item.example is not None]
        encoded = iter(rows.encode_many(readable, self.found.tokenizer, train_on_inputs=self.settings.train_on_inputs))
        used = 0
        for item in batch:
            if item.example is None:
                self._problem("faulty", item, item.fault or Fault("not readable"))
                continue
            row = next(encoded)
            if isinstance(row, rows.RowRefused):
                self._problem("refused", item, Fault(str(row)))
            else:
                used += self._row(row, trained=not ref.held_out)
        return used

    def _problem(self, kind: str, item: ReadRow, fault: Fault) -> None:
        self.kinds[kind] += 1
        self.reasons[fault.reason] += 1
        if len(self.sample) < SAMPLE_ROWS:
            self.sample.append(RowProblem(str(item.path), item.raw.number, item.raw.line, str(fault)))

    def _row(self, row: rows.Encoded, *, trained: bool) -> int:
        strategy, longest = self.settings.strategy, self.settings.sequence_len
        self.kinds[rows.verdict(row, longest, strategy)] += 1
        self.full_lengths[row.full_length] += 1
        pieces = rows.fit(row, longest, strategy)
        if trained:
            for piece in pieces:
                self.lengths.append(len(piece.input_ids))
                self.tokens += len(piece.input_ids)
                self.supervised_tokens += piece.supervised
        return int(bool(pieces))

    def report(self) -> DataReport:
        """The figures as they stand."""
        kinds, settings = self.kinds, self.settings
        used = kinds["whole"] + kinds["split"] + kinds["truncated"]
        readable = used + kinds["unsupervised"]
        kept_out = rows.hold_out(len(self.lengths), settings.val_set_size, settings.seed)
        trained = [length for i, length in enumerate(self.lengths) if i not in kept_out]
        packed = steps.packed(trained, settings.sequence_len) if settings.packing else None
        sequences = len(trained) if packed is None else packed
        data_sha256 = self.hash.hexdigest()
        report = DataReport(
            data_sha256=data_sha256,
            cache_key=self._cache_key(data_sha256),
            tokenizer=self.found.name,
            sequence_len=settings.sequence_len,
            excess_length_strategy=settings.strategy,
            rows_in=self.rows,
            rows_used=used,
            faulty=kinds["faulty"],
            template_refused=kinds["refused"],
            dropped=kinds["too_long"],
            truncated=kinds["truncated"],
            split=kinds["split"],
            unsupervised=kinds["unsupervised"],
            supervised_share=used / readable if readable else 0.0,
            sequences=len(trained),
            held_out=len(kept_out),
            packed=packed,
            tokens=self.tokens,
            supervised_tokens=self.supervised_tokens,
            longest=max(self.full_lengths, default=0),
            steps=self._steps(sequences, epochs=settings.num_epochs, max_steps=settings.max_steps),
            steps_per_epoch=self._steps(sequences, epochs=1, max_steps=0),
            rows_per_step=settings.micro_batch_size * settings.gradient_accumulation_steps * settings.world_size,
            problems=tuple(self.sample),
            problem_counts=dict(self.reasons.most_common()),
            histogram=histogram(self.full_lengths),
            datasets=tuple(self.datasets),
        )
        return with_notices(report, self.found.notices)

    def _steps(self, sequences: int, *, epochs: float, max_steps: int) -> int:
        return steps.optimizer_steps(
            sequences,
            micro_batch_size=self.settings.micro_batch_size,
            gradient_accumulation_steps=self.settings.gradient_accumulation_steps,
            num_epochs=epochs,
            max_steps=max_steps,
            world_size=self.settings.world_size,
            drop_last=self.settings.drop_last,
        )

    def _cache_key(self, data_sha256: str) -> str:
        flags = (
            self.settings.sequence_len,
            self.settings.strategy,
            self.settings.train_on_inputs,
            self.settings.packing,
        )
        parts = [data_sha256, tokens.fingerprint(self.found.tokenizer), *map(str, flags)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _canonical(value: object) -> bytes:
    """The same bytes for the same content, however the file spaces it or ends its lines."""
    return json.dumps(value, separators=(",", ":"), default=str).encode()
