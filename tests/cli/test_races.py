"""Two orchestrators at the same run: a stale view costs a pass, never an instance."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from orchestrator.observe import Context
from orchestrator.providers.registry import Bound
from orchestrator.providers.sim import Climate, SimCloud
from orchestrator.reconcile import reconcile
from orchestrator.storage.memory import MemoryStore
from orchestrator.storage.runs import RunStore
from orchestrator.types import Phase, Run, new_run_id


class Stepped:
    def __init__(self) -> None:
        self.at = datetime(2026, 3, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()

    def sleep(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


class Interrupted:
    """A provider whose first list is asked for while somebody else makes a pass."""

    def __init__(self, cloud: SimCloud, meanwhile: Any) -> None:
        self._cloud, self._meanwhile = cloud, meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cloud, name)

    def find(self, **kwargs: Any) -> Any:
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        meanwhile()
        return self._cloud.find(**kwargs)


def test_what_somebody_rents_between_a_record_and_a_list_is_not_taken_for_a_stray() -> None:
    clock = Stepped()
    store = MemoryStore(clock)
    cloud = SimCloud(clock, lambda _url: store, climate=Climate(list_lag_s=0))
    runs = RunStore(store)
    run = Run(new_run_id(clock.now()), "night", runs.namespace(), clock.now(), "r", "d", "sim")
    runs.create(run)

    def context(provider: Any) -> Context:
        return Context(runs, lambda _name: Bound(provider, cloud.connect), start_command="", agent_script=b"")

    def somebody_else() -> None:
        assert reconcile(context(cloud), run.run_id).run.phase is Phase.PROVISIONING

    done = reconcile(context(Interrupted(cloud, somebody_else)), run.run_id)
    assert done.run.phase is Phase.PROVISIONING, "the pass gave way"
    clock.sleep(60)
    assert len(cloud.find(namespace=runs.namespace())) == 1, "what was rented is still there"
