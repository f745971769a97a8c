"""A recipe becomes a run: prepared without touching anything, then stored so that the same command mends a crash."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import codec, keys
from orchestrator.errors import AlreadyExists, Problem, RecipeError, RunConflict, RunNotFound, UsageError
from orchestrator.handover import JobFile, JobFiles
from orchestrator.leaks import Scanner, suspicious_name
from orchestrator.recipe import gpus, needs
from orchestrator.recipe.model import TuneBlock
from orchestrator.types import Limits, Requirements, Run, RunId, new_run_id

if TYPE_CHECKING:
    from orchestrator.recipe.data import DataReport
    from orchestrator.recipe.model import Recipe
    from orchestrator.storage.runs import RunStore
    from orchestrator.trainers.base import RenderedJob

JOB_FILE = "trainer/job.json"
MAX_NAME_BYTES = 180  # in the bucket, quoted; file systems take names up to 255
_CHUNK = 1 << 20
_TENSORS = (".safetensors", ".gguf")  # after their header they hold numbers, which take long to search and tell nothing
_SEARCHED_OF_TENSORS = 1 << 20
# What an instance elsewhere is rented with where the recipe does not say: the training stack unpacked is about 10 GB,
# and base model, checkpoints and caches of the sizes that fit one GPU have room in the rest.
DEFAULT_DISK_GB = 50.0
TINY_DISK_GB = 16.0  # without a GPU: the CPU stack takes about 4 GB
COPIES_ON_DISK = 3  # of a model that is sent along: as fetched, in the checkpoints, in the artifact
STACK_DOWNLOAD_GB = 4.0  # the pinned training stack with CUDA, as wheels
TINY_STACK_DOWNLOAD_GB = 1.0
_UNFIT_FOR_NAMES = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

Count = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A recipe that has been checked, with everything that a launch would store. Nothing has been sent yet."""

    recipe: Recipe
    report: DataReport
    provider: str
    name: str  # empty: a new name with every launch
    contents: Mapping[str, bytes | Path]  # path below the run's files -> what goes there
    files: JobFiles  # the same, with sizes and hashes
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    job: RenderedJob | None = None  # keeps the trainer's temporary files alive until they are sent
    is_elsewhere: bool = False  # the instance will be another computer

    @property
    def upload_bytes(self) -> int:
        return sum(file.size for file in self.files.files)

    @property
    def want(self) -> Requirements:
        """What the instance must have."""
        return want(self.recipe.tune, is_elsewhere=self.is_elsewhere, sent_gb=self.upload_bytes / 1e9)


@dataclass(frozen=True, slots=True)
class Resolved:
    """`resolved.json`: the recipe as it was understood, so that nobody has to guess what a run was trained with."""

    training: Mapping[str, Any]
    tune: TuneBlock
    format: int = 1


@dataclass(frozen=True, slots=True)
class Launched:
    """The stored run, and whether this launch made it or found it."""

    run: Run
    is_new: bool
    notices: tuple[str, ...] = field(default=())


def prepare(
    recipe: Recipe,
    *,
    provider: str,
    is_elsewhere: bool = False,
    name: str = "",
    allow_secret_files: bool = False,
    own_secrets: Iterable[tuple[str, str]] = (),
    on_note: Callable[[str], None] | None = None,
    on_rows: Callable[[int, str], None] | None = None,
    on_bytes: Count | None = None,
) -> Prepared:
    """Everything that can be refused is refused here, before a byte is sent or a cent is spent.

    `is_elsewhere`: the provider's instances are other computers, so that what lies on this one is sent along.
    `on_note` is told what takes a while before the first row is read, such as a model that is made ready.
    """
    from orchestrator.recipe import check_provider, data
    from orchestrator.trainers.registry import get_trainer

    if name:
        check_name(name)
    check_provider(recipe, provider)
    trainer = get_trainer(recipe.tune.trainer)
    problems = trainer.problems(recipe)
    if problems:
        raise RecipeError(f"{recipe.path}: the trainer {trainer.name} cannot do this", problems)
    tokenizer = trainer.prepare(recipe, progress=on_note)
    report = data.check(recipe, tokenizer=tokenizer, progress=on_rows)
    job = trainer.render(recipe, report, is_elsewhere=is_elsewhere)
    contents: dict[str, bytes | Path] = {**_named_files(recipe), **job.files, JOB_FILE: codec.dump(job.spec)}
    files, suspects = _measure(contents, recipe, tuple(own_secrets), on_bytes)
    warnings = _judge(suspects, recipe, allowed=allow_secret_files)
    notices = (*recipe.notices, *trainer.notices(recipe))
    return Prepared(recipe, report, provider, name, contents, files, notices, warnings, job, is_elsewhere)


