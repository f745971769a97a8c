"""What Vast.ai tells of instances, and what becomes of it: states, addresses, lists with strangers in them, bills."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from orchestrator.errors import InstanceNotFound, ProviderRejected, ProviderUnavailable, TuneError
from orchestrator.providers.vastai.instances import address, instance, says, state_of
from orchestrator.providers.vastai.rows import Contract
from orchestrator.types import InstanceId, InstanceState, Requirements, new_namespace, new_run_id, token_for
from tests.cloud.faults import Fault
from tests.cloud.vast_rows import Ask
from tests.support.vast import TOKEN, VastWorld

NAMESPACE = "abc123"
STARTING, RUNNING, STOPPED, UNKNOWN = (
    InstanceState.STARTING,
    InstanceState.RUNNING,
    InstanceState.STOPPED,
    InstanceState.UNKNOWN,
)
PORTS = {"22/tcp": [{"HostIp": "0.0.0.0", "HostPort": "30022"}]}
OCI = (
    "Error response from daemon: failed to create task for container: failed to create shim task: OCI runtime create "
    "failed: could not apply required modification to OCI specification"
)


@pytest.fixture
def world() -> Iterator[VastWorld]:
    made = VastWorld(Ask(usd=0.40, min_bid=0.20, slots=99, inet_down_cost=0.01))
    yield made
    made.close()


def row(**fields: Any) -> Contract:
    there = {"public_ipaddr": "203.0.113.138", "ports": PORTS, "ssh_host": "ssh3.vast.ai", "ssh_port": 12_296}
    return Contract.model_validate({"id": 33_402_296, **there, **fields})


def states(actual: str | None, others: str | None) -> dict[str, str | None]:
    return {"actual_status": actual, "cur_state": others, "intended_status": others, "next_state": others}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (states(None, "running"), STARTING),
        (states("created", "running"), STARTING),
        (states("loading", "running"), STARTING),
        (states("rebooting", "running"), STARTING),
        (states(None, None), STARTING),
        (states("running", "running"), RUNNING),
        (states("Running ", "running"), RUNNING),
        # Outbid, paused, or given up by the host: three times "stopped", whatever the container did last
        (states("exited", "stopped") | {"is_bid": True}, STOPPED),
        (states("running", "stopped"), STOPPED),
        (states("loading", "stopped") | {"is_bid": True}, STOPPED),
        (states("created", "stopped") | {"status_msg": OCI, "start_date": 1_787_722_703.0}, STOPPED),
        (states("stopped", "running"), STOPPED),
        (states("exited", "running"), STOPPED),
        (states("created", "running") | {"status_msg": OCI}, UNKNOWN),
        (states("loading", "running") | {"status_msg": "manifest unknown"}, UNKNOWN),
        (states("offline", "running"), UNKNOWN),
        (states("unknown", "running"), UNKNOWN),
        (states("frozen", "frozen"), UNKNOWN),
        (states("hibernating", "running"), UNKNOWN),
        (states("running", "running") | {"ports": None, "ssh_port": None}, STARTING),
        (states("running", "running") | {"ports": {"22/tcp": []}, "ssh_port": None}, STARTING),
    ],
)
def test_four_words_come_to_one_state(fields: dict[str, Any], expected: InstanceState) -> None:
    assert state_of(row(**fields)) is expected


@pytest.mark.parametrize("ports", [None, [], [8080, 8081], {}, {"22/tcp": None}, {"22/tcp": []}, {"8080/tcp": [{"HostPort": "1"}]},
                                   {"22/tcp": [{}]}, {"22/tcp": ["30022"]}, {"22/tcp": [{"HostPort": "0"}]}, {"22/tcp": [{"HostPort": "-22"}]}, "22"])  # fmt: skip
def test_without_a_port_there_is_no_direct_way(ports: Any) -> None:
    found = address(row(ports=ports))
    assert "direct_host" not in found
    assert (found["proxy_host"], found["proxy_port"], found["proxy_user"]) == ("ssh3.vast.ai", "12296", "root")
    assert address(row(ports=ports, ssh_host=None)) == {}
    assert address(row(ports=ports, ssh_port=None)) == {}


def test_the_direct_way_is_the_hosts_port_at_its_own_address() -> None:
    found = address(row(public_ipaddr="203.0.113.138\n", ssh_host=None))
    assert found == {"direct_host": "203.0.113.138", "direct_port": "30022", "user": "root"}
    assert "direct_host" not in address(row(public_ipaddr=None))


def test_nobody_is_sent_to_the_ports_of_a_stopped_instance() -> None:
    assert instance(row(**states("exited", "stopped")), provider="vastai").address == {}
    assert instance(row(**states("offline", "running")), provider="vastai").address != {}


def test_it_is_told_in_the_marketplaces_own_words() -> None:
    assert says(row(**states("created", "stopped"), status_msg=f"{OCI}\n  twice")).startswith(
        "created, meant to be stopped: Error"
    )
    assert len(says(row(status_msg="x" * 999))) <= 200
    assert says(row(actual_status=None)) == "not there yet"


def test_strange_rows_of_others_hide_nothing_of_ours(world: VastWorld) -> None:
    world.cloud.list_rows = 3
    ids = {world.rent(token=token_for(NAMESPACE, new_run_id(world.now()), n)).instance_id for n in range(1, 8)}  # type: ignore[arg-type]
    world.rent(token=token_for(new_namespace(), new_run_id(world.now()), 1))
    found = world.provider.find(namespace=NAMESPACE)  # type: ignore[arg-type]
    assert {i.instance_id for i in found} == ids
    assert len(world.cloud.calls("list")) > 3


def list_answer(**fields: Any) -> Fault:
    import json

    return Fault(f"list {sorted(fields)}", 200, json.dumps(fields).encode())


@pytest.mark.parametrize(
    "answer",
    [
        list_answer(instances=None), list_answer(success=True), list_answer(instances={}), list_answer(instances=[], next_token="t9"),
        list_answer(instances=[{"label": TOKEN}]), list_answer(instances=[{"id": "x", "label": TOKEN}]),
    ],
    ids=str,
)  # fmt: skip
def test_half_a_list_is_an_error(world: VastWorld, answer: Fault) -> None:
    world.rent()
    world.cloud.faults.from_now_on("list", answer)
    with pytest.raises(ProviderUnavailable):
        world.provider.find(namespace=NAMESPACE)  # type: ignore[arg-type]


def test_a_page_that_fails_is_an_error(world: VastWorld) -> None:
    world.cloud.list_rows = 2
    world.rent()
    world.cloud.faults.on("list", Fault("502", 502), nth=2)
    with pytest.raises(ProviderUnavailable):
        world.provider.find(namespace=NAMESPACE)  # type: ignore[arg-type]


def test_the_retired_list_is_not_called(world: VastWorld) -> None:
    world.rent()
    world.provider.find(namespace=NAMESPACE)  # type: ignore[arg-type]
    assert {call.path for call in world.cloud.calls("list")} == {"/api/v1/instances/"}


def test_outbid_it_stops_and_may_come_back(world: VastWorld) -> None:
    rented = world.rent(spot="require")
    assert world.provider.get(rented.instance_id).state is RUNNING
    world.cloud.outbid(int(rented.instance_id))
    seen = world.provider.get(rented.instance_id)
    assert (seen.state, seen.spot, seen.address) == (STOPPED, True, {})
    world.cloud.win_back(int(rented.instance_id))
    assert world.provider.get(rented.instance_id).state is RUNNING


@pytest.mark.parametrize(
    ("boot", "expected"),
    [("loading", STARTING), ("oci", UNKNOWN), ("exited", STOPPED), ("offline", UNKNOWN), ("unknown", UNKNOWN)],
)
def test_a_host_that_never_boots_is_told_from_one_that_takes_its_time(boot: str, expected: InstanceState) -> None:
    world = VastWorld(Ask(boot=boot, boot_s=60))
    try:
        rented = world.rent()
        assert world.provider.get(rented.instance_id).state is STARTING
        world.clock.step(100)
        assert world.provider.get(rented.instance_id).state is expected
    finally:
        world.close()


def test_a_container_that_ends_by_itself_is_stopped(world: VastWorld) -> None:
    rented = world.rent()
    world.provider.get(rented.instance_id)
    world.cloud.exit(int(rented.instance_id))
    assert world.provider.get(rented.instance_id).state is STOPPED
    world.cloud.lose_host(int(rented.instance_id))
    assert world.provider.get(rented.instance_id).state is UNKNOWN


def test_the_balance_is_the_prepaid_credit(world: VastWorld) -> None:
    assert world.account.balance_usd() == Decimal("25.0")
    world.cloud.credit = None  # type: ignore[assignment]
    assert world.account.balance_usd() is None


def test_the_bill_is_the_meters_to_the_cent_and_in_its_parts(world: VastWorld) -> None:
    since = world.now()
    rented, other = world.rent(spot="require"), world.rent(token=token_for(NAMESPACE, new_run_id(since), 2))  # type: ignore[arg-type]
    name = rented.instance_id
    world.provider.get(name)
    world.clock.step(3 * 3600)
    world.cloud.meter.traffic(name, down_gb=12)
    world.cloud.outbid(int(name))
    world.clock.step(3600)
    world.provider.terminate(name)
    world.provider.terminate(other.instance_id)
    gone_at = world.now()
    bill = world.account.billed(name, since=since, until=gone_at)
    assert bill is not None
    assert bill.gpu_usd == Decimal("0.63")
    assert bill.disk_usd == Decimal("0.016")
    assert bill.traffic_usd == Decimal("0.12")
    assert (bill.other_usd, bill.is_final) == (0, False)
    assert bill.usd == world.cloud.meter.usd(name)
    world.clock.step(3601)
    again = world.account.billed(name, since=since, until=gone_at)
    assert again is not None
    assert (again.usd, again.is_final) == (bill.usd, True)


def test_what_is_not_charged_yet_is_not_free(world: VastWorld) -> None:
    assert world.account.billed(InstanceId("77"), since=world.now(), until=world.now()) is None


def test_charges_without_parts_count_too_and_pages_are_followed(world: VastWorld) -> None:
    world.cloud.charge_rows = 2
    ids = [world.rent(token=token_for(NAMESPACE, new_run_id(world.now()), n)).instance_id for n in range(1, 6)]  # type: ignore[arg-type]
    world.clock.step(7200)
    bill = world.account.billed(ids[-1], since=world.now(), until=world.now())
    assert bill is not None
    assert bill.usd == world.cloud.meter.usd(ids[-1]) > 0
    assert len(world.cloud.calls("charges")) == 3
    world.cloud.faults.on("charges", charges(source="instance-5", amount="0.333", items=None))
    plain = world.account.billed(InstanceId("5"), since=world.now(), until=world.now())
    assert plain is not None
    assert plain.other_usd == Decimal("0.333")


def charges(**fields: Any) -> Fault:
    import json

    return Fault("charges", 200, json.dumps({"success": True, "results": [fields], "next_token": None}).encode())


def test_a_bill_that_cannot_be_read_is_no_bill(world: VastWorld) -> None:
    world.cloud.faults.on("charges", charges(source="instance-5", amount="much"))
    with pytest.raises(ProviderUnavailable):
        world.account.billed(InstanceId("5"), since=world.now(), until=world.now())
    world.cloud.faults.on("charges", Fault("no right", 403, b'{"success": false, "error": "forbidden", "msg": "no"}'))
    assert world.account.billed(InstanceId("5"), since=world.now(), until=world.now()) is None


def test_the_days_asked_for_are_whole_and_in_utc(world: VastWorld) -> None:
    import json

    since = datetime(2026, 3, 1, 23, 30, 5, 9, tzinfo=UTC)
    world.account.billed(InstanceId("5"), since=since, until=since + timedelta(hours=1))
    asked = json.loads(world.cloud.calls("charges")[-1].query["select_filters"][0])
    assert asked["day"] == {"gte": 1_772_323_200, "lte": 1_772_323_200 + 2 * 86_400 - 1}


def test_a_bid_can_be_raised_and_wins_the_machine_back(world: VastWorld) -> None:
    rented = world.rent(spot="require")
    world.provider.get(rented.instance_id)
    world.cloud.outbid(int(rented.instance_id))
    world.account.rebid(rented.instance_id, Decimal("0.5"))
    seen = world.provider.get(rented.instance_id)
    assert (seen.state, seen.usd_per_hour) == (RUNNING, Decimal("0.504"))
    assert world.body("bid") == {"client_id": "me", "price": 0.5}
    with pytest.raises(InstanceNotFound):
        world.account.rebid(InstanceId("5"), Decimal(1))
    with pytest.raises(InstanceNotFound):
        world.account.rebid(InstanceId("../5"), Decimal(1))
    with pytest.raises(ProviderRejected):
        world.account.rebid(rented.instance_id, Decimal(99))


def test_an_instance_key_reaches_its_own_instance_only(world: VastWorld) -> None:
    import requests

    mine, other = world.rent(), world.rent()
    key = world.contract(mine).api_key
    head = {"Authorization": f"Bearer {key}"}

    def ask(method: str, path: str) -> int:
        return requests.request(method, f"{world.cloud.url}{path}", headers=head, timeout=5).status_code

    assert ask("GET", f"/api/v0/instances/{mine.instance_id}/") == 200
    assert ask("DELETE", f"/api/v0/instances/{other.instance_id}/") == 403
    assert ask("GET", "/api/v1/instances/") == 403
    assert ask("DELETE", f"/api/v0/instances/{mine.instance_id}/") == 200
    assert world.get(mine) is None
    assert world.get(other) is not None


def test_capabilities_are_those_of_a_market_of_bids(world: VastWorld) -> None:
    said = world.provider.capabilities
    assert (said.spot, said.rebid, said.stopped_bills, said.starting_bills) == (True, True, True, False)


def test_errors_are_ours_whatever_is_asked(world: VastWorld) -> None:
    world.cloud.close()
    for ask in (
        lambda: world.provider.offers(Requirements()), lambda: world.provider.get(InstanceId("5")), world.account.balance_usd,
    ):  # fmt: skip
        with pytest.raises(TuneError):
            ask()
    world.cloud.close = lambda: None  # type: ignore[method-assign]
