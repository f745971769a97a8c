"""The trl trainer: transformers, PEFT and TRL, on one GPU or on a CPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import codec
from orchestrator.errors import Problem, RecipeError
from orchestrator.handover import JobSpec
from orchestrator.recipe.model import DatasetRef, Recipe
from orchestrator.trainers import carried, keys, packaged
from orchestrator.trainers.base import RenderedJob, Scratch

if TYPE_CHECKING:
    from orchestrator.recipe.data import DataReport

SCRIPTS = ("train_trl.py", "tune_callback.py", "tune_data.py", "tune_events.py", "tune_model.py", "tune_trainer.py")
SHARED = {"tune_rows.py": "rows.py", "tune_steps.py": "steps.py"}  # copied from the recipe room as they are
DEFAULT_SEED = 42
DEFAULT_SEQUENCE_LEN = 512  # Axolotl's
# Not among the settings as they were written: they become files, or stand in the job itself.
_ELSEWHERE = (
    "batch_size",
    "chat_template",
    "chat_template_jinja",
    "datasets",
    "gradient_accumulation_steps",
    "micro_batch_size",
    "test_datasets",
)
ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # The accelerated transports have stood still at 99 % for hours (huggingface_hub#4508, xet-core#883). The plain one
    # takes a minute without a byte for an error, goes on where it was, and gives up after six such minutes.
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_ENABLE_HF_TRANSFER": "0",
    "HF_HUB_DOWNLOAD_TIMEOUT": "60",
    "DO_NOT_TRACK": "1",
    "WANDB_DISABLED": "true",
    "PYTHONUTF8": "1",  # many images come with an ASCII locale
    "PYTHONUNBUFFERED": "1",
    "PYTHONFAULTHANDLER": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}


class TrlTrainer:
    """Fine-tunes with TRL's SFTTrainer."""

    @property
    def name(self) -> str:
        return "trl"

    def problems(self, recipe: Recipe) -> Sequence[Problem]:
        """Everything that this trainer cannot honour, each with its place."""
        found = [_problem(recipe, key, message, hint=hint) for key, message, hint in _unhonoured(recipe)]
        found += [_problem(recipe, key, message, hint=hint) for key, message, hint in _contradictions(recipe)]
        return found

    def notices(self, recipe: Recipe) -> Sequence[str]:
        """Keys that are accepted and change nothing here, each with the reason."""
        return [
            f"{key}: {reason}"
            for key, reason in keys.WITHOUT_EFFECT.items()
            if not keys.asks_for_nothing(recipe.training.get(key))
        ]

    def prepare(self, recipe: Recipe, *, progress: Callable[[str], None] | None = None) -> Any | None:
        """Convert a model that comes in a package, once; returns its tokenizer as the training will use it."""
        name = str(recipe.training.get("tokenizer_config") or recipe.training.get("base_model") or "")
        for needed in (str(recipe.training.get("base_model") or ""), name):
            if packaged.is_packaged(needed):
                packaged.resolve(needed, progress=progress)
        if not packaged.is_packaged(name):
            return None
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(packaged.resolve(name), local_files_only=True)
        template = _template(recipe)
        if template and not (template.get("chat_template_if_missing") and tokenizer.chat_template):
            tokenizer.chat_template = template["chat_template_text"]
        return tokenizer

    def render(
        self,
        recipe: Recipe,
        report: DataReport,  # noqa: ARG002 - the report is kept by the run
        *,
        is_elsewhere: bool = False,
    ) -> RenderedJob:
        """The job: settings, scripts, the normalised examples of every data set, and local models that are sent."""
        problems = self.problems(recipe)
        if problems:
            raise RecipeError("the trl trainer cannot run this recipe", problems)
        scratch = Scratch()
        content: dict[str, bytes | Path] = dict(scripts())
        train: list[str] = []
        held_out: list[str] = []
        for number, ref in enumerate(recipe.datasets):
            name = f"data/{number:03d}.jsonl"
            content[name] = _write_examples(ref, recipe.path.parent, scratch.path / f"{number:03d}.jsonl")
            (held_out if ref.held_out else train).append(name)
        settings, models = _settings(recipe, is_elsewhere=is_elsewhere)
        content |= models
        micro, accumulation = _batches(recipe.training)
        spec = JobSpec(
            trainer=self.name,
            argv=("{python}", "-u", "{job}/trainer/train_trl.py"),
            settings={**settings, "train_files": train, "eval_files": held_out},
            micro_batch_size=micro,
            gradient_accumulation_steps=accumulation,
            env={**ENVIRONMENT, **recipe.tune.env},
        )
        content["trainer/job.json"] = codec.dump(spec)
        return RenderedJob(spec, content, scratch)


