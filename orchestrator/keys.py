"""Where things lie in the bucket. The one place that spells a key."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

NAMESPACE = "namespace.json"
ACTIVE = (
    "active/"  # one empty object per run that is not terminal, so that a pass costs what is active, not what ever was
)
NAMES = "names/"  # one small object per run name, create-only: it says which run owns the name
RUNS = "runs/"
UNBILLED = "unbilled/"  # one empty object per ended run whose marketplace has not said its last word about the cost
HOSTS = "hosts/"  # one small object per machine that has disappointed; its age says whether it still counts
SWEEP = "sweep/"  # one small object per instance nobody owns; the next sweep may be another computer's

_CHECKPOINT = re.compile(r"^(0|[1-9][0-9]*)-a([1-9][0-9]*)\.json$")


def active(run_id: str) -> str:
    return f"{ACTIVE}{run_id}"


def name(run_name: str) -> str:
    """Quoted, so that any name is one path segment and round-trips."""
    return f"{NAMES}{quote(run_name, safe='')}.json"


def name_of(key: str) -> str:
    return unquote(key.removeprefix(NAMES).removesuffix(".json"))


def run(run_id: str) -> str:
    """The run's prefix, with its slash."""
    return f"{RUNS}{run_id}/"


def record(run_id: str) -> str:
    return f"{run(run_id)}run.json"


def recipe(run_id: str) -> str:
    return f"{run(run_id)}recipe.yaml"


def resolved_recipe(run_id: str) -> str:
    """The recipe as it was understood: typed, translated, with what `--set` changed."""
    return f"{run(run_id)}resolved.json"


def data_report(run_id: str) -> str:
    return f"{run(run_id)}data.json"


def files_manifest(run_id: str) -> str:
    """Names every uploaded file with its size and sha256; written last by `tune launch`."""
    return f"{run(run_id)}files.json"


def file(run_id: str, path: str) -> str:
    return f"{run(run_id)}files/{path}"


def attempt(run_id: str, number: int) -> str:
    return f"{run(run_id)}a{number}/"


def heartbeat(run_id: str, number: int) -> str:
    return f"{attempt(run_id, number)}heartbeat.json"


def exit_record(run_id: str, number: int) -> str:
    return f"{attempt(run_id, number)}exit.json"


def probe(run_id: str, number: int) -> str:
    """Written, read and removed again by an agent that tries its keys and its line."""
    return f"{attempt(run_id, number)}probe"


def blobs(run_id: str, number: int) -> str:
    return f"{attempt(run_id, number)}blobs/"


def blob(run_id: str, number: int, sha256: str) -> str:
    return f"{blobs(run_id, number)}{sha256}"


def log_segment(run_id: str, number: int, segment: int) -> str:
    """Logs are written in segments, because a bucket cannot append."""
    return f"{attempt(run_id, number)}log/{segment:06d}.txt"


def setup_log(run_id: str, number: int) -> str:
    """The end of the log of a set-up that failed before there was an agent."""
    return f"{attempt(run_id, number)}setup.txt"


def metrics_segment(run_id: str, number: int, segment: int) -> str:
    return f"{attempt(run_id, number)}metrics/{segment:06d}.jsonl"


def stacks(run_id: str, number: int, incident: int) -> str:
    """A dump of every thread, taken when the trainer hung."""
    return f"{attempt(run_id, number)}stacks/{incident:03d}.txt"


def checkpoints(run_id: str) -> str:
    return f"{run(run_id)}ckpt/"


def checkpoint(run_id: str, step: int, number: int) -> str:
    return f"{checkpoints(run_id)}{step}-a{number}.json"


def parse_checkpoint(file_name: str) -> tuple[int, int] | None:
    """(step, attempt) of `<step>-a<k>.json`; None for anything else, compared as numbers and never as text."""
    match = _CHECKPOINT.match(file_name)
    return (int(match[1]), int(match[2])) if match else None


def artifact(run_id: str) -> str:
    return f"{run(run_id)}artifact/manifest.json"


def suspect(provider: str, instance_id: str) -> str:
    return f"{SWEEP}{quote(provider, safe='')}/{quote(instance_id, safe='')}"


def parse_suspect(key: str) -> tuple[str, str] | None:
    """(provider, instance id) of a sweep's note; None for anything else."""
    provider, slash, instance_id = key.removeprefix(SWEEP).partition("/")
    return (unquote(provider), unquote(instance_id)) if slash and "/" not in instance_id else None


def unbilled(run_id: str) -> str:
    return f"{UNBILLED}{run_id}"


def bad_host(provider: str, host_id: str) -> str:
    """Its bytes say why, its Last-Modified since when."""
    return f"{HOSTS}{quote(provider, safe='')}/{quote(host_id, safe='')}"


def parse_bad_host(key: str) -> tuple[str, str] | None:
    """(provider, host id), or None for any other key."""
    provider, slash, host = key.removeprefix(HOSTS).partition("/")
    return (unquote(provider), unquote(host)) if key.startswith(HOSTS) and slash and host else None
