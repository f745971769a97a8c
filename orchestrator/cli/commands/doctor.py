"""tune doctor"""

from __future__ import annotations

from dataclasses import asdict

import typer

EXAMPLES = ("tune doctor",)


def doctor() -> None:
    """Check the whole setup: config, storage, providers, training stack, clock, cron. Exits non-zero on a failure."""
    from orchestrator.cli.checkup import FAIL, Finding, check_up
    from orchestrator.cli.session import Session

    session = Session()
    findings: list[Finding] = []
    for finding in check_up(session):
        findings.append(finding)
        session.render.say(f"{finding.status:<5} {finding.what:<9} {finding.text}")
        if finding.hint:
            session.render.say(f"{'':<15} hint: {finding.hint}")
        session.render.flush()
    failures = [finding for finding in findings if finding.status == FAIL]
    checks = [{key: value for key, value in asdict(finding).items() if key != "exit_code"} for finding in findings]
    session.render.result({"ok": not failures, "checks": checks}, "" if failures else "all that is needed is in order")
    if failures:
        raise typer.Exit(failures[0].exit_code)