Finding = tuple[str, str, str]  # key, what is wrong, what to do


def _problem(recipe: Recipe, key: str, message: str, *, hint: str) -> Problem:
    return Problem(key, message, hint=hint, path=str(recipe.path), line=recipe.place(key))


def _unhonoured(recipe: Recipe) -> Iterator[Finding]:
    known = keys.HONOURED | keys.WITHOUT_EFFECT.keys()
    for key, value in recipe.training.items():
        if key in known or keys.asks_for_nothing(value):
            continue
        near = get_close_matches(key, known, n=1, cutoff=0.85)
        hint = keys.ADVICE.get(key) or (f"did you mean {near[0]}?" if near else "remove it, or use another trainer")
        yield key, "the trl trainer does not honour this key", hint


def _contradictions(recipe: Recipe) -> Iterator[Finding]:
    asked = recipe.training
    for check in (_adapter, _choices, _places):
        yield from check(recipe, asked)


def _adapter(recipe: Recipe, asked: Mapping[str, Any]) -> Iterator[Finding]:  # noqa: ARG001 - all checks are alike
    adapter = asked.get("adapter")
    if adapter not in (None, "", "lora", "qlora"):
        yield "adapter", f"{adapter!r} is not supported by the trl trainer", "use lora, qlora, or leave it out"
        return
    if adapter == "qlora" and not asked.get("load_in_4bit"):
        yield "load_in_4bit", "qlora trains on a base model in 4 bits", "set `load_in_4bit: true`"
    if asked.get("load_in_4bit") and asked.get("load_in_8bit"):
        yield "load_in_8bit", "the base model is loaded in 4 bits or in 8, not both", "remove one of the two"
    if not adapter and (asked.get("load_in_4bit") or asked.get("load_in_8bit")):
        yield "adapter", "a quantised base model cannot be trained as a whole", "set `adapter: qlora`"
    if adapter:
        for key in ("lora_r", "lora_alpha"):
            if not asked.get(key):
                yield key, f"{adapter} needs it", "16 is a common choice"
        if not asked.get("lora_target_linear") and not asked.get("lora_target_modules"):
            yield "lora_target_modules", "nothing says which layers are adapted", "set `lora_target_linear: true`"


