"""Looking: everything `decide` needs to know of one run, asked for in an order that makes the answers safe.

Instances first, records after: whoever is gone from the list has written its exit record before that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from orchestrator import money
from orchestrator.absence import Policy, instance_of
from orchestrator.bootstrap import Baggage, elsewhere, launch_spec
from orchestrator.errors import InstanceNotFound, ProviderError, RecordCorrupt, RemoteError, TuneError
from orchestrator.policy import policy_for
from orchestrator.providers.boot import NO_FAREWELL, boot_script
from orchestrator.providers.market import named
from orchestrator.providers.registry import Bound
from orchestrator.states import Probe, Seen
from orchestrator.storage.runs import RunStore
from orchestrator.types import (
    Attempt,
    ExitRecord,
    Heartbeat,
    Instance,
    InstanceId,
    InstanceState,
    LaunchSpec,
    Namespace,
    Phase,
    Run,
    Token,
    parse_token,
)

if TYPE_CHECKING:
    from orchestrator.storage.grants import Grant

T = TypeVar("T")

LISTING_FRESH_S = 10.0  # runs that are looked at within this time share one list


@dataclass(frozen=True, slots=True)
class Context:
    """The world as one orchestrator reaches it: the records, the providers, and what an instance is given."""

    runs: RunStore
    bound: Callable[[str], Bound]  # a provider by name
    start_command: str  # runs on the instance from its first boot
    agent_script: bytes  # agent.sh of instances on this very computer
    secrets: Mapping[str, str] = field(default_factory=dict)
    storage_options: Mapping[str, str] = field(default_factory=dict)
    trainer_python: str = ""
    state_dir: Path | None = None  # of this computer: the keys to its instances
    grant: Callable[[Run], Grant | None] = lambda _: None  # keys to the bucket for one run's instance

    def keyed(self, spec: LaunchSpec, token: Token) -> LaunchSpec:
        """The launch with the public half of the key that this computer makes for the run."""
        from orchestrator.remote import sshkeys, sshpins

        parts = parse_token(token)
        assert parts is not None
        assert self.state_dir is not None
        return replace(
            spec,
            public_key=sshkeys.public_key(self.state_dir, parts.run_id),
            proof_secret=sshpins.proof_secret(self.state_dir, parts.run_id, token),
        )

    def spec(self, run: Run, attempt: Attempt, *, now: datetime) -> LaunchSpec:
        """How the attempt's instance starts."""
        spent = money.ledger(run, now).allowance_usd
        spec = launch_spec(run, attempt.offer, start_command=self.start_command, spent_usd=spent, now=now)
        return self.keyed(spec, attempt.token) if self.bound(run.provider).is_elsewhere else spec

    def boot_script(self, run: Run, attempt: Attempt) -> str:
        """What is sent again over SSH, for a platform that has not run the start command; empty on this computer."""
        bound = self.bound(run.provider)
        if not bound.is_elsewhere:
            return ""
        lender = bound.members.get(attempt.offer.provider, bound)
        # Without the secret that vouches for host keys: whoever sits in between would learn it from us.
        spec = replace(self.spec(run, attempt, now=self.runs.store.now()), proof_secret="")
        return boot_script(spec, attempt.token, lender.farewell or NO_FAREWELL, foreground=False)

    def baggage(self, run: Run) -> Baggage:
        """What the agent needs on the instance."""
        return elsewhere() if self.bound(run.provider).is_elsewhere else Baggage(self.agent_script)

    def secrets_for(self, run: Run) -> Mapping[str, str]:
        """On this very computer all that is set; on rented ones only what the recipe needs."""
        if not self.bound(run.provider).is_elsewhere:
            return self.secrets
        return {name: value for name, value in self.secrets.items() if name in run.needs}

    def policy(self, provider: str) -> Policy:
        """The patience that a provider's declared behaviour calls for."""
        capabilities = self.bound(provider).provider.capabilities
        return policy_for(list_lag_s=capabilities.list_lag_s, create_timeout_s=capabilities.create_timeout_s)


class Listing:
    """Every provider's instances of a namespace, asked for once for all the runs of a pass."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._taken: dict[tuple[str, str, Namespace], tuple[datetime, Sequence[Instance] | None]] = {}
        self.trouble: dict[str, str] = {}

    def of(self, run: Run, now: datetime) -> tuple[datetime, tuple[Instance, ...] | None]:
        """When the lists were asked for, and the run's instances in them; None without complete lists."""
        at, found = now, []
        for provider in _concerned(self._context.bound(run.provider), run, now):
            # Runs of one store may differ in it: its namespace may have been made anew.
            asked = (run.provider, provider, run.namespace)
            taken = self._taken.get(asked)
            if taken is None or now - taken[0] > timedelta(seconds=LISTING_FRESH_S):
                taken = (now, self._ask(*asked))
                self._taken[asked] = taken
            at = min(at, taken[0])
            if taken[1] is None:
                return at, None
            found += [i for i in taken[1] if _is_of(run, i)]
        return at, tuple(found)

    def _ask(self, provider: str, member: str, namespace: Namespace) -> Sequence[Instance] | None:
        """The list of a provider, or of one marketplace among several that stand for one."""
        try:
            bound = self._context.bound(provider)
            if not member:
                found = bound.provider.find(namespace=namespace)
            elif member in bound.members:
                listed = bound.members[member].provider.find(namespace=namespace)
                found = [replace(i, instance_id=named(member, i.instance_id)) for i in listed]
            else:
                raise ProviderError(f"{member} cannot be used from this computer")
        except TuneError as e:
            self.trouble[provider] = f"{member or provider} does not list its instances: {e.message}"
            return None
        if not member:  # one marketplace's answer does not mend another's
            self.trouble.pop(provider, None)
        return found


