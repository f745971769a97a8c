"""Trains what a recipe asks for with TRL, in such a way that a killed training can be carried on bit by bit.

    python train_trl.py CONFIG.json

CONFIG.json says what to train, where the data lies and where events, checkpoints and the result go. Everything that is
random hangs on the seed; checkpoints are taken only between optimizer steps; the result counts only when the last step
was reached. Leaves with 0 (done), 75 (saved on request), 76 (out of memory) or 1 (failed).
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tune_events import EXIT_SAVED, LEFT_OUT, Events, Refused, Snapshots, Stop, files_below, is_vouched, vouch

EXIT_OOM = 76
NEVER = 1_000_000_000  # steps: the Trainer's own schedule of saves, which is ours to decide
RESUME_NEEDS = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
DEFAULT_WARMUP_SHARE = 0.03  # Axolotl's, with its cap
DEFAULT_WARMUP_CAP = 100
VERSIONED = ("torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "tokenizers", "datasets")


def main(argv: list[str]) -> int:
    """Run one training; returns the exit code."""
    stop = Stop()
    stop.listen()
    _no_input()
    config = json.loads(Path(argv[1]).read_bytes())
    events = Events(config["events_path"])
    events.emit("phase", name="loading")
    try:
        return _train(config, events, stop)
    except Exception as error:
        if _is_out_of_memory(error):
            traceback.print_exc()
            events.emit("oom", text=str(error).splitlines()[0] if str(error) else type(error).__name__)
            return EXIT_OOM
        if isinstance(error, Refused):
            print(f"error: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
        events.emit("note", text=f"the trainer failed: {type(error).__name__}: {str(error)[:500]}")
        return 1


def _no_input() -> None:
    """Nobody can answer a question here: whoever asks one fails at once instead of waiting for ever."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _is_out_of_memory(error: BaseException) -> bool:
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


def _train(config: dict[str, Any], events: Events, stop: Stop) -> int:
    final, record = Path(config["final_dir"]), Path(f"{config['final_dir'].rstrip('/')}.json")
    if is_vouched(record, final):  # killed between the last word and the exit
        said = json.loads(record.read_bytes())
        events.emit("done", step=said["step"], max_steps=said["max_steps"])
        return 0
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise Refused("the trl trainer works on one GPU; start one process")
    snapshots = Snapshots(config["snapshots_dir"])
    for name in snapshots.discard_unfinished():
        print(f"removed {name}: left unfinished by an earlier start", file=sys.stderr)
    output = Path(config["output_dir"])
    if output.exists():
        shutil.rmtree(output)  # only snapshots are trusted
    trainer, callback = _build(config, events, snapshots, stop)
    resume_from = config.get("resume_from")
    trainer.train(resume_from_checkpoint=resume_from)
    state = trainer.state
    if state.global_step < state.max_steps:
        if stop.wanted:
            return EXIT_SAVED
        raise Refused(f"training ended at step {state.global_step} of {state.max_steps}")
    if state.max_steps < 1:
        raise Refused("there was no step to train")
    events.emit("phase", name="finishing")
    _hand_over(trainer, callback, config, final, record)
    events.emit("done", step=state.global_step, max_steps=state.max_steps)
    return 0


def _build(config: dict[str, Any], events: Events, snapshots: Snapshots, stop: Stop) -> tuple[Any, Any]:
    import tune_model
    from transformers import set_seed
    from tune_callback import TuneCallback
    from tune_data import dataset, fingerprint, rows
    from tune_trainer import TuneTrainer

    settings = config["settings"]
    seed = settings["seed"]
    bf16, fp16 = tune_model.precision(settings)
    attn, note = tune_model.attention(settings)
    if note:
        events.emit("note", text=note)
    tokenizer = tune_model.load_tokenizer(settings)
    train_rows, eval_rows = rows(settings, Path(config["job_dir"]), tokenizer)
    effective = config["micro_batch_size"] * config["gradient_accumulation_steps"]
    identity = {"effective_batch": effective, "data": fingerprint(train_rows), "seed": seed}
    before = _before(config, identity, events)
    set_seed(seed)  # before the model exists: its adapters are drawn from this
    model = tune_model.load_model(settings, attn, bf16=bf16, fp16=fp16)
    args = _arguments(config, len(train_rows), bf16=bf16, fp16=fp16, evaluates=bool(eval_rows))
    tokens = sum(len(row.input_ids) for row in train_rows)
    start = {"versions": _versions(), "tokens_per_step": round(tokens / max(1, len(train_rows)) * effective, 1)}
    callback = TuneCallback(
        events,
        snapshots,
        stop,
        control_dir=config["control_dir"],
        checkpoint_every_s=config["checkpoint_every_s"],
        save_steps=settings.get("save_steps"),
        identity=identity,
        start=start,
        before_s=before.get("train_s", 0.0),
        resumed_loss=before.get("loss"),
    )
    trainer = TuneTrainer(
        model=model,
        args=args,
        train_dataset=dataset(train_rows),
        eval_dataset=dataset(eval_rows) if eval_rows else None,
        processing_class=tokenizer,
        peft_config=tune_model.lora(settings),
        callbacks=[callback],
    )
    trainer.set_up(
        events, lengths=[len(row.input_ids) for row in train_rows] if settings.get("group_by_length") else None
    )
    if settings.get("adapter"):
        tune_model.keep_adapter_exact(trainer.model)
    trainer.attention_used = trainer.model.config._attn_implementation  # noqa: SLF001 - the only place that knows
    return trainer, callback


