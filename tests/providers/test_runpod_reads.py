"""What RunPod says of pods, believed as far as it goes: not found is the only proof of absence."""

from __future__ import annotations

import json
import logging
import ssl
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import (
    AuthRejected,
    InstanceNotFound,
    ProviderError,
    ProviderRejected,
    ProviderUnavailable,
    RateLimited,
    TuneError,
)
from orchestrator.providers.asking import in_words, never_left
from orchestrator.providers.runpod.pods import Pod, instance
from orchestrator.providers.runpod.provider import RunPodProvider
from orchestrator.providers.runpod.rest import Rest, Unheard, _retry_after_s
from orchestrator.types import InstanceId, InstanceState, Namespace, Requirements, new_namespace, parse_token
from tests.cloud import faults
from tests.cloud.faults import Fault
from tests.cloud.runpod import problem
from tests.cloud.runpod_pods import STAGES
from tests.support.runpod import RunPodWorld, new_token

ANYTHING_BUT_AN_ANSWER = [
    *faults.EVERY_KIND,
    faults.UNAVAILABLE,
    Fault("404 of a proxy", 404, b"<html>not here</html>", "text/html"),
    Fault("404 without a word", 404, b""),
    Fault("404 of a router", 404, b"404 page not found", "text/plain"),
    Fault("an empty object", 200, b"{}"),
    Fault("a list", 200, b"[]"),
    Fault("the older API's null", 200, b'{"data": {"pod": null}}'),
    Fault("not a number", 200, b'{"id": "x", "cost": NaN}'),
    Fault("deep", 200, b"[" * 100_000),
    Fault("a redirect", 302, b"", headers={"Location": "http://127.0.0.1:9/"}),
]


@pytest.fixture
def world() -> Iterator[RunPodWorld]:
    world = RunPodWorld()
    yield world
    world.close()


def raw(world: RunPodWorld, **changes: Any) -> Pod:
    """A running pod as it is told, with changes."""
    made = world.rent()
    pod = world.cloud.pods[made.instance_id]
    told = pod.told(world.clock.now(), stage_s=0, datacenter="US-KS-2")
    return Pod.model_validate({**told, **changes})


def state_of(pod: Pod) -> InstanceState:
    return instance(pod, provider="runpod").state


def test_it_runs_once_its_ssh_can_be_reached_from_outside(world: RunPodWorld) -> None:
    made = world.rent()
    seen = []
    for _ in STAGES:
        found = world.provider.get(made.instance_id)
        seen.append((found.state, dict(found.address)))
        world.clock.leap(world.cloud.stage_s)
    assert seen == [(InstanceState.STARTING, {})] * len(STAGES)
    up = world.provider.get(made.instance_id)
    assert (up.state, up.says) == (InstanceState.RUNNING, "RUNNING")
    assert up.address == {"direct_host": "127.0.0.1", "direct_port": "9", "user": "root"}


def test_a_pod_without_a_public_port_says_what_it_waits_for(world: RunPodWorld) -> None:
    made = world.rent()
    world.clock.leap(world.cloud.stage_s * (len(STAGES) - 1))
    found = world.provider.get(made.instance_id)
    assert (found.state, found.says) == (InstanceState.STARTING, "RUNNING, without a public port for SSH yet")


@pytest.mark.parametrize(
    "runtime",
    [
        None,
        {},
        {"ports": None},
        {"ports": []},
        {"ports": "22"},
        {"ports": [{"private": 8888, "public": 1, "type": "http", "ip": "195.26.233.3"}]},
        {"ports": [{"private": 22, "public": 2222, "type": "tcp", "ip": "100.65.0.7"}]},
        {"ports": [{"private": 22, "public": 2222, "type": "tcp", "ip": "10.1.2.3"}]},
        {"ports": [{"private": 22, "public": None, "type": "tcp", "ip": "195.26.233.3"}]},
        {"ports": [{"private": 22, "public": 0, "type": "tcp", "ip": "195.26.233.3"}]},
        {"ports": [{"private": 22, "public": 34446, "type": "tcp", "ip": None}]},
        {"ports": [{"private": 22, "public": 34446, "type": "udp", "ip": "195.26.233.3"}]},
        {"ports": [{"private": 2222, "public": 22, "type": "tcp", "ip": "195.26.233.3"}]},
        {"ports": [None]},
    ],
    ids=str,
)
def test_ports_that_lead_nowhere_are_no_way_in(world: RunPodWorld, runtime: Any) -> None:
    assert state_of(raw(world, runtime=runtime, ssh={"proxy": None, "direct": None})) is InstanceState.STARTING


