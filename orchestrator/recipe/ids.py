"""Model ids: what people paste, as a repository and a revision, or as a folder."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.recipe.scalars import Unfit, show
from orchestrator.recipe.source import is_invisible, name_of

_HUB = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/", re.IGNORECASE)
_PART = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?|[A-Za-z0-9]", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}", re.ASCII)
_PACKAGE = re.compile(r"package:[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_PREQUANTISED = re.compile(r"(?:bnb|nf4|fp4|4bit|8bit|gptq|awq|int4|int8|exl2|aqlm|hqq)(?:$|[-_.])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ModelId:
    """A model: a hub repository with its revision, or a local folder."""

    name: str  # org/repo, or the folder as written
    revision: str | None = None
    local: bool = False
    notices: tuple[str, ...] = ()


def is_local(text: str) -> bool:
    """A path on this computer, rather than a hub repository."""
    bare = text.strip()
    return (
        bare.startswith(("./", "../", "/", "~", "file:"))
        or bare in {".", ".."}
        or bool(re.match(r"[A-Za-z]:[\\/]", bare))
    )


def parse_model_id(text: str, *, remote: bool = False) -> ModelId:
    """`org/repo`, with `@revision` or `:revision`, a hub address, or a folder (never for a remote provider)."""
    bare = text.strip(" \t\n")
    notices = [f"{show(text)}: spaces around the model id are ignored"] if bare != text else []
    if not bare:
        raise Unfit("the model id is empty", "write it like org/model")
    if odd := next((c for c in bare if is_invisible(c)), None):
        raise Unfit(f"{show(text)} contains {name_of(odd)}", "delete it")
    if _PACKAGE.fullmatch(bare):
        return ModelId(bare, notices=tuple(notices))
    if is_local(bare):
        return _folder(bare, text, notices, remote=remote)
    name, revision = _split(bare, text)
    if " " in bare:
        raise Unfit(f"{show(text)} contains a space", f"model ids have none; did you mean {bare.replace(' ', '-')}?")
    parts = name.split("/")
    if len(parts) == 1:
        hint = f"write org/{name} for a model on the hub, or ./{name} for a folder"
        raise Unfit(f"{show(text)} is ambiguous: it names no organisation", hint)
    if len(parts) > 2 or not all(_PART.fullmatch(p) for p in parts) or "--" in name or ".." in name:
        good = "/".join(parts[:2])
        hint = (
            f"did you mean {good}?"
            if len(parts) > 2 and all(_PART.fullmatch(p) for p in parts[:2])
            else "write it like org/model"
        )
        raise Unfit(f"{show(text)} is not a model id", hint)
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise Unfit(f"{show(text)} has no usable revision after the model id", f"write {name}@main, or a commit")
    if re.search(r"(?:^|[-_.])gguf(?:$|[-_.])", parts[1], re.IGNORECASE):
        base = re.sub(r"[-_.]?gguf.*$", "", name, flags=re.IGNORECASE)
        raise Unfit(f"{show(text)} holds GGUF files, which are for inference and cannot be trained", f"use {base}")
    if re.search(_PREQUANTISED, parts[1].lower()):
        notices.append(
            f"{name} is already quantised: its weights are used as they are, and load_in_4bit cannot change them"
        )
    return ModelId(name, revision, notices=tuple(notices))


def _folder(bare: str, text: str, notices: list[str], *, remote: bool) -> ModelId:
    if re.search(r"\.gguf$", bare, re.IGNORECASE):
        raise Unfit(
            f"{show(text)} is a GGUF file, which is for inference and cannot be trained", "use the original weights"
        )
    if remote:
        hint = "push it to the hub and write org/model, or use `provider: local`"
        raise Unfit(f"{show(text)} is a folder on this computer, which a rented instance cannot see", hint)
    return ModelId(bare.removeprefix("file://") or bare, local=True, notices=tuple(notices))


def _split(bare: str, text: str) -> tuple[str, str | None]:
    """(name, revision) of a hub id or address."""
    address = _HUB.match(bare)
    if address is None and "://" in bare:
        raise Unfit(f"{show(text)} is not an address of the hub", "write it like org/model")
    rest = (bare[address.end() :] if address else bare.removeprefix("hf:")).split("?")[0].split("#")[0].strip("/")
    if address and (match := re.fullmatch(r"([^/]+/[^/]+)/(?:tree|blob|resolve|commit)/(.+)", rest)):
        revision = match[2] if "/blob/" not in rest and "/resolve/" not in rest else match[2].split("/")[0]
        return match[1], revision
    for mark in "@:":
        if mark in rest:
            name, _, revision = rest.partition(mark)
            return name.strip("/"), revision
    return rest, None
