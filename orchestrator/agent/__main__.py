"""`python -m orchestrator.agent --home DIR`: the agent, on an instance. Started again whenever it dies."""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from orchestrator import codec
from orchestrator.agent import farewell
from orchestrator.agent.bucket import load_secrets
from orchestrator.agent.home import Home
from orchestrator.agent.redact import Redactor
from orchestrator.agent.supervise import Supervisor
from orchestrator.clock import SystemClock
from orchestrator.handover import AgentConfig
from orchestrator.storage.open import open_store

_log = logging.getLogger("tune.agent")
EXIT_FAULT = 70  # ours: the start command runs the agent again
EXIT_LOCKED = 73  # another agent is at work on this instance


class _Covering(logging.Formatter):
    """No secret reaches the agent's own log either, tracebacks included."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__("%(asctime)sZ %(levelname)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.text(super().format(record))


def main(argv: list[str] | None = None) -> int:
    """0 once the attempt's end is stored; then the start command has nothing to run again."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.agent")
    parser.add_argument("--home", type=Path, default=os.environ.get("TUNE_HOME"), help="the tune home of this instance")
    arguments = parser.parse_args(argv)
    if arguments.home is None:
        parser.error("--home or TUNE_HOME is needed")
    home = Home(Path(arguments.home).absolute())
    home.prepare()
    lock = _take_lock(home)
    if lock is None:
        return EXIT_LOCKED
    redactor = Redactor(())
    _log_to(home, redactor)
    try:
        return _run(home, redactor)
    except Exception:
        _log.exception("the agent failed")
        return EXIT_FAULT
    finally:
        os.close(lock)


def _run(home: Home, redactor: Redactor) -> int:
    load_secrets(home, redactor)
    clock = SystemClock()
    if home.ended.exists():
        farewell.end_instance(home, reason=home.ended.read_text(encoding="utf-8").strip(), clock=clock)
        return 0
    config = codec.load(AgentConfig, home.config.read_bytes(), where=str(home.config))
    supervisor = Supervisor(
        home,
        config,
        redactor=redactor,
        clock=clock,
        open_store=lambda: open_store(config.storage_url, options=_storage_options(home, config)),
    )

    def stop(_number: int, _frame: FrameType | None) -> None:
        supervisor.stop.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    ending = supervisor.run()
    reason = f"{ending.outcome.value}: {ending.reason}" if ending else "another attempt has taken over"
    _log.info("the end: %s", reason)
    stopped_from_outside = supervisor.stop
    farewell.end_instance(home, reason=reason, clock=clock, keep_on=lambda: not stopped_from_outside.is_set())
    return 0


def _storage_options(home: Home, config: AgentConfig) -> dict[str, str]:
    """On a rented instance the bucket's keys lie in a file; they never enter the environment."""
    own = {"credentials_file": str(home.storage_keys)} if home.storage_keys.exists() else {}
    return {**config.storage_options, **own}


def _take_lock(home: Home) -> int | None:
    """One agent at most per instance; the kernel lets go of it whatever way the agent dies."""
    descriptor = os.open(home.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _log_to(home: Home, redactor: Redactor) -> None:
    handler = logging.FileHandler(home.agent_log, encoding="utf-8")
    handler.setFormatter(_Covering(redactor))
    logger = logging.getLogger("tune.agent")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False


if __name__ == "__main__":
    sys.exit(main())