def _concerned(bound: Bound, run: Run, now: datetime) -> Iterable[str]:
    """Whose lists a run depends on: of several marketplaces those where something of it may be, or may still turn up.

    What is down at one must not keep a run from going on at another.
    """
    if not bound.members:
        return [""]
    open_ones = [a for a in run.attempts if not a.refused and (a.ended_at is None or now < a.quiet_after)]
    return sorted({a.offer.provider for a in open_ones})


def _is_of(run: Run, instance: Instance) -> bool:
    parts = parse_token(instance.token)
    return parts is not None and (parts.namespace, parts.run_id) == (run.namespace, run.run_id)


@dataclass(slots=True)
class Look:
    """One look at one run; `troubles` tells what could not be seen, and why."""

    context: Context
    run: Run
    listing: Listing
    troubles: list[str] = field(default_factory=list)

    def take(self) -> tuple[Seen, datetime]:
        """What is to be seen now, and the store's time when the look began."""
        run, now = self.run, self.context.runs.store.now()
        listed_at, listed = self.listing.of(run, now)
        if run.provider in self.listing.trouble:
            self.troubles.append(self.listing.trouble[run.provider])
        answers = self._answers(listed)
        if listed is not None:  # a list may still show what is gone; asked by its id the provider knows better
            listed = tuple(i for i in listed if answers.get(i.instance_id, i) is not None)
        beat = self._heartbeat()
        exits = self._exits()
        is_fresh = beat is not None and now - beat[1] <= timedelta(
            seconds=self.context.policy(run.provider).heartbeat_grace_s
        )
        seen = Seen(
            listed=listed,
            listed_at=listed_at,
            answers=answers,
            heartbeat=beat[0] if beat else None,
            heartbeat_at=beat[1] if beat else None,
            exits=exits,
            artifact=None
            if is_fresh or not run.attempts
            else self._readable(lambda: self.context.runs.artifact(run.run_id)),
            probe=Probe.NOT_ASKED if is_fresh else self._probe(listed, answers),
            spent_usd=money.ledger(run, now).allowance_usd,
        )
        return seen, now

    def _answers(self, listed: tuple[Instance, ...] | None) -> dict[InstanceId, Instance | None]:
        """Whoever should be there and is not listed is asked for by id; so is who should be gone and is listed."""
        shown = {i.instance_id for i in listed or ()}
        answers: dict[InstanceId, Instance | None] = {}
        provider = self.context.bound(self.run.provider).provider
        for attempt in self.run.attempts:
            wanted = attempt.instance_id
            should_be_there = attempt.ended_at is None
            should_be_gone = attempt.ended_at is not None or attempt.terminate_asked_at is not None
            if wanted is None or not (should_be_gone if wanted in shown else should_be_there):
                continue
            try:
                answers[wanted] = provider.get(wanted)
            except InstanceNotFound:
                answers[wanted] = None
            except ProviderError as e:
                self.troubles.append(f"{self.run.provider} says nothing of {wanted}: {e.message}")
        return answers

    def _heartbeat(self) -> tuple[Heartbeat, datetime] | None:
        run, current = self.run, self.run.attempt
        if current is None or run.phase not in (Phase.BOOTSTRAPPING, Phase.RUNNING):
            return None
        return self._readable(lambda: self.context.runs.heartbeat(run.run_id, current.number))

    def _exits(self) -> dict[int, ExitRecord]:
        """The exit records not read yet. What was refused has left none."""
        found = {}
        for attempt in self.run.attempts:
            if attempt.exit_code is not None or attempt.refused:
                continue
            number = attempt.number
            record = self._readable(lambda n=number: self.context.runs.exit_record(self.run.run_id, n))  # type: ignore[misc]
            if record is not None:
                found[number] = record
        return found

    def _readable(self, read: Callable[[], T | None]) -> T | None:
        """A record that cannot be read proves nothing; it is reported, and left as it is."""
        try:
            return read()
        except RecordCorrupt as e:
            self.troubles.append(e.message)
            return None

    def _grant(self) -> Grant | None:
        """Fresh keys to the bucket, if they can be had. That they cannot says nothing of the instance."""
        try:
            return self.context.grant(self.run)
        except TuneError as e:
            self.troubles.append(f"the bucket's keys cannot be renewed: {e.message}")
            return None

    def _probe(self, listed: tuple[Instance, ...] | None, answers: Mapping[InstanceId, Instance | None]) -> Probe:
        """Reach into a silent instance. Renewing its keys is the question: silence is often an expired key."""
        run = self.run
        instance = instance_of(run.attempts[-1], listed, answers) if run.attempts else None
        if run.phase is not Phase.RUNNING or instance is None or instance.state is InstanceState.STOPPED:
            return Probe.NOT_ASKED
        from orchestrator.bootstrap import agent_age_s, put_keys

        try:
            remote = self.context.bound(run.provider).connect(instance)
            try:
                put_keys(remote, self.context.secrets_for(run), self._grant())
                age_s = agent_age_s(remote)
            finally:
                remote.close()
        except RemoteError as e:
            self.troubles.append(f"no answer from {instance.instance_id}: {e.message}")
            return Probe.FAILED
        is_dead = age_s is not None and age_s > self.context.policy(run.provider).heartbeat_grace_s
        return Probe.AGENT_DEAD if is_dead else Probe.ANSWERED
