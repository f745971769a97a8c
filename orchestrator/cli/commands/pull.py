"""tune pull"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.commands._arguments import RunArgument

EXAMPLES = (
    "tune pull night ./adapter               the finished adapter, verified",
    "tune pull --checkpoint night ./latest   the newest checkpoint of a run that is still going",
)


def pull(
    run: RunArgument,
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Where to put it; made if need be.")],
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="The newest checkpoint that verifies instead.")
    ] = False,
) -> None:
    """Download what a run has made, and verify every byte.

    The same command again goes on where it was interrupted. Files that are already there with other contents are never
    overwritten.
    """
    from orchestrator.cli.pulling import artifact_files, pull_checkpoint
    from orchestrator.cli.pulling import pull as fetch
    from orchestrator.cli.session import Session
    from orchestrator.cli.words import plural, size
    from orchestrator.errors import UsageError

    if not folder:
        raise UsageError("DIR is empty", hint="name a folder; `.` is the one you are in")
    session = Session()
    record = session.runs.load(session.runs.resolve(run)).run
    target = Path(folder).absolute()
    step = None
    if checkpoint:
        with session.render.progress("downloading", unit="bytes") as count:
            manifest, pulled = pull_checkpoint(session.runs, record, target, count=count.add, told=session.render.note)
        step = manifest.step
    else:
        files = artifact_files(session.runs, record)
        with session.render.progress("downloading", total=sum(file.size for file in files), unit="bytes") as count:
            pulled = fetch(session.runs.store, files, target, count=count.add)
    total = sum(file.size for file in pulled.files)
    what = f"checkpoint {step}" if checkpoint else "artifact"
    session.render.result(
        {
            "run_id": record.run_id,
            "folder": str(pulled.folder),
            "checkpoint_step": step,
            "files": [{"name": file.name, "size": file.size, "sha256": file.sha256} for file in pulled.files],
            "fetched": pulled.fetched,
        },
        f"{what} of {record.name}: {plural(len(pulled.files), 'file')}, {size(total)}, verified, in {pulled.folder}",
    )