def test_either_of_the_two_places_that_tell_the_way_in_is_enough(world: RunPodWorld) -> None:
    ports = {"ports": [{"private": 22, "public": 34446, "type": "tcp", "ip": "195.26.233.3"}]}
    direct = {"host": "195.26.233.3", "port": 34446, "username": "root", "command": "ssh"}
    proxy = {"host": "ssh.runpod.io", "port": 22, "username": "x-1", "command": "ssh"}
    wanted = {"direct_host": "195.26.233.3", "direct_port": "34446", "user": "root"}
    for runtime, ssh in ((ports, None), (None, {"proxy": proxy, "direct": direct}), (ports, {"proxy": proxy})):
        assert instance(raw(world, runtime=runtime, ssh=ssh), provider="runpod").address == wanted
    only_proxy = raw(world, runtime=None, ssh={"proxy": proxy, "direct": None})
    assert instance(only_proxy, provider="runpod").address == {}, "the proxy carries no files"


def test_an_exited_pod_keeps_its_old_ports_and_nobody_knocks_there(world: RunPodWorld) -> None:
    made = world.rent()
    world.wait(lambda: world.provider.get(made.instance_id).state is InstanceState.RUNNING, 60)
    world.cloud.preempt(made.instance_id)
    found = world.provider.get(made.instance_id)
    told = world.rest.call("GET", f"/v2/pods/{made.instance_id}", timeout_s=5)
    assert told["runtime"]["ports"], "it does still show them"
    assert (found.state, found.address, found.usd_per_hour) == (InstanceState.STOPPED, {}, 0)


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("PROVISIONING", InstanceState.STARTING),
        ("STARTING", InstanceState.STARTING),
        ("RUNNING", InstanceState.RUNNING),
        ("EXITED", InstanceState.STOPPED),
        ("ERROR", InstanceState.STOPPED),
        ("TERMINATED", InstanceState.STOPPED),
        ("MIGRATING", InstanceState.UNKNOWN),
        ("running", InstanceState.UNKNOWN),
        (None, InstanceState.UNKNOWN),
        (7, InstanceState.UNKNOWN),
    ],
)
def test_every_word_for_a_state_is_ours_or_unknown(world: RunPodWorld, status: Any, state: InstanceState) -> None:
    assert state_of(raw(world, status=status)) is state


def test_a_broken_container_is_stopped_and_still_there(world: RunPodWorld) -> None:
    made = world.rent()
    world.cloud.pods[made.instance_id].is_broken = True
    world.clock.leap(60)
    found = world.provider.get(made.instance_id)
    assert (found.state, found.says) == (InstanceState.STOPPED, "ERROR")


def test_what_nothing_depends_on_may_be_odd(world: RunPodWorld) -> None:
    odd = {"cost": "cheap", "disk": None, "createdAt": "yesterday", "gpu": [], "ssh": "none", "name": None, "new": {}}
    found = instance(raw(world, **odd), provider="runpod")
    assert (found.usd_per_hour, found.created_at, found.token) == (0, None, "")


@pytest.mark.parametrize("fault", ANYTHING_BUT_AN_ANSWER, ids=str)
def test_no_answer_to_a_read_is_proof_of_absence(world: RunPodWorld, fault: Fault) -> None:
    made = world.rent()
    parts = parse_token(made.token)
    assert parts
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: world.provider.get(made.instance_id, timeout_s=0.2),
        "list": lambda: world.provider.find(namespace=parts.namespace, timeout_s=0.2),
    }
    for name, call in calls.items():
        world.cloud.faults.on(name, fault)
        with pytest.raises(ProviderUnavailable) as caught:
            call()
        assert isinstance(caught.value, RateLimited) is (fault.status == 429)
        assert "Traceback" not in caught.value.message
        assert len(world.cloud.calls(name)) == 1, "asking again is for others to decide"
    assert world.billing() == [made.instance_id]