def check_name(name: str) -> str:
    """The name itself, or UsageError: names are shown, typed after a command and used as keys."""
    advice = "letters, digits, spaces and most signs are fine, in any language"
    try:
        size = len(keys.name(name).encode())
    except UnicodeEncodeError:
        raise UsageError(f"not a name: {name!r} holds half a character", hint=advice) from None
    if not name.strip():
        raise UsageError("a run's name must not be empty", hint=advice)
    if name != name.strip():
        raise UsageError(f"not a name: {name!r} begins or ends with a space", hint=advice)
    if name.startswith("-"):
        raise UsageError(f"not a name: {name!r} would be taken for an option", hint=advice)
    if _UNFIT_FOR_NAMES.search(name):
        raise UsageError(f"not a name: {name!r} holds a control character", hint=advice)
    if size > MAX_NAME_BYTES:
        raise UsageError(
            f"a name of {size} bytes (as the bucket spells it) is longer than {MAX_NAME_BYTES}", hint=advice
        )
    return name


def launch(prepared: Prepared, runs: RunStore, *, now: datetime, on_bytes: Count | None = None) -> Launched:
    """Store the run, or find it: the same name with the same recipe and data is the same run.

    The order is what makes a crash harmless: the name is claimed first and points at a run id, so a second launch
    goes on with that id; the record, which makes the run real, comes last. `now` is the store's clock.
    """
    run_id = new_run_id(now)
    recipe, report = prepared.recipe, prepared.report
    name = prepared.name or f"{_stem(recipe.path)}-{run_id}"
    claim = runs.claim_name(name, run_id, recipe.sha256, report.data_sha256)
    if (claim.recipe_sha256, claim.data_sha256) != (recipe.sha256, report.data_sha256):
        what = "recipe" if claim.recipe_sha256 != recipe.sha256 else "data"
        raise RunConflict(
            f"the name {name!r} belongs to run {claim.run_id}, which trains another {what}",
            hint=f"choose another --name, or go on with that one: tune resume {claim.run_id}",
        )
    existing = _existing(runs, claim.run_id)
    if existing:
        return Launched(existing, is_new=False, notices=_differences(existing, prepared))
    _upload(prepared, runs, claim.run_id, on_bytes)
    run = _record(prepared, runs, claim.run_id, name, now)
    try:
        runs.create(run)
    except RunConflict:  # somebody launched the same thing at the same moment
        return Launched(runs.load(claim.run_id).run, is_new=False)
    return Launched(run, is_new=True)


def _record(prepared: Prepared, runs: RunStore, run_id: RunId, name: str, now: datetime) -> Run:
    return Run(
        run_id=run_id,
        name=name,
        namespace=runs.namespace(),
        created_at=now,
        recipe_sha256=prepared.recipe.sha256,
        data_sha256=prepared.report.data_sha256,
        provider=prepared.provider,
        want=prepared.want,
        environment=prepared.recipe.tune.environment,
        needs=needs.secrets(prepared.recipe),
        limits=Limits(**{limit.name: getattr(prepared.recipe.tune, limit.name) for limit in fields(Limits)}),
    )


def want(tune: TuneBlock, *, is_elsewhere: bool, sent_gb: float = 0.0) -> Requirements:
    """What an instance must have for a recipe, of which so much is sent along."""
    asked = Requirements(
        gpu_count=tune.gpu_count or 0,
        vram_gib=tune.min_vram_gib or 0.0,
        disk_gb=tune.disk_gb or 0.0,
        spot=tune.spot,
        max_usd_per_hour=tune.max_usd_per_hour,
        gpu_names=gpus.canonical(tune.gpu),
        image=tune.image or "",
    )
    if not is_elsewhere:
        return asked
    is_tiny = tune.gpu_count == 0
    return replace(
        asked,
        gpu_count=1 if tune.gpu_count is None else tune.gpu_count,
        disk_gb=tune.disk_gb or round((TINY_DISK_GB if is_tiny else DEFAULT_DISK_GB) + COPIES_ON_DISK * sent_gb, 1),
        download_gb=round((TINY_STACK_DOWNLOAD_GB if is_tiny else STACK_DOWNLOAD_GB) + sent_gb, 3),
        upload_gb=round(COPIES_ON_DISK * sent_gb, 3),
    )


