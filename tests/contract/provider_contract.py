"""What every marketplace promises, tested on every marketplace.

A provider joins with a subclass whose `world` fixture yields a World. What a world truly cannot stage it names in
`cannot`, with the reason; that reason is what the report shows for the test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import ClassVar, Protocol

import pytest

from orchestrator.errors import InstanceNotFound, InsufficientCapacity, OutcomeUnknown
from orchestrator.providers.base import Provider
from orchestrator.types import (
    Instance,
    InstanceId,
    InstanceState,
    LaunchSpec,
    Namespace,
    Requirements,
    RunId,
    Token,
    new_namespace,
    new_run_id,
    token_for,
)

PATIENCE_S = 60.0


class World(Protocol):
    """A marketplace under our control."""

    @property
    def provider(self) -> Provider: ...

    @property
    def spec(self) -> LaunchSpec:
        """A launch that starts and then stays."""

    def wait(self, until: Callable[[], bool], within_s: float) -> bool:
        """Let time pass until it is so; False when it never was."""

    def vanish(self, instance_id: InstanceId) -> None:
        """The provider takes the instance away without a trace."""

    def outbid(self, instance_id: InstanceId) -> None:
        """The provider stops the instance and keeps it listed."""

    def refusing(self) -> AbstractContextManager[None]:
        """Inside, every create finds no capacity."""

    def unclear(self, *, rented: bool) -> AbstractContextManager[None]:
        """Inside, create gives no clear answer, whether or not it rents."""


class ProviderContract:
    """The promises of `orchestrator.providers.base.Provider`."""

    provider_name: ClassVar[str]
    cannot: ClassVar[Mapping[str, str]] = {}  # name of a World method -> why this world has no such thing

    @pytest.fixture
    def namespace(self) -> Namespace:
        return new_namespace()

    def stage(self, what: str) -> None:
        if what in self.cannot:
            pytest.skip(self.cannot[what])

    def test_offers_can_be_believed(self, world: World) -> None:
        offers = world.provider.offers(Requirements())
        assert offers
        assert [o.usd_per_hour for o in offers] == sorted(o.usd_per_hour for o in offers), "cheapest first"
        assert len({o.offer_id for o in offers}) == len(offers)
        for offer in offers:
            assert offer.provider == world.provider.name == self.provider_name
            assert offer.usd_per_hour.is_finite()
            assert offer.usd_per_hour >= 0
            assert offer.offer_id
            assert min(offer.gpu_count, offer.vram_gib, offer.disk_gb, offer.host_ram_gib) >= 0

    def test_what_it_says_of_itself_makes_sense(self, world: World) -> None:
        said = world.provider.capabilities
        assert said.list_lag_s >= 0
        assert said.create_timeout_s > 0
        assert said.eviction_notice_s >= 0

    def test_the_longest_token_fits_its_label(self, world: World, namespace: Namespace) -> None:
        longest = token_for(namespace, RunId("z" * 10), 9999)
        assert len(longest) <= world.provider.capabilities.max_label_len

    def test_a_new_instance_carries_its_token(self, world: World, namespace: Namespace) -> None:
        created = rent(world, token := new_token(namespace))
        assert created.token == token
        assert created.provider == world.provider.name
        assert created.usd_per_hour == cheapest(world).usd_per_hour
        seen = world.provider.get(created.instance_id)
        assert (seen.instance_id, seen.token) == (created.instance_id, token)
        assert seen.created_at is not None
        assert seen.created_at.tzinfo is not None

    def test_a_new_instance_is_found_within_the_declared_lag(self, world: World, namespace: Namespace) -> None:
        created = rent(world, new_token(namespace))
        lag_s = world.provider.capabilities.list_lag_s
        assert world.wait(lambda: created.instance_id in found(world, namespace), lag_s + 1)

    def test_a_new_instance_comes_to_run(self, world: World, namespace: Namespace) -> None:
        created = rent(world, new_token(namespace))
        assert comes_to(world, created.instance_id, InstanceState.RUNNING)

    def test_other_namespaces_are_not_shown(self, world: World, namespace: Namespace) -> None:
        other = new_namespace()
        mine, theirs = rent(world, new_token(namespace)), rent(world, new_token(other))
        lag_s = world.provider.capabilities.list_lag_s
        assert world.wait(lambda: theirs.instance_id in found(world, other), lag_s + 1)
        assert world.wait(lambda: found(world, namespace) == {mine.instance_id}, lag_s + 1)

    @pytest.mark.parametrize("label", ["tune-demo", "{token}x", "x{token}", "{token}-2", "TUNE-{token}", "{token}\n"])
    def test_labels_that_only_look_like_ours_are_not_shown(
        self, world: World, namespace: Namespace, label: str
    ) -> None:
        rent(world, Token(label.format(token=new_token(namespace))))
        assert not world.wait(lambda: bool(found(world, namespace)), world.provider.capabilities.list_lag_s + 0.1)

    def test_two_attempts_of_a_run_are_told_apart(self, world: World, namespace: Namespace) -> None:
        run_id = new_run_id(datetime.now(UTC))
        tokens = [token_for(namespace, run_id, attempt) for attempt in (1, 11)]
        ids = {rent(world, token).instance_id: token for token in tokens}
        lag_s = world.provider.capabilities.list_lag_s
        assert world.wait(lambda: found(world, namespace) == set(ids), lag_s + 1)
        assert {i.instance_id: i.token for i in world.provider.find(namespace=namespace)} == ids

    def test_only_not_found_means_gone(self, world: World, namespace: Namespace) -> None:
        created = rent(world, new_token(namespace))
        terminate_until_gone(world, created.instance_id)
        with pytest.raises(InstanceNotFound):
            world.provider.get(created.instance_id)
        assert world.wait(lambda: not found(world, namespace), PATIENCE_S)

    def test_a_dying_instance_stays_listed_until_it_is_gone(self, world: World, namespace: Namespace) -> None:
        created = rent(world, new_token(namespace))
        assert comes_to(world, created.instance_id, InstanceState.RUNNING)
        world.wait(lambda: created.instance_id in found(world, namespace), world.provider.capabilities.list_lag_s + 1)
        world.provider.terminate(created.instance_id)
        missing = []

        def gone() -> bool:
            listed = created.instance_id in found(world, namespace)
            if is_gone(world, created.instance_id):
                return True
            missing.append(not listed)
            return False

        assert world.wait(gone, PATIENCE_S)
        assert not any(missing), "it was absent from the list while get() still knew it"

    def test_terminating_twice_is_harmless(self, world: World, namespace: Namespace) -> None:
        created, other = rent(world, new_token(namespace)), rent(world, new_token(namespace))
        terminate_until_gone(world, created.instance_id)
        for _ in range(2):
            with pytest.raises(InstanceNotFound):
                world.provider.terminate(created.instance_id)
        assert world.provider.get(other.instance_id).token == other.token

    @pytest.mark.parametrize("unknown", ["no-such-instance", "0", "../instances", ".", "a/b", " "])
    def test_an_unknown_id_is_not_found(self, world: World, unknown: str) -> None:
        rent(world, new_token(new_namespace()))
        with pytest.raises(InstanceNotFound):
            world.provider.get(InstanceId(unknown))
        with pytest.raises(InstanceNotFound):
            world.provider.terminate(InstanceId(unknown))

    def test_a_refusal_leaves_nothing_behind(self, world: World, namespace: Namespace) -> None:
        self.stage("refusing")
        offer = cheapest(world)
        with world.refusing(), pytest.raises(InsufficientCapacity):
            world.provider.create(offer, world.spec, token=new_token(namespace))
        lag_s = world.provider.capabilities.list_lag_s
        assert not world.wait(lambda: bool(found(world, namespace)), lag_s + 0.1)
        assert rent(world, new_token(namespace)), "the refusal passes"

    @pytest.mark.parametrize("rented", [True, False])
    def test_an_unclear_create_names_the_token_to_look_for(
        self, world: World, namespace: Namespace, *, rented: bool
    ) -> None:
        self.stage("unclear")
        token = new_token(namespace)
        offer = cheapest(world)
        with world.unclear(rented=rented), pytest.raises(OutcomeUnknown) as caught:
            world.provider.create(offer, world.spec, token=token)
        assert caught.value.token == token
        lag_s = world.provider.capabilities.list_lag_s
        appeared = world.wait(lambda: bool(found(world, namespace)), lag_s + 1)
        assert appeared or not rented, "it bills, and cannot be found"
        left = world.provider.find(namespace=namespace)
        assert [i.token for i in left] == [token] * len(left)
        assert len(left) <= 1
        for instance in left:
            terminate_until_gone(world, instance.instance_id)

    def test_a_vanished_instance_is_not_found(self, world: World, namespace: Namespace) -> None:
        self.stage("vanish")
        created = rent(world, new_token(namespace))
        assert comes_to(world, created.instance_id, InstanceState.RUNNING)
        world.vanish(created.instance_id)
        assert world.wait(lambda: is_gone(world, created.instance_id), PATIENCE_S)
        assert world.wait(lambda: not found(world, namespace), PATIENCE_S)

    def test_an_outbid_instance_stays_until_it_is_terminated(self, world: World, namespace: Namespace) -> None:
        self.stage("outbid")
        created = rent(world, new_token(namespace))
        assert comes_to(world, created.instance_id, InstanceState.RUNNING)
        world.outbid(created.instance_id)
        assert comes_to(world, created.instance_id, InstanceState.STOPPED)
        assert created.instance_id in found(world, namespace)
        terminate_until_gone(world, created.instance_id)

    def test_many_threads_may_use_it_at_once(self, world: World, namespace: Namespace) -> None:
        offer = cheapest(world)
        tokens = [new_token(namespace) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            created = list(pool.map(lambda token: world.provider.create(offer, world.spec, token=token), tokens))
        assert [i.token for i in created] == tokens
        assert len({i.instance_id for i in created}) == len(tokens)
        lag_s = world.provider.capabilities.list_lag_s
        assert world.wait(lambda: found(world, namespace) == {i.instance_id for i in created}, lag_s + 1)


def new_token(namespace: Namespace) -> Token:
    return token_for(namespace, new_run_id(datetime.now(UTC)), 1)


def cheapest(world: World):
    return world.provider.offers(Requirements())[0]


def rent(world: World, token: Token) -> Instance:
    return world.provider.create(cheapest(world), world.spec, token=token)


def found(world: World, namespace: Namespace) -> set[InstanceId]:
    return {i.instance_id for i in world.provider.find(namespace=namespace)}


def is_gone(world: World, instance_id: InstanceId) -> bool:
    try:
        world.provider.get(instance_id)
    except InstanceNotFound:
        return True
    return False


def comes_to(world: World, instance_id: InstanceId, state: InstanceState) -> bool:
    return world.wait(lambda: world.provider.get(instance_id).state is state, PATIENCE_S)


def terminate_until_gone(world: World, instance_id: InstanceId) -> None:
    def gone() -> bool:
        try:
            world.provider.terminate(instance_id)
        except InstanceNotFound:
            return True
        return False

    assert world.wait(gone, PATIENCE_S)