@pytest.mark.parametrize("fault", [*faults.EVERY_KIND, faults.UNAVAILABLE], ids=str)
def test_an_unclear_termination_is_asked_for_again(world: RunPodWorld, fault: Fault) -> None:
    made = world.rent()
    world.cloud.faults.on("delete", fault)
    try:
        world.provider.terminate(made.instance_id, timeout_s=0.2)
    except ProviderUnavailable:
        pass
    else:
        assert fault.status == 200, "accepted, whatever it was"
    while world.billing():
        world.provider.terminate(made.instance_id)
    for _ in range(2):
        with pytest.raises(InstanceNotFound):
            world.provider.terminate(made.instance_id)


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"Retry-After": "12"}, 12),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30),
        ({"Retry-After": "soon"}, None),
        ({"RateLimit": '"minute";r=0;t=12, "hour";r=2800;t=1812'}, 12),
        ({"RateLimit": '"minute";r=0;t=12, "hour";r=0;t=1812, "day";r=9;t=45012'}, 1812),
        ({"RateLimit": '"minute";r=3;t=12'}, None),
        ({}, None),
    ],
    ids=str,
)
def test_how_long_to_wait_is_read_where_it_stands(headers: dict[str, str], wait_s: float | None) -> None:
    assert _retry_after_s(headers) == wait_s


def test_a_refusal_for_asking_too_often_says_how_long_to_wait(world: RunPodWorld) -> None:
    world.cloud.faults.on("get", Fault("429", 429, headers={"RateLimit": '"minute";r=0;t=12'}))
    with pytest.raises(RateLimited, match="rate limit exceeded for the minute window") as caught:
        world.provider.get(InstanceId("abc"))
    assert caught.value.retry_after_s == 12


def test_refusals_of_a_read_have_their_names(world: RunPodWorld) -> None:
    for answer, error in (
        (problem(401, "invalid bearer token"), AuthRejected),
        (problem(403, "access denied"), AuthRejected),
        (problem(409, "Pod belongs to a cluster"), ProviderRejected),
        (problem(410, "gone"), ProviderRejected),
        (problem(404, "pod not found"), InstanceNotFound),
    ):
        world.cloud.faults.on("get", Fault("refusal", answer.status, answer.body, answer.content_type))
        with pytest.raises(TuneError) as caught:
            world.provider.get(InstanceId("abc"))
        assert type(caught.value) is error


def test_a_list_that_is_not_there_is_not_an_instance_that_is_gone(world: RunPodWorld) -> None:
    world.cloud.faults.on("list", Fault("no such route", 404, problem(404, "route not found").body))
    with pytest.raises(ProviderRejected):
        world.provider.find(namespace=new_namespace())


def test_another_pods_answer_is_not_believed(world: RunPodWorld) -> None:
    made, other = world.rent(), world.rent()
    told = json.dumps({"id": other.instance_id, "status": "TERMINATED"}).encode()
    world.cloud.faults.on("get", Fault("mixed up", 200, told))
    with pytest.raises(ProviderUnavailable, match="instead"):
        world.provider.get(made.instance_id)


@pytest.mark.parametrize("page_size", [0, 1, 2, 3, 100])
def test_all_pages_are_read_in_either_form(world: RunPodWorld, page_size: int) -> None:
    namespace = new_namespace()
    mine = {world.rent(new_token_in(namespace)).instance_id for _ in range(3)}
    world.rent()
    for name in ("tune-demo", "", "tune", f"tune-{namespace}"):
        world.cloud.rent_by_hand(name)
    world.cloud.page_size = page_size
    assert {i.instance_id for i in world.provider.find(namespace=namespace)} == mine


@pytest.mark.parametrize(
    "pages",
    [
        [{"pods": [], "pagination": {"hasNextPage": True, "nextCursor": None}}],
        [{"pods": [], "pagination": {"hasNextPage": True, "nextCursor": "c1"}}] * 3,
        [{"pods": [], "pagination": {"hasNextPage": True, "nextCursor": "c1"}}, {"pods": None}],
        [{"pods": [{"name": "without an id"}]}],
        [{"pods": [None]}],
        [{"pods": [{"id": 7}]}],
    ],
    ids=["nowhere to go on", "in circles", "half a list", "no id", "null", "a number"],
)
def test_a_part_of_a_list_is_an_error(world: RunPodWorld, pages: list[Any]) -> None:
    for n, page in enumerate(pages, start=1):
        world.cloud.faults.on("list", Fault("page", 200, json.dumps(page).encode()), nth=n)
    with pytest.raises(ProviderUnavailable):
        world.provider.find(namespace=new_namespace())


def test_a_list_without_an_end_ends(world: RunPodWorld) -> None:
    class Endless(Rest):
        def call(self, method, path, *, timeout_s, query=None, body=None):  # type: ignore[no-untyped-def]
            world.clock.leap(1)
            cursor = int((query or {}).get("cursor", "0"))
            return {"pods": [], "pagination": {"hasNextPage": True, "nextCursor": str(cursor + 1)}}

    provider = RunPodProvider(Endless(world.cloud.url, "k", world.clock))
    with pytest.raises(ProviderUnavailable, match="did not end"):
        provider.find(namespace=new_namespace(), timeout_s=30)