def _existing(runs: RunStore, run_id: RunId) -> Run | None:
    try:
        return runs.load(run_id).run
    except RunNotFound:
        return None


def _differences(run: Run, prepared: Prepared) -> tuple[str, ...]:
    if run.provider != prepared.provider:
        return (f"the run stays with provider {run.provider}; {prepared.provider} was asked for",)
    return ()


def _upload(prepared: Prepared, runs: RunStore, run_id: RunId, on_bytes: Count | None) -> None:
    """Files first, their list after them, the recipe and the data report last."""
    store = runs.store
    for path, content in prepared.contents.items():
        key = keys.file(run_id, path)
        if isinstance(content, Path):
            store.upload(key, content, progress=on_bytes)
        else:
            store.put(key, content)
            if on_bytes:
                on_bytes(len(content))
    store.put(keys.files_manifest(run_id), codec.dump(prepared.files))
    for key, data in (
        (keys.recipe(run_id), prepared.recipe.text),
        (keys.resolved_recipe(run_id), codec.dump(Resolved(prepared.recipe.training, prepared.recipe.tune))),
        (keys.data_report(run_id), codec.dump(prepared.report)),
    ):
        try:
            store.put_new(key, data)
        except AlreadyExists:
            continue  # left by a launch that crashed, or just made by one beside us: same name, same hashes


def _named_files(recipe: Recipe) -> dict[str, Path]:
    """The extra files that the recipe names. Only files: a folder would take along what nobody looked at."""
    found: dict[str, Path] = {}
    problems: list[Problem] = []
    for index, name in enumerate(recipe.tune.files):
        where, line = f"tune.files[{index}]", recipe.place(f"tune.files[{index}]")
        path = recipe.path.parent / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            problems.append(
                Problem(where, f"{name!r} does not lie beside the recipe", path=str(recipe.path), line=line)
            )
        elif not path.is_file():
            problems.append(Problem(where, f"there is no file {name!r}", path=str(recipe.path), line=line))
        else:
            found[f"files/{Path(name).as_posix()}"] = path
    if problems:
        raise RecipeError(
            f"{recipe.path}: files that cannot be sent", problems, hint="paths are relative to the recipe"
        )
    return found


def _measure(
    contents: Mapping[str, bytes | Path], recipe: Recipe, own: Sequence[tuple[str, str]], on_bytes: Count | None
) -> tuple[JobFiles, list[tuple[str, str]]]:
    """Sizes and hashes, and (file, reason) for whatever looks like a secret; one reading does both."""
    files: list[JobFile] = []
    suspects: list[tuple[str, str]] = []
    for path, content in [*contents.items(), ("recipe.yaml", recipe.text)]:
        digest, size, scanner = hashlib.sha256(), 0, Scanner(own)
        with content.open("rb") if isinstance(content, Path) else nullcontext(io.BytesIO(content)) as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                if size < _SEARCHED_OF_TENSORS or not path.endswith(_TENSORS):
                    scanner.feed(chunk)
                size += len(chunk)
                if on_bytes:
                    on_bytes(len(chunk))
        shown = str(content) if isinstance(content, Path) else path
        if suspicious_name(shown) or suspicious_name(path):
            suspects.append((shown, "its name is one that secrets have"))
        elif scanner.found:
            suspects.append((shown, f"it holds {scanner.found}"))
        if path in contents:
            files.append(JobFile(path, size, digest.hexdigest()))
    return JobFiles(tuple(files)), suspects


def _judge(suspects: Sequence[tuple[str, str]], recipe: Recipe, *, allowed: bool) -> tuple[str, ...]:
    if suspects and not allowed:
        raise RecipeError(
            f"{recipe.path}: files that look like secrets would be sent to a rented computer",
            [Problem("", reason, path=path) for path, reason in suspects],
            hint="take them out of the recipe; --allow-secret-files sends them all the same",
        )
    return tuple(f"{path} is sent although {reason}" for path, reason in suspects)


def _stem(path: Path) -> str:
    """The recipe file's name as the beginning of a run's name: letters, digits, dots, dashes."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-.")
    return stem[:60] or "run"
