"""The cron line that carries runs on while nobody is looking."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.cli.settings import Settings

EVERY_MINUTES = 5
TAG = "tune reconcile"
PATH = "/usr/local/bin:/usr/bin:/bin"


def line(settings: Settings) -> str:
    """Absolute in everything, for cron's environment is empty. A percent sign would mean a new line to cron."""
    argv = [sys.executable, "-m", "orchestrator"]
    if settings.source:
        argv += ["--config", str(settings.source)]
    if settings.origins.get("storage") != str(settings.source):
        argv += ["--storage", settings.storage]
    command = f"{shlex.join([*argv, 'reconcile', '--all'])} >> {shlex.quote(str(settings.state_dir / 'cron.log'))} 2>&1"
    return f"*/{EVERY_MINUTES} * * * * {command.replace('%', chr(92) + '%')} # {TAG}"


def active_line() -> str:
    """The line in this user's crontab that reconciles, or nothing."""
    if not shutil.which("crontab"):
        return ""
    try:
        listed = subprocess.run(["crontab", "-l"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = (text.strip() for text in listed.stdout.splitlines())
    ours = (text for text in lines if not text.startswith("#") and ("orchestrator" in text or "tune" in text))
    return next((text for text in ours if "reconcile" in text and "--all" in text), "")
