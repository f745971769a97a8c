"""What the user keeps: the trainer's final files, and how they came about."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from orchestrator import __version__, codec, keys
from orchestrator.agent import inspection
from orchestrator.agent.bucket import Bucket
from orchestrator.agent.files import safe_path
from orchestrator.agent.home import Home, write_atomically
from orchestrator.agent.publishing import Local, Publishing
from orchestrator.agent.redact import Redactor
from orchestrator.errors import ObjectNotFound, RecordCorrupt
from orchestrator.handover import JobSpec, Snapshot
from orchestrator.types import ArtifactManifest


class Invalid(Exception):
    """The result is not one that anybody wants; it is not published."""


def final_snapshot(home: Home) -> Snapshot:
    """What the trainer vouches for, looked into."""
    try:
        final = codec.load(Snapshot, home.final_record.read_bytes(), where="final.json")
        for name in final.files:
            safe_path(home.final, name)
        problems = inspection.artifact_problems(home.final, final.files)
    except (RecordCorrupt, OSError, ValueError) as e:
        raise Invalid(f"the trainer left no usable result: {e}") from e
    if problems:
        raise Invalid("; ".join(problems[:5]))
    if final.max_steps <= 0 or final.step < final.max_steps:
        raise Invalid(f"the result is from step {final.step} of {final.max_steps}")
    return final


def publish(
    bucket: Bucket,
    publishing: Publishing,
    home: Home,
    spec: JobSpec,
    *,
    redactor: Redactor,
    setting: tuple[int, int],
    made_at: datetime,
) -> ArtifactManifest:
    """Store the result, its manifest last. Returns the manifest that won, which may be another attempt's."""
    final = final_snapshot(home)
    publishing.require_command()
    made = _made_files(bucket, home, spec, final, redactor=redactor, setting=setting)
    locals_ = [Local(name, home.final / name) for name in sorted(final.files) if name not in made]
    for name, data in made.items():
        write_atomically(home.artifact / name, data, mode=0o644)
        locals_.append(Local(name, home.artifact / name))
    config = bucket.config
    return publishing.publish_artifact(
        ArtifactManifest(
            run_id=config.run_id,
            step=final.step,
            max_steps=final.max_steps,
            attempt=config.attempt,
            created_at=made_at,
            files=publishing.upload(locals_),
            recipe_sha256=config.recipe_sha256,
            data_sha256=config.data_sha256,
            metrics=_metrics(final),
            versions=dict(final.versions),
        )
    )


def _metrics(final: Snapshot) -> dict[str, float | int | str | None]:
    own: dict[str, float | int | str | None] = {"step": final.step, "max_steps": final.max_steps, "loss": final.loss}
    return {**own, **final.metrics}


def _made_files(
    bucket: Bucket, home: Home, spec: JobSpec, final: Snapshot, *, redactor: Redactor, setting: tuple[int, int]
) -> dict[str, bytes]:
    config = bucket.config
    provenance = {
        "run_id": config.run_id,
        "attempt": config.attempt,
        "recipe_sha256": config.recipe_sha256,
        "data_sha256": config.data_sha256,
        "trainer": spec.trainer,
        "settings": dict(spec.settings),
        "micro_batch_size": setting[0],
        "gradient_accumulation_steps": setting[1],
        "step": final.step,
        "max_steps": final.max_steps,
        "world_size": final.world_size,
        "versions": dict(final.versions),
        "tune": __version__,
        "format": 1,
    }
    made = {
        "metrics.json": _json(_metrics(final)),
        "provenance.json": _json(provenance),
        "README.md": model_card(provenance, _metrics(final)).encode(),
    }
    made = {name: redactor.text(data.decode()).encode() for name, data in made.items()}
    recipe = _recipe(bucket, home)
    return {**made, "recipe.yaml": recipe} if recipe is not None else made


def _recipe(bucket: Bucket, home: Home) -> bytes | None:
    path = home.job / "recipe.yaml"
    if path.is_file():
        return path.read_bytes()
    try:
        return bucket.store.get(keys.recipe(bucket.config.run_id)).data
    except ObjectNotFound:
        return None


def model_card(provenance: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """A README that says what this is, where it comes from, and how to load it."""
    settings = provenance["settings"]
    base = str(settings.get("base_model_as_written") or settings.get("base_model", "unknown"))
    adapter = settings.get("adapter")
    sources = [str(d.get("path")) for d in settings.get("datasets") or () if isinstance(d, dict)]
    facts = {
        "Base model": f"`{base}`",
        "Method": str(adapter or "full fine-tuning"),
        "Steps": f"{provenance['step']} of {provenance['max_steps']}",
        "Final loss": _number(metrics.get("loss")),
        "Data": ", ".join(f"`{s}`" for s in sources) or "see `recipe.yaml`",
        "Data sha256": f"`{provenance['data_sha256']}`",
        "Recipe sha256": f"`{provenance['recipe_sha256']}`",
        "Trainer": str(provenance["trainer"]),
        "Effective batch": str(provenance["micro_batch_size"] * provenance["gradient_accumulation_steps"]),
    }
    versions = ", ".join(f"{name} {version}" for name, version in sorted(provenance["versions"].items()))
    lines = [
        "---",
        f"base_model: {json.dumps(base)}",
        f"library_name: {'peft' if adapter else 'transformers'}",
        "tags: [spot-tune]",
        "---",
        "",
        f"# {base.rstrip('/').rpartition('/')[2]}, fine-tuned",
        "",
        *(f"- **{name}:** {value}" for name, value in facts.items()),
        f"- **Versions:** {versions or 'not recorded'}",
        "",
        "## Load it",
        "",
        "```python",
        *_loading(base, is_adapter=bool(adapter)),
        "```",
        "",
        "`recipe.yaml` is what it was trained with; `provenance.json` and `metrics.json` say the rest.",
    ]
    return "\n".join(lines) + "\n"


def _loading(base: str, *, is_adapter: bool) -> tuple[str, ...]:
    if is_adapter and base.startswith("package:"):  # a name that only tune understands
        return (
            "from orchestrator.trainers.packaged import resolve",
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            f"base = AutoModelForCausalLM.from_pretrained(str(resolve({base!r})))",
            'model = PeftModel.from_pretrained(base, "path/to/this/folder")',
            'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")',
        )
    if is_adapter:
        return (
            "from peft import AutoPeftModelForCausalLM",
            "from transformers import AutoTokenizer",
            'model = AutoPeftModelForCausalLM.from_pretrained("path/to/this/folder")',
            'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")',
        )
    return (
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        f'model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")  # was {base}',
        'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")',
    )


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "not recorded" if value is None else str(value)


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=str) + "\n").encode()
