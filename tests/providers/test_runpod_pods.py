"""A pod from its first moment to its last, with real processes: it lets us in, and can end itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import InstanceNotFound, RemoteError
from orchestrator.providers.registry import Bound, ProviderSettings, get_provider
from orchestrator.remote import sshkeys, sshpins
from orchestrator.types import (
    Instance,
    InstanceState,
    LaunchSpec,
    Requirements,
    Token,
    parse_token,
)
from tests.cloud.runpod import FakeRunPod
from tests.support.runpod import new_token

PATIENCE_S = 60.0
LOOP = 'echo "$TUNE_DEADLINE_S" >"$TUNE_HOME/started"; while :; do sleep 0.1; done'


class Site:
    """The adapter as the registry builds it, and real pods."""

    def __init__(self, under: Path) -> None:
        self.cloud = FakeRunPod(under / "machines")
        self.state_dir = under / "state"
        self.token = new_token()

    def bound(self) -> Bound:
        return get_provider(
            "runpod", settings=ProviderSettings(self.state_dir, {"api_url": self.cloud.url, "cloud": "secure"})
        )

    def rent(self, start_command: str = LOOP, *, waits: bool = True) -> Instance:
        bound, parts = self.bound(), parse_token(self.token)
        assert parts
        spec = LaunchSpec(
            start_command,
            3600,
            env={"TUNE_DEADLINE_S": "3600"},
            public_key=sshkeys.public_key(self.state_dir, parts.run_id),
            proof_secret=sshpins.proof_secret(self.state_dir, parts.run_id, self.token),
        )
        made = bound.provider.create(bound.provider.offers(Requirements())[0], spec, token=self.token)
        if not waits:
            return made
        eventually(lambda: bound.provider.get(made.instance_id).state is InstanceState.RUNNING)
        return bound.provider.get(made.instance_id)

    def is_gone(self, instance: Instance) -> bool:
        try:
            self.bound().provider.get(instance.instance_id)
        except InstanceNotFound:
            return True
        return False


def eventually(what: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < give_up
        time.sleep(0.05)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = Site(tmp_path)
    monkeypatch.setenv("RUNPOD_API_KEY", site.cloud.account_key)
    yield site
    site.cloud.close()
    site.cloud.machines.close()
    assert site.cloud.machines.leftovers() == []


def home_of(site: Site, token: Token) -> Path | None:
    (pod_id,) = site.cloud.listed() or [""]
    pointer = site.cloud.machines.home(pod_id) / ".tune" / token if pod_id else None
    return Path(pointer.read_text().strip()) if pointer and pointer.exists() else None


def inside(site: Site, instance: Instance, script: str) -> bytes:
    for _ in range(5):
        try:
            remote = site.bound().connect(instance)
        except RemoteError:
            continue
        break
    try:
        return remote.run(["sh", "-c", script]).stdout
    finally:
        remote.close()


def test_a_pod_starts_what_it_was_given_and_lets_us_in(site: Site) -> None:
    made = site.rent()
    eventually(lambda: bool((home := home_of(site, site.token)) and (home / "started").exists()))
    said = inside(site, made, "cat started; ls -l instance.env; cat $HOME/.ssh/authorized_keys | wc -l").decode()
    assert said.splitlines()[0] == "3600"
    assert "-rw-------" in said, "the pod's own key is for its user alone"
    assert said.splitlines()[-1].strip() == "1"
    everything = "".join(str(call.path) + call.body.decode() for call in site.cloud.log)
    assert site.cloud.account_key not in everything
    where = [p for p in site.cloud.machines.folder(made.instance_id).rglob("*") if p.is_file()]
    assert not any(site.cloud.account_key.encode() in p.read_bytes() for p in where), "it never left this computer"


@pytest.mark.parametrize("v2_takes_pod_keys", [True, False])
def test_a_pod_ends_itself_with_its_own_key(site: Site, *, v2_takes_pod_keys: bool) -> None:
    site.cloud.v2_takes_pod_keys = v2_takes_pod_keys
    made = site.rent('eval "$TUNE_FAREWELL"', waits=False)
    eventually(lambda: not site.cloud.meter.live())
    assert site.is_gone(made)
    ends = [call for call in site.cloud.log if call.by.startswith("pod ")]
    assert [call.call for call in ends] == (["delete"] if v2_takes_pod_keys else ["delete", "graphql"])


def test_a_pod_can_be_asked_whether_its_key_is_good(site: Site) -> None:
    made = site.rent()
    eventually(lambda: bool((home := home_of(site, site.token)) and (home / "started").exists()))
    assert inside(site, made, "sh farewell.sh look && echo yes") == b"yes\n"
    site.cloud.v2_takes_pod_keys = False
    assert inside(site, made, "sh farewell.sh look || echo no") == b"no\n"


def test_a_pods_key_opens_no_other_pod(site: Site) -> None:
    made = site.rent()
    other = site.cloud.rent_by_hand("somebody else's")
    pod = site.cloud.pods[made.instance_id]
    import requests

    for method, path in (("GET", f"/v2/pods/{other}"), ("DELETE", f"/v2/pods/{other}"), ("GET", "/v2/pods")):
        answer = requests.request(
            method,
            site.cloud.url + path,
            headers={"Authorization": f"Bearer {pod.key}", "User-Agent": "x/1"},
            timeout=5,
        )
        assert answer.status_code == 403
    assert set(site.cloud.meter.live()) == {made.instance_id, other}


def test_a_stopped_pod_runs_nothing_and_terminating_ends_it(site: Site) -> None:
    made = site.rent()
    site.cloud.preempt(made.instance_id)
    found = site.bound().provider.get(made.instance_id)
    assert (found.state, dict(found.address)) == (InstanceState.STOPPED, {})
    assert not site.cloud.machines.is_alive(made.instance_id)
    site.bound().provider.terminate(made.instance_id)
    assert site.is_gone(made)
    assert site.cloud.meter.live() == []
