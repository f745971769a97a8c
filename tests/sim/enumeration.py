"""Every side effect of an orchestrator, one after the other, as the moment when something else happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from orchestrator.errors import TuneError
from orchestrator.types import Limits, Outcome, Phase
from tests.sim.world import QUICK, Broken, Killed, Product, World

SHORT = replace(QUICK, total_steps=10, checkpoint_steps=2)  # five minutes of training
AT_MOST_PASSES = 300
STEP_S = 20.0  # between passes
LOST_TIME_S = 700.0  # an absence to be proved, a claim to run out, and a little work to be done again

Happening = Callable[[World], None]


@dataclass(frozen=True)
class Scenario:
    """A run's story, told without interruptions."""

    name: str
    ends: Phase = Phase.SUCCEEDED
    creates: tuple[str, ...] = ()
    later: tuple[tuple[float, Happening], ...] = ()


SCENARIOS = (
    Scenario("fair"),
    Scenario("lost reply, then outbid", creates=("lost",), later=((300, World.outbid),)),
    Scenario("refused, unclear, then taken away", creates=("refused", "never"), later=((420, World.vanish),)),
    Scenario("stopped", Phase.CANCELLED, later=((200, World.stop),)),
    Scenario("recipe fails", Phase.FAILED, later=((200, lambda w: w.fail(Outcome.USER_ERROR)),)),
)


@dataclass
class Interruption:
    """What happens at one moment, and which ends are right after it."""

    name: str
    happens: Happening
    ends: tuple[Phase, ...] = ()  # besides the scenario's own
    is_end_of_work: bool = False  # the recipe exits 0 here, if it was running at all
    heals_after_s: float | None = None
    overtakes: bool = False  # long enough for others to move the run while a create is on its way


def _die(_: World) -> None:
    raise Killed


def _second(world: World) -> None:
    for _ in range(3):
        world.one_pass()


def _second_after_a_nap(world: World) -> None:
    for _ in range(6):
        world.advance(40)
        world.one_pass()


def _finish_then(happening: Happening) -> Happening:
    def both(world: World) -> None:
        world.finish()
        happening(world)

    return both


def _cut_off_then_finish(world: World) -> None:
    world.partition()
    world.finish()


def _api_down(world: World) -> None:
    world.weather(api_down=True)


def _others_go_on(world: World) -> None:
    for _ in range(5):
        world.one_pass()
        world.advance(max(1.0, min(20.0, world.wait_s)))


BETWEEN_READS = (
    Interruption("others go on at once", _second),
    Interruption("others go on for a while", _others_go_on, overtakes=True),
    Interruption("the user says stop now", lambda w: w.stop(at_once=True), (Phase.CANCELLED, Phase.SUCCEEDED)),
)
INTERRUPTIONS = (
    Interruption("the orchestrator dies", _die),
    Interruption("a second orchestrator passes", _second),
    Interruption("the computer sleeps while others go on", _second_after_a_nap, overtakes=True),
    Interruption("the user says stop", World.stop, (Phase.CANCELLED, Phase.SUCCEEDED)),
    Interruption("the user says stop now", lambda w: w.stop(at_once=True), (Phase.CANCELLED, Phase.SUCCEEDED)),
    Interruption("done, then partitioned", _finish_then(World.partition), is_end_of_work=True, heals_after_s=200),
    Interruption("done, then outbid", _finish_then(World.outbid), is_end_of_work=True),
    Interruption("done while partitioned", _cut_off_then_finish, heals_after_s=200),
    Interruption("the marketplace is down", _api_down, heals_after_s=300),
    Interruption("taken away", World.vanish),
)