def _choices(recipe: Recipe, asked: Mapping[str, Any]) -> Iterator[Finding]:
    for key, allowed in (
        ("optimizer", keys.OPTIMIZERS),
        ("lr_scheduler", keys.SCHEDULES),
        ("attn_implementation", keys.ATTENTION),
        ("chat_template", keys.CHAT_TEMPLATES),
    ):
        value = asked.get(key)
        if not keys.asks_for_nothing(value) and value not in allowed:
            near = get_close_matches(str(value), allowed, n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            yield key, f"{value!r} is not known to the trl trainer", f"{meant}one of {', '.join(sorted(allowed))}"
    if not isinstance(asked.get("gradient_checkpointing", False), bool):
        yield "gradient_checkpointing", "the trl trainer knows true and false", "set `gradient_checkpointing: true`"
    if asked.get("save_steps") and not float(asked["save_steps"]).is_integer():
        yield "save_steps", "a share of the steps is not supported", "use `tune.checkpoint_every`, or a whole number"
    if asked.get("bf16") and asked.get("fp16") and asked.get("bf16") != "auto":
        yield "fp16", "bf16 and fp16 are both asked for", "remove one of the two"
    if not asked.get("learning_rate"):
        yield "learning_rate", "missing", "the trl trainer has no default for it"
    batch, micro = asked.get("batch_size"), int(asked.get("micro_batch_size") or 1)
    if batch and (int(batch) % micro or int(batch) < micro):
        yield "batch_size", f"not a multiple of micro_batch_size ({micro})", "use `gradient_accumulation_steps`"
    for ref in recipe.datasets:
        if ref.chat_template not in (None, "", "tokenizer_default", asked.get("chat_template")):
            key = f"{'test_datasets' if ref.held_out else 'datasets'}[{ref.index}].chat_template"
            yield key, "the trl trainer uses one template for all data", "set `chat_template` at the top instead"


def _places(recipe: Recipe, asked: Mapping[str, Any]) -> Iterator[Finding]:
    if (recipe.tune.gpu_count or 1) > 1:
        yield "tune.gpu_count", "the trl trainer works on one GPU", "set `gpu_count: 1`"
    if not any(not ref.held_out for ref in recipe.datasets):
        yield "datasets", "nothing to train on", "add `datasets:`"
    for key in ("base_model", "tokenizer_config"):
        value = asked.get(key)
        if not isinstance(value, str):
            continue
        if packaged.is_packaged(value):
            continue
        folder = _local_folder(recipe, value)
        if folder is None and value.startswith(("/", ".", "~")):
            yield key, f"there is no folder {value}", "name one that holds a model, or a model on the hub"
        elif folder and key == "base_model" and not (folder / "config.json").is_file():
            yield key, f"the folder {value} holds no model: no config.json", "name another, or a model on the hub"


def _local_folder(recipe: Recipe, name: str) -> Path | None:
    """The folder that a name means, relative to the recipe; None for a name on the hub."""
    folder = (recipe.path.parent / Path(name).expanduser()).resolve()
    return folder if folder.is_dir() else None


def _settings(recipe: Recipe, *, is_elsewhere: bool) -> tuple[dict[str, Any], dict[str, Path]]:
    """The settings, and the files of local models that an instance elsewhere needs with them."""
    asked = {key: value for key, value in recipe.training.items() if key in keys.HONOURED}
    for key in _ELSEWHERE:
        asked.pop(key, None)
    asked["sequence_len"] = int(asked.get("sequence_len") or DEFAULT_SEQUENCE_LEN)
    asked["seed"] = int(asked.get("seed") or DEFAULT_SEED)
    asked |= _template(recipe)
    asked["base_model_as_written"] = asked["base_model"]
    asked["datasets"] = [{"path": ref.path, "type": ref.type, "held_out": ref.held_out} for ref in recipe.datasets]
    sent: dict[str, Path] = {}
    places: dict[Path, str] = {}  # a model that is its own tokenizer is sent once
    for key, below in (("base_model", carried.MODEL), ("tokenizer_config", carried.TOKENIZER)):
        folder = _folder_of(recipe, asked[key]) if isinstance(asked.get(key), str) else None
        if folder is None:
            continue
        if not is_elsewhere:
            asked[key] = str(folder)
            continue
        if folder not in places:
            places[folder] = below
            code = bool(asked.get("trust_remote_code"))
            sent |= carried.files(folder, below, with_code=code, with_weights=key == "base_model")
        asked[key] = f"{{job}}/{places[folder]}"
    asked["tune"] = {
        "require_flash": recipe.tune.require_flash,
        "allow_optimizer_reset": recipe.tune.allow_optimizer_reset,
    }
    plain: dict[str, Any] = json.loads(json.dumps(asked, default=_plain))
    return plain, sent


def _batches(asked: Mapping[str, Any]) -> tuple[int, int]:
    """(rows at once, how often before a step)."""
    micro = int(asked.get("micro_batch_size") or 1)
    whole = int(asked.get("batch_size") or micro)
    return micro, int(asked.get("gradient_accumulation_steps") or max(1, whole // micro))


def _template(recipe: Recipe) -> dict[str, Any]:
    """The chat template that replaces the tokenizer's own, if any."""
    choice = str(recipe.training.get("chat_template") or "tokenizer_default")
    given = recipe.training.get("chat_template_jinja")
    if choice == "jinja" or (given and choice == "tokenizer_default"):
        text = str(given or "")
        file = recipe.path.parent / text
        named = "{" not in text and "\n" not in text and file.is_file()
        return {"chat_template_text": file.read_text(encoding="utf-8") if named else text}
    if choice == "tokenizer_default":
        return {}
    return {"chat_template_text": keys.CHATML, "chat_template_if_missing": choice != "chatml"}


def _folder_of(recipe: Recipe, name: str) -> Path | None:
    """Where a model lies on this computer, made ready if it comes in a package; None for one on the hub."""
    return packaged.resolve(name) if packaged.is_packaged(name) else _local_folder(recipe, name)


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    return str(value)


def scripts() -> Iterator[tuple[str, bytes]]:
    """Every program file of a job, by its name below `job/`."""
    ours, shared = files("orchestrator.trainers") / "scripts", files("orchestrator.recipe")
    for name in SCRIPTS:
        yield f"trainer/{name}", (ours / name).read_bytes()
    for name, origin in SHARED.items():
        yield f"trainer/{name}", (shared / origin).read_bytes()


def _write_examples(ref: DatasetRef, base: Path, path: Path) -> Path:
    """Stream a data set's usable rows to a file: one example per line."""
    from orchestrator.recipe import data

    with path.open("w", encoding="utf-8") as file:
        for row in data.examples(ref, base):
            if row.example is not None:
                file.write(json.dumps(row.example, ensure_ascii=False) + "\n")
    return path
