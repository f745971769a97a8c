"""tune launch"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.commands._arguments import RecipeArgument, SetOption, YesOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.cli.reach import Reached
    from orchestrator.cli.session import Session
    from orchestrator.findings import Finding
    from orchestrator.launch import Launched, Prepared

EXAMPLES = (
    "tune launch recipe.yaml                       train, and watch until it is done",
    "tune launch recipe.yaml --dry-run             check everything, list what would be sent",
    "tune launch recipe.yaml --name night --detach come back later with: tune resume night",
    "tune launch recipe.yaml --provider any        wherever it is cheapest now: vastai, runpod",
    "tune launch recipe.yaml --set learning_rate=1e-4 --set tune.budget_usd=3",
)


def launch(
    recipe: RecipeArgument,
    *,
    name: Annotated[str, typer.Option(help="The run's name. The same name and recipe again is the same run.")] = "",
    provider: Annotated[str, typer.Option(help="Whom to rent from: one, several with commas, or any.")] = "",
    detach: Annotated[bool, typer.Option("--detach", help="Leave once it trains.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and list; store and rent nothing.")] = False,
    set_: SetOption = None,
    allow_secret_files: Annotated[
        bool, typer.Option("--allow-secret-files", help="Send files that look like secrets, too.")
    ] = False,
    offline_check: Annotated[
        bool, typer.Option("--offline-check", help="Do not ask the hub about models and data sets.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Train a recipe, across as many instances as it takes.

    Everything that can be wrong is refused before anything is rented. Ctrl-C ends the watching, never the run.
    """
    from orchestrator import recipe as recipes
    from orchestrator.cli.preflighting import as_document, preflight, say_findings
    from orchestrator.cli.reach import reach, refuse_local_store
    from orchestrator.cli.session import Session

    loaded = recipes.load(recipe, overrides=set_ or ())
    session = Session(recipe_storage=loaded.tune.storage)
    # No run, nor a promise of one, for a provider that is not there or cannot reach the storage.
    reached = reach(session, provider or loaded.tune.provider or session.settings.provider)
    refuse_local_store(session, reached)
    try:
        prepared = _prepare(session, loaded, reached, name, allow_secret_files=allow_secret_files)
        report = preflight(session, prepared, reached, is_offline=offline_check)
    except KeyboardInterrupt:
        session.render.note("interrupted before anything was stored or rented: there is no run")
        raise
    for notice in prepared.notices:
        session.render.note(f"note: {notice}")
    if dry_run:
        findings = report.findings if report else ()
        plan = {**_plan(session, prepared), "preflight": [as_document(finding) for finding in findings]}
        session.render.result(plan, lambda: _say_plan(session, prepared, findings))
        if report:
            report.refuse()
        return
    if report:
        report.refuse()
        say_findings(session, report.findings)
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


def _prepare(session: Session, loaded: Any, reached: Reached, name: str, *, allow_secret_files: bool) -> Prepared:
    from orchestrator.cli.redact import secret_values
    from orchestrator.launch import prepare

    progress = session.render.progress
    with progress("rows checked") as rows, progress("files read", unit="bytes") as read:
        return prepare(
            loaded,
            provider=reached.name,
            is_elsewhere=reached.is_elsewhere,
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


def _say_plan(session: Session, prepared: Prepared, findings: Sequence[Finding]) -> None:
    import json

    from orchestrator.cli.data_text import report_lines
    from orchestrator.cli.preflighting import finding_lines
    from orchestrator.cli.words import plural, size
    from orchestrator.findings import FAIL

    say = session.render.say
    recipe = prepared.recipe
    failed = any(finding.status == FAIL for finding in findings)
    state = "cannot be launched yet" if failed else "in order"
    say(f"{recipe.path}: {state}. Nothing was stored or rented.")
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
    if findings:
        say("asked before renting:")
        for line in finding_lines(findings):
            say(f"  {line}")