@dataclass
class Story:
    """One scenario, played in one world."""

    scenario: Scenario
    product: Product = field(default_factory=Product)

    def __post_init__(self) -> None:
        self.world = World(self.product, SHORT, Limits(max_attempts=4))
        self.world.weather(creates=list(self.scenario.creates))
        self.later = list(self.scenario.later)

    def play(self, tap: Callable[[str, str], None] = lambda _when, _what: None) -> World:
        """To the end, whatever `tap` does on the way."""
        world = self.world
        for _ in range(AT_MOST_PASSES):
            if world.run.phase.is_terminal:
                return world
            while self.later and world.now_s >= self.later[0][0]:
                self.later.pop(0)[1](world)
            try:
                world.one_pass(tap)
            except Killed:
                world.check()
            world.advance(STEP_S if world.wait_s > 2 else max(1.0, world.wait_s))
        raise Broken(f"no end: {world.run.phase} after {world.events[-6:]}, {world.errors[-1:]}")


def moments(scenario: Scenario, product: Product, *, reads: bool = False) -> tuple[int, float]:
    """How many moments the uninterrupted story has, and how long it takes: around side effects, or after reads."""
    count = 0

    def tap(when: str, _what: str) -> None:
        nonlocal count
        count += (when == "read") == reads

    world = Story(scenario, product).play(tap)
    if world.run.phase is not scenario.ends:
        raise Broken(f"{scenario.name}: ends {world.run.phase} ({world.run.reason})")
    return count, world.now_s


def interrupted(
    scenario: Scenario, interruption: Interruption, moment: int, product: Product, *, reads: bool = False
) -> World:
    """The story with one interruption at one moment."""
    story, seen = Story(scenario, product), 0
    was_at_work = False

    def tap(when: str, _what: str) -> None:
        nonlocal seen, was_at_work
        seen += (when == "read") == reads
        if seen != moment + 1 or (when == "read") != reads:
            return
        world = story.world
        box = world.box()
        was_at_work = (
            box is not None and box.is_up(world.clock.now().timestamp()) and box.job is not None and box.job.restored
        )
        world.tolerates_superseded = interruption.overtakes
        if interruption.heals_after_s is not None:
            story.later.append((world.now_s + interruption.heals_after_s, World.fair))
            story.later.sort(key=lambda due: due[0])
        interruption.happens(world)

    world = story.play(tap)
    allowed = {scenario.ends, *interruption.ends}
    if interruption.is_end_of_work and was_at_work and world.done_at is not None:
        allowed = {Phase.SUCCEEDED}
    elif interruption.name.startswith("done") or (scenario.ends is not Phase.SUCCEEDED and not interruption.ends):
        allowed |= {Phase.SUCCEEDED}
    if world.run.phase not in allowed:
        raise Broken(f"ends {world.run.phase} ({world.run.reason}) instead of {allowed}")
    return world


def latest_end_s(length_s: float, interruption: Interruption) -> float:
    """When the story must be over, if it takes `length_s` without the interruption."""
    asleep_s = 300 if interruption.overtakes else 0
    return length_s + LOST_TIME_S + (interruption.heals_after_s or 0) + asleep_s


def plan(product: Product, *, every: int = 1) -> Iterator[tuple[Scenario, Interruption, int, float]]:
    """Scenario, interruption, moment, and when the story must be over at the latest."""
    for scenario in SCENARIOS:
        count, length_s = moments(scenario, product)
        for interruption in INTERRUPTIONS:  # the moments between reads are many, and have a test of their own
            for moment in range(0, count, every):
                yield scenario, interruption, moment, latest_end_s(length_s, interruption)


def try_all(product: Product, *, every: int = 1) -> None:
    """Play every story; raises Broken with the first promise that does not hold."""
    for scenario, interruption, moment, latest_s in plan(product, every=every):
        try:
            now_s = interrupted(scenario, interruption, moment, product).now_s
        except (Broken, TuneError) as e:
            raise Broken(f"{scenario.name} / {interruption.name} at moment {moment}: {e}") from e
        if now_s > latest_s:
            raise Broken(f"{scenario.name} / {interruption.name} at moment {moment}: took {now_s:.0f} s")
