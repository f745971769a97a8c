"""Settings in Axolotl's words to a model, a tokenizer and the right arithmetic. Runs in the trainer's environment."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import torch
from tune_events import Refused

CHUNKED_LOSS_UNSAFE = ("lm_head", "embed_out", "output_layer")  # TRL's chunked loss reads the head's own weight


def precision(settings: dict[str, Any]) -> tuple[bool, bool]:
    """(bf16, fp16) as they will be used. `auto` takes bf16 where the device has it."""
    bf16, fp16 = settings.get("bf16"), settings.get("fp16")
    cuda = torch.cuda.is_available()
    if bf16 == "auto":
        bf16 = cuda and torch.cuda.is_bf16_supported() and not fp16
        fp16 = fp16 or (cuda and not bf16)
    if fp16 and not cuda:
        raise Refused("fp16 needs a GPU; on a CPU set `bf16: true`, or leave both off")
    return bool(bf16), bool(fp16)


def attention(settings: dict[str, Any]) -> tuple[str, str]:
    """(implementation, note). Flash attention that cannot be had becomes sdpa, and says so."""
    wanted = settings.get("attn_implementation") or "sdpa"
    if wanted in ("eager", "sdpa"):
        return wanted, ""
    reason = "it needs a GPU" if not torch.cuda.is_available() else _missing(wanted)
    if not reason:
        return wanted, ""
    if settings.get("tune", {}).get("require_flash"):
        raise Refused(f"attn_implementation {wanted} cannot be used: {reason}; `tune.require_flash` forbids another")
    return "sdpa", f"attention is sdpa instead of {wanted}: {reason}"


def _missing(wanted: str) -> str:
    from transformers import utils

    check = {
        "flash_attention_2": "is_flash_attn_2_available",
        "flash_attention_3": "is_flash_attn_3_available",
    }.get(wanted)
    probe = getattr(utils, check, None) if check else None
    return "" if probe is None or probe() else "its package is not installed here"


def load_tokenizer(settings: dict[str, Any]) -> Any:
    """The base model's tokenizer, with the recipe's special tokens and chat template."""
    from transformers import AutoTokenizer

    name = settings.get("tokenizer_config") or settings["base_model"]
    tokenizer = AutoTokenizer.from_pretrained(name, **_hub(settings))
    for key, token in (settings.get("special_tokens") or {}).items():
        if token not in tokenizer.get_vocab():
            raise Refused(
                f"special_tokens.{key}: {token!r} is not in the tokenizer's vocabulary, and the trl trainer adds none"
            )
        setattr(tokenizer, key, token)
    template = settings.get("chat_template_text")
    if template and not (settings.get("chat_template_if_missing") and tokenizer.chat_template):
        tokenizer.chat_template = template
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(settings: dict[str, Any], attn: str, *, bf16: bool, fp16: bool) -> Any:
    """The base model, quantised where the recipe says so."""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    full = not settings.get("adapter")
    dtype = torch.bfloat16 if bf16 else torch.float16 if fp16 and not full else torch.float32
    more: dict[str, Any] = {}
    if settings.get("load_in_4bit"):
        more["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    elif settings.get("load_in_8bit"):
        more["quantization_config"] = BitsAndBytesConfig(load_in_8bit=True)
    if more and torch.cuda.is_available():
        more["device_map"] = {"": 0}
    model = AutoModelForCausalLM.from_pretrained(
        settings["base_model"], dtype=dtype, attn_implementation=attn, **_hub(settings), **more
    )
    model.config.use_cache = False
    return model


def _hub(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "revision": settings.get("revision_of_model"),
        "trust_remote_code": bool(settings.get("trust_remote_code")),
    }


def lora(settings: dict[str, Any]) -> Any:
    """PEFT's configuration, or None for full fine-tuning."""
    if not settings.get("adapter"):
        return None
    from peft import LoraConfig

    targets = settings.get("lora_target_modules")
    if settings.get("lora_target_linear"):
        targets = "all-linear"
    return LoraConfig(
        r=settings["lora_r"],
        lora_alpha=settings["lora_alpha"],
        lora_dropout=settings.get("lora_dropout") or 0.0,
        target_modules=targets,
        modules_to_save=settings.get("lora_modules_to_save"),
        fan_in_fan_out=bool(settings.get("lora_fan_in_fan_out")),
        use_rslora=bool(settings.get("peft_use_rslora")),
        use_dora=bool(settings.get("peft_use_dora")),
        layers_to_transform=settings.get("peft_layers_to_transform"),
        task_type="CAUSAL_LM",
    )