def _before(config: dict[str, Any], identity: dict[str, Any], events: Events) -> dict[str, Any]:
    """What the checkpoint remembers, after it was found fit to go on from."""
    if not config.get("resume_from"):
        return {}
    folder = Path(config["resume_from"])
    missing = [name for name in RESUME_NEEDS if not (folder / name).is_file()]
    if missing and not (
        config["settings"].get("tune", {}).get("allow_optimizer_reset") and missing != [RESUME_NEEDS[-1]]
    ):
        raise Refused(
            f"the checkpoint in {folder.name} lacks {', '.join(missing)}: the optimizer would silently start afresh; "
            "`tune.allow_optimizer_reset: true` accepts that"
        )
    if missing:
        events.emit("note", text=f"resumed without {', '.join(missing)}: optimizer and learning rate start afresh")
    try:
        remembered = json.loads((folder / "tune_state.json").read_bytes())
    except FileNotFoundError:
        return {}
    made_with, here = str(remembered.get("torch") or ""), _versions().get("torch", "")
    if made_with and made_with.split(".")[:2] != here.split(".")[:2]:
        raise Refused(
            f"the checkpoint was made with torch {made_with} and this is torch {here}: what it remembers may not load, "
            "or not go on as it was; train with the version that it was made with"
        )
    for key, what in (("effective_batch", "effective batch size"), ("data", "data"), ("seed", "seed")):
        if remembered.get(key) != identity[key]:
            raise Refused(
                f"the {what} differs from the checkpoint's ({identity[key]} now, {remembered.get(key)} then): "
                "going on would repeat some rows and skip others"
            )
    return dict(remembered)


def _arguments(config: dict[str, Any], row_count: int, *, bf16: bool, fp16: bool, evaluates: bool) -> Any:
    import torch
    from trl import SFTConfig
    from tune_steps import optimizer_steps

    settings = config["settings"]
    micro, accumulation = config["micro_batch_size"], config["gradient_accumulation_steps"]
    batches = {"micro_batch_size": micro, "gradient_accumulation_steps": accumulation}
    per_epoch = optimizer_steps(row_count, num_epochs=1, **batches)
    epochs, limit = settings.get("num_epochs") or 1, settings.get("max_steps") or 0
    max_steps = optimizer_steps(row_count, num_epochs=epochs, max_steps=limit, **batches)
    if max_steps < 1:
        raise Refused(f"{row_count} rows can be trained on, which makes no step")
    cuda = torch.cuda.is_available()
    tf32 = settings.get("tf32")
    more = {
        name: settings[key]
        for key, name in (
            ("optim_args", "optim_args"),
            ("adam_beta1", "adam_beta1"),
            ("adam_beta2", "adam_beta2"),
            ("adam_epsilon", "adam_epsilon"),
            ("lr_scheduler_kwargs", "lr_scheduler_kwargs"),
            ("gradient_checkpointing_kwargs", "gradient_checkpointing_kwargs"),
        )
        if settings.get(key) is not None
    }
    from tune_model import loss_type

    return SFTConfig(
        output_dir=config["output_dir"],
        per_device_train_batch_size=micro,
        per_device_eval_batch_size=settings.get("eval_batch_size") or micro,  # evaluation must not need more memory
        gradient_accumulation_steps=accumulation,
        max_steps=max_steps,
        learning_rate=settings["learning_rate"],
        lr_scheduler_type=settings.get("lr_scheduler") or "cosine",
        warmup_steps=_warmup(settings, max_steps),
        weight_decay=settings.get("weight_decay") or 0.0,
        max_grad_norm=settings.get("max_grad_norm", 1.0),
        optim=settings.get("optimizer") or "adamw_torch_fused",
        seed=settings["seed"],
        bf16=bf16,
        fp16=fp16,
        tf32=(None if tf32 in (None, "auto") else bool(tf32)) if cuda else None,
        use_cpu=not cuda,
        gradient_checkpointing=bool(settings.get("gradient_checkpointing")),
        max_length=None,  # rows are already cut
        packing=False,  # and already packed
        padding_free=bool(settings.get("sample_packing")),
        loss_type=loss_type(settings),
        logging_steps=settings.get("logging_steps") or max(1, min(10, int(0.005 * max_steps))),
        logging_first_step=True,
        logging_nan_inf_filter=False,  # a NaN must be seen
        include_num_input_tokens_seen="all" if settings.get("sample_packing") else "non_padding",
        eval_strategy=_eval_every(settings, per_epoch) if evaluates else "no",
        eval_steps=_eval_steps(settings, per_epoch) if evaluates else None,
        save_strategy="steps",
        save_steps=NEVER,  # by time, by wish and at the end: see the callback
        dataloader_num_workers=settings.get("dataloader_num_workers") or 0,
        dataloader_pin_memory=cuda and settings.get("dataloader_pin_memory", True),
        report_to="none",
        disable_tqdm=True,
        **more,
    )


