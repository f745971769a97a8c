"""tune doctor"""

from __future__ import annotations

import typer

EXAMPLES = ("tune doctor", "tune doctor --json | jq '.checks[] | select(.status == \"fail\")'")


def doctor() -> None:
    """Check the whole setup: config, storage and rights to it, accounts, clock, training stack, cron.

    Each finding says what to do. Exits non-zero on a failure. Nothing is rented.
    """
    from orchestrator.cli.checkup import check_up
    from orchestrator.cli.session import Session
    from orchestrator.findings import FAIL, Finding

    session = Session()
    findings: list[Finding] = []
    for finding in check_up(session):
        findings.append(finding)
        session.render.say(f"{finding.status:<5} {finding.what:<11} {finding.text}")
        if finding.hint:
            session.render.say(f"{'':<17} hint: {finding.hint}")
        session.render.flush()
    failures = [finding for finding in findings if finding.status == FAIL]
    checks = [{"status": f.status, "what": f.what, "text": f.text, "hint": f.hint} for f in findings]
    session.render.result({"ok": not failures, "checks": checks}, "" if failures else "all that is needed is in order")
    if failures:
        raise typer.Exit(failures[0].exit_code)
