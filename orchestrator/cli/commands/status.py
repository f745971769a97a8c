"""tune status"""

from __future__ import annotations

from orchestrator.cli.commands._arguments import RunArgument

EXAMPLES = ("tune status night", "tune status night --json | jq .step")


def status(run: RunArgument) -> None:
    """Show one run: where it is, how fast, what it has cost, its attempts and why they ended."""
    from orchestrator.cli.live import facts
    from orchestrator.cli.session import Session
    from orchestrator.cli.view import document, observe
    from orchestrator.cli.words import usd

    session = Session()
    record = session.runs.load(session.runs.resolve(run)).run
    view = observe(session.runs, record, now=session.runs.store.now())

    def say() -> None:
        session.render.say(f"{record.name}  {record.run_id}")
        for label, value in facts(view, plain=not session.render.speaks_unicode):
            session.render.say(f"  {label:<12}{value}")
        if view.has_artifact:
            session.render.say(f"  {'artifact':<12}stored; tune pull {record.run_id} DIR fetches it")
        if record.attempts:
            session.render.say()
            session.render.table(
                ("ATTEMPT", "PROVIDER", "INSTANCE", "$/H", "LAST STEP", "OUTCOME", "WHY"),
                [
                    (
                        str(attempt.number),
                        attempt.offer.provider or attempt.provider,
                        attempt.instance_id or "-",
                        usd(attempt.usd_per_hour or attempt.offer.usd_per_hour),
                        str(attempt.last_step or "-"),
                        attempt.outcome.value if attempt.outcome else "-",
                        attempt.reason,
                    )
                    for attempt in record.attempts
                ],
            )

    session.render.result(document(view, storage=session.settings.storage), say)