def test_ids_that_were_never_given_out_are_not_asked_about(world: RunPodWorld) -> None:
    for name in ("../account/ssh-keys", "..", "", "a b", "a?x=1", "a/action", "ü", "x" * 65):
        with pytest.raises(InstanceNotFound):
            world.provider.get(InstanceId(name))
        with pytest.raises(InstanceNotFound):
            world.provider.terminate(InstanceId(name))
    assert world.cloud.log == []


def test_a_netrc_entry_does_not_replace_the_key(world: RunPodWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = Path.home() / ".netrc"
    netrc.write_text("machine 127.0.0.1 login me password somebody-elses\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    world.provider.find(namespace=new_namespace())
    assert world.cloud.log[0].by == "account"


def test_it_says_who_asks(world: RunPodWorld) -> None:
    world.provider.offers(Requirements())
    assert {call.headers["user-agent"].split("/")[0] for call in world.cloud.log} == {"spot-tune"}


def test_an_answer_that_never_ends_is_given_up(world: RunPodWorld) -> None:
    huge = Fault("huge", 200, b" " * (33 * 2**20))
    world.cloud.faults.on("get", huge)
    with pytest.raises(ProviderUnavailable, match="too long"):
        world.provider.get(InstanceId("abc"))


def test_a_certificate_that_is_not_trusted_means_that_nothing_was_sent() -> None:
    import requests

    refused = requests.exceptions.SSLError("x")
    refused.__cause__ = ssl.SSLCertVerificationError("self-signed certificate")
    assert never_left(refused)
    assert "TLS" in in_words(refused)
    assert not never_left(requests.exceptions.SSLError("EOF in the middle"))


def test_a_trusted_connection_is_insisted_on(tmp_path: Path) -> None:
    """A server with a certificate of its own making is not spoken to, whatever the environment says of it."""
    with pytest.raises(Unheard, match="TLS") as caught, _https(tmp_path) as (url, asked):
        Rest(url, "canary-key-of-the-account").call("GET", "/v2/pods", timeout_s=5)
    assert caught.value.was_sent is False
    assert asked == []


def test_the_key_is_in_no_error_and_in_no_log(world: RunPodWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    key = world.cloud.account_key
    made = world.rent()
    echo = Fault("echo", 500, json.dumps({"detail": f"Authorization: Bearer {key}"}).encode())
    refusal = Fault("echo", 422, json.dumps({"detail": "no", "errors": [f"header {key}"]}).encode())
    said = [repr(world.rest), repr(world.provider), str(world.rest)]
    for call, act in (
        ("get", lambda: world.provider.get(made.instance_id, timeout_s=0.2)),
        ("create", lambda: world.provider.create(world.cheapest(), world.spec, token=new_token(), timeout_s=1)),
        ("delete", lambda: world.provider.terminate(made.instance_id, timeout_s=0.2)),
        ("graphql", lambda: world.account.balance_usd(timeout_s=0.2)),
    ):
        for fault in (echo, refusal, faults.HTML_502, faults.RESET, faults.EMPTY, faults.RATE_LIMITED):
            world.cloud.faults.on(call, fault)
            try:
                act()
            except ProviderError as e:
                said.append("".join(traceback.format_exception(e)))
                chain = [e.__cause__, e.__context__]
                assert not any(hasattr(link, "request") for link in chain if link), "it would hold the key"
    assert len(said) > 15
    assert key not in "".join(said) + caplog.text
    assert not any(key in logged.path + str(logged.query) for logged in world.cloud.log)


def new_token_in(namespace: Namespace) -> Any:
    from datetime import UTC, datetime

    from orchestrator.types import new_run_id, token_for

    return token_for(namespace, new_run_id(datetime.now(UTC)), 1)


def _https(folder: Path) -> Any:
    import contextlib
    import datetime as dt
    import http.server
    import ipaddress
    import threading

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    built = built.serial_number(1).not_valid_before(now - dt.timedelta(1)).not_valid_after(now + dt.timedelta(1))
    alt = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    cert = built.add_extension(alt, critical=False).sign(key, hashes.SHA256())
    pem = folder / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem.write_bytes(private + cert.public_bytes(serialization.Encoding.PEM))
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """The caller does not trust us: that is what is tested."""

    @contextlib.contextmanager
    def running() -> Iterator[tuple[str, list[str]]]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        server = Server(("127.0.0.1", 0), Handler)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield f"https://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            server.server_close()

    return running()
