"""tune launch"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.commands._arguments import RecipeArgument, SetOption, YesOption

if TYPE_CHECKING:
    from orchestrator.cli.session import Session
    from orchestrator.launch import Launched, Prepared

EXAMPLES = (
    "tune launch recipe.yaml                       train, and watch until it is done",
    "tune launch recipe.yaml --dry-run             check everything, list what would be sent",
    "tune launch recipe.yaml --name night --detach come back later with: tune resume night",
    "tune launch recipe.yaml --set learning_rate=1e-4 --set tune.budget_usd=3",
)


def launch(
    recipe: RecipeArgument,
    *,
    name: Annotated[str, typer.Option(help="The run's name. The same name and recipe again is the same run.")] = "",
    provider: Annotated[str, typer.Option(help="Whom to rent from; see `tune providers`.")] = "",
    detach: Annotated[bool, typer.Option("--detach", help="Leave once it trains.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and list; store and rent nothing.")] = False,
    set_: SetOption = None,
    allow_secret_files: Annotated[
        bool, typer.Option("--allow-secret-files", help="Send files that look like secrets, too.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Train a recipe, across as many instances as it takes.

    Everything that can be wrong is refused before anything is rented. Ctrl-C ends the watching, never the run.
    """
    from orchestrator import recipe as recipes
    from orchestrator.cli.session import Session

    loaded = recipes.load(recipe, overrides=set_ or ())
    session = Session(recipe_storage=loaded.tune.storage)
    try:
        prepared = _prepare(session, loaded, name, provider, allow_secret_files=allow_secret_files)
    except KeyboardInterrupt:
        session.render.note("interrupted before anything was stored or rented: there is no run")
        raise
    for notice in prepared.notices:
        session.render.note(f"note: {notice}")
    session.provider(prepared.provider)  # no run, nor a promise of one, for a provider that cannot be reached at all
    if dry_run:
        session.render.result(_plan(session, prepared), lambda: _say_plan(session, prepared))
        return
    for warning in prepared.warnings:
        session.render.note(f"warning: {warning}")
        if not yes and session.render.is_terminal:
            typer.confirm("Send it?", abort=True)
    try:
        launched = _store(session, prepared)
    except KeyboardInterrupt:
        session.render.note("interrupted while the run was being stored: `tune ls` says whether there is one")
        raise
    _follow(session, launched, detach=detach)


def _prepare(session: Session, loaded: Any, name: str, provider: str, *, allow_secret_files: bool) -> Prepared:
    from orchestrator.cli.redact import secret_values
    from orchestrator.launch import prepare

    progress = session.render.progress
    with progress("rows checked") as rows, progress("files read", unit="bytes") as read:
        return prepare(
            loaded,
            provider=provider or loaded.tune.provider or session.settings.provider,
            name=name or loaded.tune.name or "",
            allow_secret_files=allow_secret_files,
            own_secrets=tuple(secret_values().items()),
            on_note=session.render.note,
            on_rows=rows.reach,
            on_bytes=read.add,
        )


def _store(session: Session, prepared: Prepared) -> Launched:
    from orchestrator.launch import launch as store

    with session.render.progress("uploading", total=prepared.upload_bytes, unit="bytes") as sent:
        launched = store(prepared, session.runs, now=session.runs.store.now(), on_bytes=sent.add)
    run = launched.run
    verb = "launched" if launched.is_new else "already there"
    session.render.event(
        {
            "event": "launched",
            "run_id": run.run_id,
            "name": run.name,
            "new": launched.is_new,
            "storage": session.settings.storage,
        },
        f"run {run.name} ({run.run_id}) {verb}",
    )
    for notice in launched.notices:
        session.render.note(f"note: {notice}")
    if session.storage_is_the_recipes:
        session.render.note(f"note: this run is kept in {session.settings.storage}; add --storage to later commands")
    return launched


def _follow(session: Session, launched: Launched, *, detach: bool) -> None:
    from orchestrator.cli.follow import detach_when_running, follow

    if detach:
        detach_when_running(session, launched.run.run_id)
    else:
        follow(session, launched.run.run_id)


def _plan(session: Session, prepared: Prepared) -> dict[str, Any]:
    from orchestrator.launch import Resolved

    recipe = prepared.recipe
    return {
        "recipe": str(recipe.path),
        "recipe_sha256": recipe.sha256,
        "data_sha256": prepared.report.data_sha256,
        "name": prepared.name,
        "provider": prepared.provider,
        "trainer": recipe.tune.trainer,
        "storage": session.settings.storage,
        "resolved": session.plain(Resolved(recipe.training, recipe.tune)),
        "files": [{"path": file.path, "size": file.size, "sha256": file.sha256} for file in prepared.files.files],
        "upload_bytes": prepared.upload_bytes,
        "data": session.plain(prepared.report),
        "notices": list(prepared.notices),
        "warnings": list(prepared.warnings),
    }


def _say_plan(session: Session, prepared: Prepared) -> None:
    import json

    from orchestrator.cli.data_text import report_lines
    from orchestrator.cli.words import plural, size

    say = session.render.say
    recipe = prepared.recipe
    say(f"{recipe.path}: in order. Nothing was stored or rented.")
    say(f"  trainer {recipe.tune.trainer}, provider {prepared.provider}, storage {session.settings.storage}")
    for line in report_lines(prepared.report):
        say(f"  {line}")
    resolved = _plan(session, prepared)["resolved"]
    say("would train with:")
    for prefix, keys in (("", resolved["training"]), ("tune.", resolved["tune"])):
        for key, value in sorted(keys.items()):
            if value not in (None, [], {}):
                say(f"  {prefix}{key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    say(f"would send {plural(len(prepared.files.files), 'file')}, {size(prepared.upload_bytes)}:")
    session.render.table(("  FILE", "SIZE"), [(f"  {file.path}", size(file.size)) for file in prepared.files.files])
    for warning in prepared.warnings:
        say(f"warning: {warning}")