def _warmup(settings: dict[str, Any], max_steps: int) -> int:
    if settings.get("warmup_steps") is not None:
        return int(settings["warmup_steps"])
    if settings.get("warmup_ratio") is not None:
        return int(settings["warmup_ratio"] * max_steps)
    return min(int(DEFAULT_WARMUP_SHARE * max_steps), DEFAULT_WARMUP_CAP)


def _eval_every(settings: dict[str, Any], per_epoch: int) -> str:
    return "steps" if _eval_steps(settings, per_epoch) else "epoch"


def _eval_steps(settings: dict[str, Any], per_epoch: int) -> float | None:
    if settings.get("eval_steps"):
        return float(settings["eval_steps"])
    if settings.get("evals_per_epoch"):
        return float(max(1, per_epoch // int(settings["evals_per_epoch"])))
    return None


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": sys.version.split()[0]}
    for name in VERSIONED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _hand_over(trainer: Any, callback: Any, config: dict[str, Any], final: Path, record: Path) -> None:
    """Write what the user keeps, check it, and vouch for it."""
    from tune_model import require_sound

    if final.exists():
        shutil.rmtree(final)
    trainer.save_model(str(final))
    trainer.processing_class.save_pretrained(str(final))
    for name in LEFT_OUT:
        (final / name).unlink(missing_ok=True)
    _name_base(final / "adapter_config.json", config["settings"])
    for name in files_below(final):
        (final / name).chmod(0o644)
    require_sound(final)
    state = trainer.state
    metrics = _metrics(trainer, callback)
    said = {
        "step": state.global_step,
        "max_steps": state.max_steps,
        "world_size": 1,
        "loss": metrics["last_loss"],
        "versions": _versions(),
        "metrics": metrics,
    }
    vouch(final, record, said)


def _name_base(path: Path, settings: dict[str, Any]) -> None:
    """The adapter says which base it belongs to as the recipe does, not by a folder that is gone tomorrow."""
    if path.exists():
        said = json.loads(path.read_text())
        said["base_model_name_or_path"] = settings.get("base_model_as_written") or settings["base_model"]
        path.write_text(json.dumps(said, indent=2, sort_keys=True) + "\n")


def _losses(history: list[dict[str, Any]], key: str) -> Iterator[tuple[int, float]]:
    """One loss per step: what was logged twice around a resume counts once, the later one."""
    seen = {entry["step"]: float(entry[key]) for entry in history if key in entry}
    yield from sorted(seen.items())


def _metrics(trainer: Any, callback: Any) -> dict[str, Any]:
    import torch

    losses = [loss for _, loss in _losses(trainer.state.log_history, "loss")]
    evals = [loss for _, loss in _losses(trainer.state.log_history, "eval_loss")]
    tenth = losses[-max(1, len(losses) // 10) :]
    trained = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    return {
        "first_loss": _finite(losses[0] if losses else None),
        "last_loss": _finite(losses[-1] if losses else None),
        "mean_loss": _finite(sum(losses) / len(losses) if losses else None),
        "closing_loss": _finite(sum(tenth) / len(tenth) if tenth else None),  # mean over the last tenth
        "eval_loss": _finite(evals[-1] if evals else None),
        "tokens": trainer.state.num_input_tokens_seen,
        "train_s": round(callback.train_s, 3),
        "trained_parameters": trained,
        "peak_gpu_gib": round(torch.cuda.max_memory_allocated() / 2**30, 3) if torch.cuda.is_available() else None,
        "peak_ram_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3),
        "attention": trainer.attention_used,
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu",
    }


def _finite(value: float | None) -> float | str | None:
    from tune_events import spelled

    return spelled(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
