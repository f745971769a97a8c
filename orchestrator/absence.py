"""Presence and absence: what the provider's answers prove about each attempt's instance. Pure.

An answer that shows an instance proves that it is there. "Not found" proves something only the second time, half a
minute after the first, because control planes hiccup. Everything else proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from orchestrator.types import Attempt, Instance, InstanceId, InstanceState, Run, parse_token

Listed = Sequence[Instance] | None
Answers = Mapping[InstanceId, Instance | None]

ASKED_GAP_S = 4.0  # between two "not found" of an instance that we had asked to go
INTENT_FRESH_S = 30.0  # an older intent is not acted on: a laptop may have slept between recording it and renting


@dataclass(frozen=True, slots=True)
class Policy:
    """The patience behind each rule, in seconds."""

    list_lag_s: float = 30.0  # of the provider: longest a new instance may be missing from its list
    create_timeout_s: float = 60.0  # of the provider: longest a create may be on its way
    absence_gap_s: float = 30.0  # two "not found" this far apart are a fact
    heartbeat_grace_s: float = 180.0  # six missed beats; S3 hiccups have lasted 90 s
    claim_s: float = 120.0  # how long one orchestrator may bootstrap before another one tries
    first_beat_s: float = 300.0  # from the agent's files being in place to its first heartbeat
    save_and_exit_s: float = 90.0
    look_every_s: float = 60.0  # the longest wait between two looks of somebody who watches

    @property
    def quiet_s(self) -> float:
        """From recording an intent until an absence from the list means anything."""
        return INTENT_FRESH_S + self.create_timeout_s + self.list_lag_s


def noted(
    run: Run, listed: Listed, answers: Answers, now: datetime, policy: Policy, *, listed_at: datetime | None = None
) -> Run:
    """The run with what was seen of its instances written down, attempt by attempt.

    `listed_at`: when the list was asked for, if that was earlier: runs that are looked at together share one list.
    """
    asked = min(now, listed_at or now)
    attempts = tuple(_noted(a, listed, answers, asked if a.instance_id is None else now, policy) for a in run.attempts)
    return run if attempts == run.attempts else replace(run, attempts=attempts)


def _noted(attempt: Attempt, listed: Listed, answers: Answers, now: datetime, policy: Policy) -> Attempt:
    instance = instance_of(attempt, listed, answers)
    if instance:
        return replace(
            attempt,
            instance_id=attempt.instance_id or instance.instance_id,
            first_seen_at=attempt.first_seen_at or now,
            running_at=attempt.running_at or (now if instance.state is InstanceState.RUNNING else None),
            stopped_at=(attempt.stopped_at or now) if instance.state is InstanceState.STOPPED else None,
            usd_per_hour=instance.usd_per_hour
            if instance.state is InstanceState.RUNNING and instance.usd_per_hour
            else attempt.usd_per_hour,
            host_id=instance.host_id or attempt.host_id,
            missing_since=None,
            ended_at=None,  # what is seen is not gone, whatever was believed before: a paused instance may wake up
        )
    if attempt.ended_at or now < attempt.quiet_after or not _is_absent(attempt, listed, answers):
        return attempt
    if attempt.missing_since is None:
        return replace(attempt, missing_since=now)
    # Whoever was asked to go and is not found has gone; only one that vanished by itself may be a hiccup of theirs.
    gap_s = min(ASKED_GAP_S, policy.absence_gap_s) if attempt.terminate_asked_at else policy.absence_gap_s
    if now - attempt.missing_since < timedelta(seconds=gap_s):
        return attempt
    return replace(attempt, ended_at=now)


def _is_absent(attempt: Attempt, listed: Listed, answers: Answers) -> bool:
    """A known id is asked for by id, because a list may be empty by mistake; only an unknown one needs the list."""
    if attempt.instance_id is None:
        return listed is not None
    return attempt.instance_id in answers and answers[attempt.instance_id] is None


def instance_of(attempt: Attempt, listed: Listed, answers: Answers) -> Instance | None:
    """The attempt's instance as last seen: the one whose id is on record, else the oldest that carries its token."""
    if attempt.instance_id is not None:
        by_id = next((i for i in listed or () if i.instance_id == attempt.instance_id), None)
        return by_id or answers.get(attempt.instance_id)
    carrying = [i for i in listed or () if attempt_number(i) == attempt.number]
    return min(carrying, key=lambda i: (i.created_at is None, i.created_at, i.instance_id), default=None)


def attempt_number(instance: Instance) -> int:
    """Which attempt an instance belongs to; 0, which no attempt has, when its label is not ours."""
    parts = parse_token(instance.token)
    return parts.attempt if parts else 0


def live_ids(run: Run, listed: Listed) -> tuple[InstanceId, ...]:
    """Every instance of the run that may exist: those listed, and those on record that are not proved gone."""
    ids = [i.instance_id for i in listed or ()]
    ids += [a.instance_id for a in run.attempts if a.instance_id and a.ended_at is None]
    return tuple(dict.fromkeys(ids))
