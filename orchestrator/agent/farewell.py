"""The instance ends itself: nothing of value is left on it, so it must not cost anything any more."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Callable

from orchestrator.agent.home import Home, write_atomically
from orchestrator.clock import Clock

_log = logging.getLogger("tune.agent")
_FIRST_WAIT_S = 5.0
_WAIT_MAX_S = 60.0
_COMMAND_TIMEOUT_S = 120.0


def end_instance(home: Home, *, reason: str, clock: Clock, keep_on: Callable[[], bool] = lambda: True) -> None:
    """Say that it is over, remove the secrets, and ask for the end of this instance until it comes.

    The start command does the same from `ended` on, so that it is enough if either lives. Returns only where there is
    no farewell command: there the orchestrator alone can end the instance.
    """
    write_atomically(home.ended, (reason + "\n").encode(), mode=0o644)
    for keys in (home.secrets, home.storage_keys, home.root / "signed.json"):
        keys.unlink(missing_ok=True)
    command = os.environ.get("TUNE_FAREWELL", "").strip()
    if not command:
        _log.warning("this instance cannot end itself: TUNE_FAREWELL is not set")
        return
    wait = _FIRST_WAIT_S
    while keep_on():
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, timeout=_COMMAND_TIMEOUT_S, check=False
            )
            _log.info("farewell command left with code %d", done.returncode)
        except (OSError, subprocess.SubprocessError) as e:
            _log.warning("farewell command failed: %s", e)
        clock.sleep(wait)
        wait = min(wait * 2, _WAIT_MAX_S)
