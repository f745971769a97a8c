"""Putting the agent on an instance, under a claim, so that two orchestrators do not do it at the same time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from orchestrator import keys
from orchestrator.acts import amend, with_attempt
from orchestrator.bootstrap import agent_config, bootstrap
from orchestrator.errors import RemoteError, RunConflict, StorageError
from orchestrator.handover import AgentConfig, Expected
from orchestrator.observe import Context
from orchestrator.types import Attempt, Instance, Phase, Run, RunId

if TYPE_CHECKING:
    from orchestrator.storage.grants import Grant

STACK = "trl"  # the pinned versions that a trainer runs with: configs/stacks/


def put_agent(context: Context, run: Run, instance: Instance) -> tuple[Run, list[str]]:
    """Bootstrap under a claim that is renewed on the way. An instance that cannot be reached yet is tried again."""
    attempt = run.attempts[-1]
    policy = context.policy(run.provider)
    claim = _Claim(context, run.run_id, attempt, policy.claim_s)
    grant: Grant | None = None
    try:
        grant = context.grant(run)
        remote = context.bound(run.provider).connect(instance)
        try:
            bootstrap(
                remote,
                config=_config(context, run, attempt),
                secrets=context.secrets_for(run),
                grant=grant,
                baggage=context.baggage(run),
                boot_script=context.boot_script(run, attempt),
                signed=_signed(context, run, attempt),
                renew=claim.renew,
            )
            trust = getattr(remote, "trust", "")
        finally:
            remote.close()
    except RemoteError as e:
        return claim.give_up(), [f"{instance.instance_id} cannot be reached yet: {e.message}"]
    after = claim.done(policy.first_beat_s, keys_until=grant.expires_at if grant else None, has_keys=grant is not None)
    return after, ["the agent is in place" + (f"; {trust}" if trust else "")]


def _config(context: Context, run: Run, attempt: Attempt) -> AgentConfig:
    config = agent_config(
        run,
        attempt.number,
        storage_url=context.runs.store.url,
        storage_options={**context.storage_options, **_reach(context)},
        trainer_python=context.trainer_python,
    )
    if not context.bound(run.provider).is_elsewhere:
        return config
    want = run.want
    expect = Expected(
        gpu_count=want.gpu_count,
        gpu_name=attempt.offer.gpu_name,
        vram_gib=want.vram_gib,
        min_cuda=want.min_cuda,
        disk_gb=want.disk_gb,
    )
    return replace(config, environment=run.environment, stack=STACK, expect=expect)


def _reach(context: Context) -> dict[str, str]:
    """The way to the bucket where it is known here from variables or AWS's files, which the instance does not have."""
    reach = getattr(context.runs.store, "reach", None)
    return dict(reach()) if reach else {}


def _signed(context: Context, run: Run, attempt: Attempt) -> dict[str, str]:
    """Addresses for a set-up that fails before the agent can write by itself; none where the store has none."""
    presign = getattr(context.runs.store, "presign_put", None)
    if presign is None or not context.bound(run.provider).is_elsewhere:
        return {}
    good_for_s = int(run.limits.bootstrap_timeout_s + 600)
    try:
        return {
            "log_url": presign(keys.setup_log(run.run_id, attempt.number), expires_s=good_for_s),
            "exit_url": presign(keys.exit_record(run.run_id, attempt.number), expires_s=good_for_s, create_only=True),
        }
    except StorageError:
        return {}


@dataclass(slots=True)
class _Claim:
    """An orchestrator's word that it is bootstrapping this attempt, renewed while it is at it."""

    context: Context
    run_id: RunId
    attempt: Attempt
    claim_s: float

    def renew(self) -> None:
        until = self._now() + timedelta(seconds=self.claim_s)
        enough = timedelta(seconds=self.claim_s / 2)

        def edit(fresh: Run) -> Run:
            is_long = fresh.claim_until is not None and until - fresh.claim_until < enough
            return fresh if is_long else replace(fresh, claim_until=until)

        self._amend(edit)

    def give_up(self) -> Run:
        return self._amend(lambda fresh: replace(fresh, claim_until=None))

    def done(self, first_beat_s: float, *, keys_until: datetime | None, has_keys: bool) -> Run:
        now = self._now()

        def mark(a: Attempt) -> Attempt:
            return replace(a, bootstrapped_at=now, keys_at=now if has_keys else None, keys_until=keys_until)

        until = now + timedelta(seconds=first_beat_s)
        return self._amend(lambda fresh: replace(with_attempt(fresh, self.attempt.number, mark), claim_until=until))

    def _now(self) -> datetime:
        return self.context.runs.store.now()

    def _amend(self, edit: Callable[[Run], Run]) -> Run:
        def guarded(fresh: Run) -> Run:
            if not _is_bootstrapping(fresh, self.attempt):
                raise RunConflict(f"run {self.run_id} has moved on while its agent was put in place")
            return edit(fresh)

        return amend(self.context, self.run_id, guarded)


def _is_bootstrapping(run: Run, attempt: Attempt) -> bool:
    return run.phase is Phase.BOOTSTRAPPING and run.attempts[-1].number == attempt.number
