"""Vast.ai's key, where it is found and where it is never seen; its SDK, and what is made of it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from orchestrator.errors import CredentialsMissing, ProviderRejected, TuneError, UsageError
from orchestrator.providers import registry
from orchestrator.providers.registry import ProviderSettings
from orchestrator.providers.vastai import OPTIONS, build
from orchestrator.providers.vastai.api import Api, sdk
from orchestrator.providers.vastai.credentials import base_url
from orchestrator.types import InstanceId, Requirements
from tests.cloud.faults import Fault
from tests.cloud.vast import ACCOUNT_KEY
from tests.support.vast import SPEC, TOKEN, VastWorld

KEY = "canary-vast-0123456789abcdef"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("VAST_API_KEY", "XDG_CONFIG_HOME", "TUNE_VASTAI_API_URL", "VAST_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def world() -> Iterator[VastWorld]:
    made = VastWorld()
    yield made
    made.close()


def source(tmp_path: Path) -> str:
    return build(ProviderSettings(tmp_path)).key_source


def put(path: Path, text: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    return path


def test_the_key_is_looked_for_where_vasts_own_tools_do(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    legacy = put(home / ".vast_api_key", KEY.encode())
    assert source(home) == str(legacy)
    usual = put(home / ".config" / "vastai" / "vast_api_key", KEY.encode())
    assert source(home) == str(usual)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))
    own = put(home / "xdg" / "vastai" / "vast_api_key", KEY.encode())
    assert source(home) == str(own)
    monkeypatch.setenv("VAST_API_KEY", KEY)
    assert source(home) == "$VAST_API_KEY"


@pytest.mark.parametrize("empty", ["", " ", "\n", "\ufeff\r\n"])
def test_an_empty_variable_does_not_hide_a_file(home: Path, monkeypatch: pytest.MonkeyPatch, empty: str) -> None:
    monkeypatch.setenv("VAST_API_KEY", empty)
    put(home / ".config" / "vastai" / "vast_api_key", empty.encode())
    file = put(home / ".vast_api_key", KEY.encode())
    assert source(home) == str(file)


@pytest.mark.parametrize("text", [f"{KEY}\r\n", f"\ufeff{KEY}", f"  {KEY}\n\n"])
def test_what_editors_add_to_a_key_is_not_sent(
    home: Path, monkeypatch: pytest.MonkeyPatch, world: VastWorld, text: str
) -> None:
    put(home / ".vast_api_key", text.replace(KEY, ACCOUNT_KEY).encode())
    monkeypatch.setenv("TUNE_VASTAI_API_URL", f"{world.cloud.url}/")
    account = build(ProviderSettings(home)).account
    assert account is not None
    assert account.balance_usd() == 25


def test_without_a_key_every_place_is_named(home: Path) -> None:
    with pytest.raises(CredentialsMissing) as caught:
        build(ProviderSettings(home))
    for place in ("$VAST_API_KEY", f"{home}/.config/vastai/vast_api_key", f"{home}/.vast_api_key"):
        assert place in caught.value.message
    (row,) = [r for r in registry.describe(settings=ProviderSettings(home), plugins=()) if r.name == "vastai"]
    assert "no Vast.ai key" in row.reason


def test_what_is_no_key_is_not_quoted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAST_API_KEY", "canary secret\nwith lines")
    with pytest.raises(CredentialsMissing, match=r"not a Vast\.ai key") as caught:
        build(ProviderSettings(home))
    assert "canary" not in caught.value.message
    monkeypatch.delenv("VAST_API_KEY")
    put(home / ".vast_api_key", b"canary\xff\xfe")
    with pytest.raises(CredentialsMissing, match="cannot be read") as caught:
        build(ProviderSettings(home))
    assert "canary" not in str(caught.value)


def test_the_address_comes_from_the_environment_then_from_the_config() -> None:
    assert base_url({}, {}) == "https://console.vast.ai"
    assert base_url({}, {"api_url": "https://gate.example/"}) == "https://gate.example"
    assert base_url({}, {"api_url": "https://gate.example/api/v0/"}) == "https://gate.example"
    assert (
        base_url({"TUNE_VASTAI_API_URL": "http://127.0.0.1:1"}, {"api_url": "https://gate.example"})
        == "http://127.0.0.1:1"
    )
    for wrong in ("gate.example", "ftp://gate.example", "https://user:canary@gate.example", "https://gate.example?x=1"):
        with pytest.raises(UsageError) as caught:
            base_url({}, {"api_url": wrong})
        assert "canary" not in str(caught.value)
    assert set(OPTIONS) == {"api_url", "min_reliability"}


@pytest.mark.parametrize("version", ["0.5.0", "0.2.5", ""])
def test_an_sdk_from_before_1_0_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    def of(_name: str) -> str:
        if not version:
            raise metadata.PackageNotFoundError
        return version

    monkeypatch.setattr(metadata, "version", of)
    with pytest.raises(ProviderRejected, match=r"too old|not installed") as caught:
        build(ProviderSettings(home))
    assert "pip install" in caught.value.hint


def test_the_sdk_is_not_loaded_before_it_is_needed(home: Path) -> None:
    script = (
        "import sys, logging; from pathlib import Path\n"
        "from orchestrator.providers.registry import ProviderSettings\n"
        "from orchestrator.providers.vastai import build\n"
        "build(ProviderSettings(Path('.')))\n"
        "assert not {'vastai', 'requests'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "VAST_API_KEY": KEY}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_loading_the_sdk_leaves_logging_as_it_was() -> None:
    script = (
        "import logging; from orchestrator.providers.vastai.api import sdk; sdk()\n"
        "for name in ('', 'vastai'):\n"
        "    log = logging.getLogger(name)\n"
        "    print(log.handlers, log.propagate, log.level)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[] True 30", "[] True 0"]


def test_the_sdk_still_sends_each_request_once_when_asked_to(world: VastWorld) -> None:
    """The one promise of the SDK's that money depends on."""
    client = sdk().VastAI(api_key=KEY, server_url=world.cloud.url, retry=1).client
    for status in (429, 502, 503, 504):
        world.cloud.faults.on("create", Fault(str(status), status))
        client.put("/asks/1/", json_data={})
    assert len(world.cloud.calls("create")) == 4


