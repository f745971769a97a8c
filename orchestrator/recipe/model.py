"""What a recipe says, once it has been read and found in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

TRAINERS = ("axolotl", "trl", "unsloth")
SPOT = ("prefer", "require", "never")
ENVIRONMENTS = ("auto", "image", "pinned")  # or an absolute path
ANY_PROVIDER = "any"
PROVIDER_SEPARATOR = ","
DEFAULT_TRAINER = "axolotl"  # an Axolotl YAML without a `tune:` block is a recipe

HOUR_S = 3600.0
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class TuneBlock:
    """The `tune:` block: what the launcher needs beyond training keys. Durations are seconds, money is US dollars."""

    trainer: str = DEFAULT_TRAINER
    name: str | None = None
    provider: str | None = None  # None: the user's config decides; `any`, or several with commas between them
    spot: str = "prefer"
    max_usd_per_hour: Decimal | None = None
    budget_usd: Decimal | None = None
    deadline_s: float | None = None  # hours the run may use, all attempts together
    instance_deadline_s: float = 24 * HOUR_S  # hard limit on one instance's life; it ends itself then
    checkpoint_every_s: float = 20 * MINUTE_S
    keep_checkpoints: int = 2
    hang_timeout_s: float = 30 * MINUTE_S
    launch_timeout_s: float = 15 * MINUTE_S
    bootstrap_timeout_s: float = 30 * MINUTE_S
    unreachable_grace_s: float = 30 * MINUTE_S
    upload_grace_s: float = 24 * HOUR_S
    max_attempts: int = 10
    storage: str | None = None  # None: the user's config decides
    publish: Mapping[str, str] = field(default_factory=dict)  # {"hub": "me/model"}
    env: Mapping[str, str] = field(default_factory=dict)  # plain variables for the trainer; never a secret
    environment: str = "auto"  # auto, image, pinned, or the path of a Python on the instance
    image: str | None = None  # container image; None: the provider's default
    min_vram_gib: float | None = None  # per GPU
    gpu: tuple[str, ...] = ()  # acceptable models; empty: any
    gpu_count: int | None = None  # 0: none is needed
    disk_gb: float | None = None
    allow_drop: float = 0.10  # share of dataset rows that may be unusable before the run is refused
    files: tuple[str, ...] = ()  # extra files to upload, relative to the recipe
    allow_optimizer_reset: bool = False
    require_flash: bool = False


@dataclass(frozen=True, slots=True)
class DatasetRef:
    """One entry of `datasets` (or `test_datasets`): where rows come from, and how their fields are named."""

    path: str  # as written; relative paths are relative to the recipe
    type: str | None = None
    index: int = 0  # its place in the list
    line: int | None = None  # where the entry starts in the recipe
    name: str | None = None  # Axolotl's `name`: the configuration of a hub data set
    split: str | None = None
    revision: str | None = None
    ds_type: str | None = None  # json | parquet | csv | arrow | text
    data_files: tuple[str, ...] = ()
    shards: int | None = None
    chat_template: str | None = None
    field_messages: str | None = None
    field_system: str | None = None
    text_field: str | None = None  # Axolotl's `field`: the column that holds the text of a completion row
    message_property_mappings: Mapping[str, str] = field(default_factory=dict)  # our name -> the row's name
    message_field_training: str | None = None
    message_field_training_detail: str | None = None
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # our role -> the row's words for it
    roles_to_train: tuple[str, ...] = ()
    train_on_eos: str | None = None
    format: Mapping[str, str] = field(default_factory=dict)  # `type: {field_instruction: …}`
    held_out: bool = False  # from `test_datasets`
    extra: Mapping[str, Any] = field(default_factory=dict)  # every other key of the entry


@dataclass(frozen=True, slots=True)
class Recipe:
    """One training job: what to train, with what, within what limits."""

    path: Path
    text: bytes  # the file as it was read
    sha256: str  # of what changes the training; see `orchestrator.recipe.digest`
    training: Mapping[str, Any]  # Axolotl's vocabulary, typed and resolved; only keys that are actually set
    tune: TuneBlock
    datasets: tuple[DatasetRef, ...] = ()
    notices: tuple[str, ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)  # key path -> line in the file

    def place(self, key: str) -> int | None:
        """The line of `key`, or of the nearest thing around it."""
        return line_of(self.lines, key)


def line_of(lines: Mapping[str, int], key: str) -> int | None:
    """The line of `datasets[0].path`, or of `datasets[0]`, or of `datasets`."""
    while key:
        if key in lines:
            return lines[key]
        key = key.rpartition("[" if key.endswith("]") else ".")[0]
    return None
