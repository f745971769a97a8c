"""What RunPod says of money, and where its key comes from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.errors import AuthRejected, CredentialsMissing, ProviderRejected, ProviderUnavailable, UsageError
from orchestrator.providers.registry import ProviderSettings, get_provider
from orchestrator.providers.runpod.account import RunPodAccount
from orchestrator.providers.runpod.credentials import api_key, base_url
from orchestrator.providers.runpod.rest import Rest
from orchestrator.types import Bill, InstanceId
from tests.cloud import faults
from tests.cloud.faults import Fault
from tests.cloud.runpod import problem
from tests.support.runpod import RunPodWorld


@pytest.fixture
def world() -> Iterator[RunPodWorld]:
    world = RunPodWorld()
    yield world
    world.close()


# Money


def test_the_balance_is_told_as_long_as_the_older_api_is_there(world: RunPodWorld) -> None:
    assert world.account.balance_usd() == Decimal("25.5")
    world.cloud.balance = None
    assert world.account.balance_usd() is None
    world.cloud.has_graphql = False
    assert world.account.balance_usd() is None


@pytest.mark.parametrize(
    "fault",
    [
        Fault("errors", 200, b'{"errors": [{"message": "access denied"}], "data": null}'),
        Fault("odd errors", 200, b'{"errors": "no"}'),
        Fault("404", 404, b'{"error": "no such route"}'),
        Fault("403", 403, b'{"error": "access denied"}'),
        Fault("nobody", 200, b'{"data": {"myself": null}}'),
        Fault("a text", 200, b'{"data": {"myself": {"clientBalance": "much"}}}'),
        Fault("a flag", 200, b'{"data": {"myself": {"clientBalance": true}}}'),
    ],
    ids=str,
)
def test_what_graphql_keeps_to_itself_is_not_told_and_does_not_hurt(world: RunPodWorld, fault: Fault) -> None:
    world.cloud.faults.on("graphql", fault)
    assert world.account.balance_usd() is None


@pytest.mark.parametrize("has_graphql", [True, False])
def test_a_wrong_key_is_found_out_with_or_without_graphql(world: RunPodWorld, *, has_graphql: bool) -> None:
    world.cloud.has_graphql = has_graphql
    account = RunPodAccount(Rest(world.cloud.url, "rpa_wrong", world.clock))
    with pytest.raises(AuthRejected):
        account.balance_usd()


@pytest.mark.parametrize("fault", faults.EVERY_KIND, ids=str)
def test_silence_about_money_is_an_error_that_passes(world: RunPodWorld, fault: Fault) -> None:
    made, now = world.rent(), world.clock.now()
    for call, ask in (
        ("graphql", lambda: world.account.balance_usd(timeout_s=0.2)),
        ("billing", lambda: world.account.billed(made.instance_id, since=now, until=now, timeout_s=0.2)),
    ):
        world.cloud.faults.on(call, fault)
        with pytest.raises(ProviderUnavailable):
            ask()


def test_the_bill_of_one_pod_holds_all_its_hours_and_nothing_of_others(world: RunPodWorld) -> None:
    since = world.clock.now()
    offer = world.cheapest()
    made, _other = world.rent(), world.rent()
    world.clock.leap(2.5 * 3600)
    bill = world.account.billed(made.instance_id, since=since, until=world.clock.now())
    assert bill
    assert not bill.is_final
    assert float(bill.usd) == pytest.approx(float(offer.usd_per_hour) * 2.5, rel=1e-3)
    assert float(bill.gpu_usd) == pytest.approx(0.17 * 2.5, rel=1e-3)
    assert bill.disk_usd > 0
    (asked,) = world.cloud.calls("billing")
    assert asked.query["bucketSize"] == ["hour"]
    assert asked.query["podId"] == [made.instance_id]


def test_a_bill_is_the_last_word_an_hour_after_the_end(world: RunPodWorld) -> None:
    since = world.clock.now()
    made = world.rent()
    world.clock.leap(1800)
    world.provider.terminate(made.instance_id)
    until = world.clock.now()
    first = world.account.billed(made.instance_id, since=since, until=until)
    world.clock.leap(3700)
    last = world.account.billed(made.instance_id, since=since, until=until)
    assert first and last
    assert (first.is_final, last.is_final) == (False, True)
    assert first.usd == last.usd
    assert float(last.usd) == pytest.approx(float(world.cloud.meter.usd(made.instance_id)))


def test_a_stopped_pod_of_ours_costs_nothing(world: RunPodWorld) -> None:
    since = world.clock.now()
    made = world.rent()
    world.clock.leap(600)
    world.cloud.preempt(made.instance_id)
    before = world.account.billed(made.instance_id, since=since, until=world.clock.now())
    world.clock.leap(7 * 24 * 3600)
    after = world.account.billed(made.instance_id, since=since, until=world.clock.now())
    assert before and after
    assert before.usd == after.usd
    assert not world.provider.capabilities.stopped_bills
    assert world.cheapest().idle_usd_per_hour == 0


def test_no_bill_yet_is_not_a_bill_of_nothing(world: RunPodWorld) -> None:
    now = world.clock.now()
    assert world.account.billed(InstanceId("nobody"), since=now - timedelta(hours=9), until=now) is None


def test_a_key_that_may_not_see_bills_rents_all_the_same(world: RunPodWorld) -> None:
    now = world.clock.now()
    denied = problem(403, "access denied")
    world.cloud.faults.on("billing", Fault("403", 403, denied.body, denied.content_type))
    assert world.account.billed(InstanceId("x"), since=now, until=now) is None


def test_costs_that_are_neither_gpu_nor_disk_are_not_lost(world: RunPodWorld) -> None:
    rows = b'{"records": [{"podId": "x", "totalAmount": 1.5, "gpuAmount": 1.0, "cpuAmount": 0.3, "diskAmount": null}]}'
    world.cloud.faults.on("billing", Fault("odd", 200, rows))
    now = world.clock.now()
    bill = world.account.billed(InstanceId("x"), since=now, until=now)
    assert bill == Bill(gpu_usd=Decimal("1.0"), other_usd=Decimal("0.5"))


def test_there_is_no_bid_to_change(world: RunPodWorld) -> None:
    with pytest.raises(ProviderRejected, match="takes no bids"):
        world.account.rebid(InstanceId("x"), Decimal(1))
    assert world.cloud.log == []


def test_no_call_that_rents_interruptibly_or_resumes_is_known_to_the_program() -> None:
    folder = Path(sys.modules[RunPodAccount.__module__].__file__ or "").parent
    text = "".join(path.read_text() for path in folder.glob("*.py"))
    for call in ("podRentInterruptable", "podBidResume", "podResume", "podFindAndDeployOnDemand", "bidPerGpu"):
        assert call not in text
    assert "/action" not in text


# The key


def config(text: str | bytes) -> Path:
    path = Path.home() / ".runpod" / "config.toml"
    path.parent.mkdir()
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_variable_comes_first_and_an_empty_one_is_not_set() -> None:
    path = config('[default]\napi_key = "from-the-file"\n')
    assert api_key({"RUNPOD_API_KEY": " from-the-variable\r\n"}) == ("from-the-variable", "$RUNPOD_API_KEY")
    for empty in ({}, {"RUNPOD_API_KEY": ""}, {"RUNPOD_API_KEY": " \n"}):
        assert api_key(empty) == ("from-the-file", str(path))


@pytest.mark.parametrize(
    "text",
    [
        b'[default]\napi_key = "the-key"\n',
        b'\xef\xbb\xbf[default]\r\napi_key = "the-key\\n"\r\n',
        b"apikey = 'the-key'\napiurl = 'https://api.runpod.io/graphql'\n",
        b'apikey = "old"\n[default]\napi_key = "the-key"\n',
        b'apikey = "the-key"\n[default]\nother = 1\n',
    ],
)
def test_the_file_of_the_sdk_and_that_of_runpodctl_are_read(text: bytes) -> None:
    path = config(text)
    assert api_key({}) == ("the-key", str(path))


@pytest.mark.parametrize("text", [None, "", "[default]\n", "apikey = ''\n", "apikey = 7\n", "default = 'x'\n"])
def test_no_key_names_every_place_that_was_looked_at(text: str | None) -> None:
    if text is not None:
        config(text)
    with pytest.raises(CredentialsMissing, match=r"\$RUNPOD_API_KEY.*config\.toml") as caught:
        api_key({})
    assert "RUNPOD_API_KEY" in caught.value.hint


@pytest.mark.parametrize("text", [b"apikey = canary-of-the-key\n", b'apikey = "canary-of-the-key', b"\xff\xfe\x00c"])
def test_a_damaged_file_is_named_and_not_quoted(text: bytes) -> None:
    config(text)
    with pytest.raises(CredentialsMissing, match="cannot be read") as caught:
        api_key({})
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("key", ["canary-ü", "canary two", "canary\nX-Evil: 1", "canary\x00"])
def test_what_cannot_be_a_key_never_gets_into_a_header(key: str) -> None:
    with pytest.raises(CredentialsMissing, match="not a RunPod key") as caught:
        api_key({"RUNPOD_API_KEY": key})
    assert "canary" not in str(caught.value) + caught.value.hint


def test_where_the_api_lies_can_be_said() -> None:
    assert base_url({}, {}) == "https://api.runpod.io"
    assert base_url({}, {"api_url": "https://api.runpod.io/v2/"}) == "https://api.runpod.io"
    assert base_url({"TUNE_RUNPOD_API_URL": ""}, {"api_url": "https://gate.example/runpod/"}) == (
        "https://gate.example/runpod"
    )
    both = base_url({"TUNE_RUNPOD_API_URL": "http://127.0.0.1:9"}, {"api_url": "https://gate.example"})
    assert both == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    "url", ["api.runpod.io", "ftp://x", "https://", "https://me:pw@x", "https://x/?a=1", "https://x/#f", "https://[x"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    for environ, options in (({"TUNE_RUNPOD_API_URL": url}, {}), ({}, {"api_url": url})):
        with pytest.raises(UsageError, match="address"):
            base_url(environ, options)


def test_the_registry_builds_it(world: RunPodWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ProviderSettings(tmp_path, {"cloud": "secure", "api_url": world.cloud.url})
    with pytest.raises(CredentialsMissing):
        get_provider("runpod", settings=settings)
    monkeypatch.setenv("RUNPOD_API_KEY", world.cloud.account_key)
    bound = get_provider("runpod", settings=settings)
    assert (bound.is_elsewhere, bound.key_source, bound.provider.name) == (True, "$RUNPOD_API_KEY", "runpod")
    assert bound.farewell and bound.farewell.url == f"{world.cloud.url}/v2/pods/{{id}}"
    assert bound.account and bound.account.balance_usd() == Decimal("25.5")
    from orchestrator.types import Requirements

    assert bound.provider.offers(Requirements())
    assert world.cloud.account_key not in repr(bound)


def test_neither_the_sdk_nor_http_is_loaded_before_it_is_needed(tmp_path: Path) -> None:
    code = f"""
import logging, pathlib, sys
from orchestrator.providers.registry import ProviderSettings, get_provider
bound = get_provider("runpod", settings=ProviderSettings(pathlib.Path({str(tmp_path)!r})))
bound.provider.capabilities
print([m for m in ("runpod", "requests", "paramiko", "boto3") if m in sys.modules], logging.getLogger().handlers)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={"RUNPOD_API_KEY": "k", "PATH": "/bin"}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("[] []\n", "")
