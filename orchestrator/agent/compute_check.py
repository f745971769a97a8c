"""Run by the trainer's interpreter: do its GPUs compute, and does what it brings along find them?

Prints one line of JSON: `gpus`, `torch`, `cuda`, and where something is wrong `failed`, `import_failed` or
`quantising_failed`.
Needs nothing but torch, so that it runs in any environment that could train.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any


def check() -> dict[str, Any]:
    try:
        import torch
    except Exception as e:
        return {"import_failed": _said(e)}
    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": 0}
    try:
        if not torch.cuda.is_available():
            torch.cuda.init()  # says why
        found["gpus"] = torch.cuda.device_count()
        for index in range(found["gpus"]):
            wrong = _wrong(torch, index)
            if wrong:
                return {**found, "failed": f"GPU {index}: {wrong}"}
    except Exception as e:
        return {**found, "failed": _said(e)}
    return {**found, **_quantising(torch)}


def _wrong(torch: Any, index: int) -> str:
    """A product of two matrices on the GPU against the same one on the CPU, in the precision that is trained in."""
    torch.manual_seed(0)
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    there = torch.device("cuda", index)
    ours = (a.to(there) @ b.to(there)).cpu()
    if not torch.isfinite(ours).all() or (ours - a @ b).abs().max() > 0.5:  # TF32 keeps ten bits of each factor
        return "it computes wrong results"
    return ""


def _quantising(torch: Any) -> dict[str, str]:
    """The library for it comes in one build per CUDA version, and finds out late that none fits."""
    if importlib.util.find_spec("bitsandbytes") is None:
        return {"quantising_failed": "bitsandbytes is not installed"}
    try:
        from bitsandbytes import functional

        packed, state = functional.quantize_4bit(torch.ones(64, 64, device="cuda", dtype=torch.float16))
        functional.dequantize_4bit(packed, state)
        torch.cuda.synchronize()
    except Exception as e:
        return {"quantising_failed": f"CUDA {torch.version.cuda}: {_said(e)}"}
    return {}


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


if __name__ == "__main__":
    json.dump(check(), sys.stdout)