def loss_type(settings: dict[str, Any]) -> str:
    """TRL's memory-saving loss, unless the model's head is itself trained by an adapter."""
    names = [*(settings.get("lora_modules_to_save") or []), *_listed(settings.get("lora_target_modules"))]
    return "nll" if any(name in CHUNKED_LOSS_UNSAFE for name in names) else "chunked_nll"


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


def keep_adapter_exact(model: Any) -> None:
    """Adapters in float32 from the first step on.

    TRL casts the adapters of a quantised model to bfloat16; a resume loads them as float32. Left like that, a resumed
    training is not the one that was interrupted, and its checkpoints double in size.
    """
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the trained weights of a checkpoint."""
    adapter = folder / "adapter_model.safetensors"
    return [adapter] if adapter.exists() else sorted(folder.glob("model*.safetensors"))


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes in a safetensors file, from its header alone."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def trained_state(model: Any) -> dict[str, torch.Tensor]:
    """What a checkpoint of this model must hold, by the names that it is saved under."""
    if hasattr(model, "peft_config"):
        from peft import get_peft_model_state_dict

        return dict(get_peft_model_state_dict(model))
    state: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen or tensor.numel() == 0:  # tied weights are saved once
            state[name] = tensor
            seen.add(tensor.data_ptr())
    return state


def require_same_shapes(folder: Path, model: Any) -> None:
    """Refuse a checkpoint that another recipe made: never a silent fresh start."""
    expected = {name: tuple(tensor.shape) for name, tensor in trained_state(model).items()}
    found: dict[str, tuple[int, ...]] = {}
    for path in weight_files(folder):
        found |= shapes_in(path)
    if expected == found:
        return
    lines = [f"the checkpoint does not fit this recipe: {len(expected)} tensors expected, {len(found)} found"]
    lines += [
        f"  {name}: expected {_shape(expected.get(name))}, found {_shape(found.get(name))}"
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]
    more = len(lines) - 9
    raise Refused("\n".join(lines[:9]) + (f"\n  and {more} more" if more > 0 else ""))


def _shape(shape: tuple[int, ...] | None) -> str:
    return "nothing" if shape is None else "x".join(map(str, shape)) or "one number"


def require_loaded(folder: Path, model: Any) -> None:
    """What is in memory must equal what is in the file, or the training would start from something else."""
    from safetensors import safe_open

    state = trained_state(model)
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                there, here = file.get_tensor(name), state[name].detach().cpu()
                if not torch.equal(there.to(here.dtype), here):
                    raise Refused(
                        f"{name} differs from the checkpoint right after it was loaded: the resume did not take"
                    )


def require_sound(folder: Path) -> None:
    """Refuse to hand over weights that hold NaN, nothing at all, or an adapter that never learned."""
    from safetensors import safe_open

    learned = False
    halves = 0
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                tensor = file.get_tensor(name)
                if tensor.numel() == 0:
                    raise Refused(f"{path.name}: {name} is empty")
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    raise Refused(f"{path.name}: {name} holds NaN or infinity")
                if "lora_B" in name:
                    halves += 1
                    learned = learned or bool(tensor.any())
    if halves and not learned:
        raise Refused("every lora_B is zero: the adapter learned nothing")