def test_the_key_is_in_no_text_whatever_goes_wrong(world: VastWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    offer = world.offer()
    rented = world.rent().instance_id
    echo = f'{{"success": false, "error": "oops", "msg": "key {ACCOUNT_KEY} at line 1"}}'.encode()
    said = [repr(world.api), repr(world.provider), repr(world.account)]
    for status in (200, 400, 401, 404, 429, 500):
        world.cloud.faults.from_now_on("*", Fault(str(status), status, echo))
        for ask in (
            lambda: world.provider.offers(Requirements()),
            lambda: world.provider.create(offer, SPEC, token=TOKEN),
            lambda: world.provider.get(rented),
            lambda: world.provider.find(namespace="abc123"),  # type: ignore[arg-type]
            lambda: world.provider.terminate(rented),
        ):
            with pytest.raises(TuneError) as caught:
                ask()
            said += [*traceback.format_exception(caught.value), caught.value.hint]
        world.cloud.faults.clear()
    assert ACCOUNT_KEY not in "\n".join([*said, caplog.text])
    assert all(ACCOUNT_KEY not in f"{call.path}{call.query}" for call in world.cloud.log)


def test_a_certificate_that_is_not_trusted_is_refused(tmp_path: Path) -> None:
    import http.server
    import ssl
    import threading

    from tests.support.tls import self_signed

    certificate = self_signed(tmp_path)
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        from orchestrator.providers.vastai.provider import VastProvider

        provider = VastProvider(Api(f"https://127.0.0.1:{server.server_port}", KEY))
        with pytest.raises(TuneError, match="TLS"):
            provider.get(InstanceId("5"))
    finally:
        server.shutdown()
        server.server_close()
