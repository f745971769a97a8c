"""One list for all the runs of a pass, and never another run's list."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.observe import Listing
from orchestrator.types import LaunchSpec, Requirements, new_namespace, token_for
from tests.sim.world import World


def test_a_run_from_before_the_namespace_was_made_anew_still_sees_its_instance() -> None:
    """An empty list that was asked for another namespace would be taken for the proof that nothing was rented."""
    world = World()
    young = world.run
    old = replace(world.new_run("old"), namespace=new_namespace())
    world.cloud.create(
        world.cloud.offers(Requirements())[0],
        LaunchSpec("true", deadline_s=1e9),
        token=token_for(old.namespace, old.run_id, 1),
    )
    world.clock.sleep(60)
    listing, now = Listing(world.context()), world.clock.now()
    assert listing.of(young, now)[1] == ()
    assert [i.instance_id for i in listing.of(old, now)[1] or ()] == ["sim-1"]
