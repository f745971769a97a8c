"""A simulated marketplace: rent, train and lose instances without an account and without a cent.

Its runs are real in everything but the training: records, checkpoints and artifacts are written by the same rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from orchestrator.clock import SystemClock
from orchestrator.errors import UsageError
from orchestrator.providers.registry import Bound, ProviderSettings, lazy
from orchestrator.providers.sim.cloud import SimCloud, SimRemote
from orchestrator.providers.sim.state import Box, Climate, CloudState, Job, Weather

__all__ = ["Box", "Climate", "CloudState", "Job", "SimCloud", "SimRemote", "Weather", "build"]

# On a person's clock: quick enough to watch. Nothing lags, so that an end is confirmed at once.
WATCHABLE = Climate(
    list_lag_s=0.0,
    terminate_lag_s=1.0,
    boot_s=3.0,
    create_timeout_s=10.0,
    step_s=0.3,
    heartbeat_s=1.0,
    poll_s=1.0,
)


def build(settings: ProviderSettings) -> Bound:
    """The simulated cloud kept in `sim.json` of the state folder, on this computer's clock."""
    climate = _with_options(WATCHABLE, settings.options)
    open_bucket = lazy("orchestrator.storage.open:open_store")
    cloud = SimCloud(SystemClock(), open_bucket, climate=climate, path=settings.state_dir / "sim.json")
    return Bound(cloud, cloud.connect)


def _with_options(climate: Climate, options: Mapping[str, str]) -> Climate:
    known = {f.name: type(getattr(climate, f.name)) for f in fields(climate) if f.name != "declared_list_lag_s"}
    changes: dict[str, Any] = {}
    for key, text in options.items():
        if key not in known:
            raise UsageError(f"provider sim has no option {key!r}", hint=f"it has {', '.join(sorted(known))}")
        try:
            kind = known[key]
            changes[key] = text.strip().lower() in {"1", "true", "yes"} if kind is bool else kind(text)
        except ValueError:
            raise UsageError(f"provider sim: {key} = {text!r} is not a number") from None
    return replace(climate, **changes)
