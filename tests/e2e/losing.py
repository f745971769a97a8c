"""Moments at which a rented instance is lost, how a test waits for one of them, and what must hold afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator import keys, money, upkeep
from orchestrator.clock import Clock
from orchestrator.errors import RemoteError, TuneError
from orchestrator.observe import Context
from orchestrator.providers import market as several
from orchestrator.providers.registry import Bound
from orchestrator.remote.base import Remote
from orchestrator.types import Instance, Phase, Run
from tests.cloud.clock import LeapingClock
from tests.cloud.world import CloudDesk
from tests.e2e.test_resume_equals_uninterrupted import STEPS, Moment, at_step, during_a_save, during_an_upload

NAME = "r"
HOW = ("outbid", "vanish")
ALL_CHARGED_S = 2 * 3600.0  # after so long marketplaces have charged everything


@dataclass(frozen=True)
class Loss:
    """Once `is_now` says so, the marketplace takes the instance, in the way `how`."""

    name: str
    is_now: Callable[[CloudDesk], bool]
    how: str
    may_be_too_late: bool = False  # the instance may have done everything by then

    def __str__(self) -> str:
        return f"{self.name}, {self.how}"


def launched(desk: CloudDesk) -> Run | None:
    """The run as it is on record, once it is."""
    try:
        return desk.run(NAME)
    except TuneError:
        return None


def while_provisioning(desk: CloudDesk) -> bool:
    """It is rented, and nobody has seen it running."""
    run = launched(desk)
    return run is not None and run.attempt is not None and run.attempt.instance_id is not None


def during_bootstrap(desk: CloudDesk) -> bool:
    """The agent is being put on it."""
    run = launched(desk)
    return run is not None and run.phase is Phase.BOOTSTRAPPING


def during_set_up(desk: CloudDesk) -> bool:
    """Everything is in place, and the instance makes itself an environment."""
    home = desk.home_of(NAME, 1)
    return home is not None and (home / "agent.sh").exists()


def after_the_last_step(desk: CloudDesk) -> bool:
    """The training is over; its result may not be stored."""
    return in_training(at_step(STEPS))(desk)


def in_training(moment: Moment) -> Callable[[CloudDesk], bool]:
    """One of the moments of a training on this very computer; if it is missed, the end of the training."""

    def is_now(desk: CloudDesk) -> bool:
        home = desk.home_of(NAME, 1)
        if home is None:
            return False
        return moment.ready(desk, home) or any(e["event"] == "done" for e in desk.events(home))

    return is_now


def drawn(draw: int) -> Loss:
    """Of seven stages one after the other, each at another moment of it; fourteen draws are every stage both ways."""
    rng = random.Random(draw)
    step, save, upload = at_step(rng.randrange(1, STEPS)), *(rng.randrange(1, 3) for _ in range(2))
    stage, turn = draw % 7, draw // 7
    how = HOW[(stage + turn) % 2]
    stages = (
        Loss(step.name, in_training(step), how),
        Loss("bootstrap", during_bootstrap, how),
        Loss(f"save {save}", in_training(during_a_save(save)), how, may_be_too_late=True),
        Loss("provisioning", while_provisioning, how),
        Loss(f"upload {upload}", in_training(during_an_upload(upload)), how, may_be_too_late=True),
        Loss("set-up", during_set_up, how),
        Loss("after the last step", after_the_last_step, how, may_be_too_late=True),
    )
    return stages[stage]


def stored_step(desk: CloudDesk, run: Run) -> int:
    """Of the newest checkpoint in the bucket."""
    found = [keys.parse_checkpoint(key.rsplit("/", 1)[1]) for key in desk.checkpoints(run.run_id)]
    return max((parsed[0] for parsed in found if parsed), default=0)


def settle(desk: CloudDesk) -> Run:
    """What cron does hours after the end: the marketplaces have charged everything, and are asked for it."""
    later = LeapingClock()
    later.leap(ALL_CHARGED_S)
    members = {name: _bound(name, desk, later) for name in desk.markets}
    bound = several.bind(members) if len(members) > 1 else next(iter(members.values()))
    runs = desk.runs
    context = Context(runs=runs, bound=lambda _: bound, start_command="", agent_script=b"")
    assert upkeep.settle_ended(context) == []
    assert [*runs.store.children(keys.UNBILLED)] == [], "a bill is still open"
    return desk.run(NAME)


def check_the_bill(desk: CloudDesk) -> None:
    """The ledger, after reading the bills, is what the marketplaces' own meters say, to a hundredth."""
    run = settle(desk)
    told = money.ledger(run, desk.runs.store.now()).total_usd
    charged = desk.spent_usd()
    assert charged > 0
    assert abs(told - charged) <= charged / 100, (told, charged)


def _bound(name: str, desk: CloudDesk, clock: Clock) -> Bound:
    """The marketplace as its adapter sees it at another time; no way into its instances."""
    at = desk.markets[name]
    if name == "vastai":
        from orchestrator.providers.vastai.account import VastAccount
        from orchestrator.providers.vastai.api import Api
        from orchestrator.providers.vastai.provider import VastProvider

        api = Api(at.url, at.account_key, clock=clock)
        return Bound(VastProvider(api), _nobody, account=VastAccount(api), is_elsewhere=True)
    from orchestrator.providers.runpod.account import RunPodAccount
    from orchestrator.providers.runpod.provider import RunPodProvider
    from orchestrator.providers.runpod.rest import Rest

    rest = Rest(at.url, at.account_key, clock)
    return Bound(RunPodProvider(rest, {}), _nobody, account=RunPodAccount(rest), is_elsewhere=True)


def _nobody(_: Instance) -> Remote:
    raise RemoteError("it is long gone")
