"""`tune doctor` and `tune providers` on accounts: which key, whether it is taken, what is left, and what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import accounts, app
from orchestrator.findings import Finding
from tests.cli import stand
from tests.cli.hub import running_hub

OFFER = {"offer_id": "a-1", "usd": "0.30"}


class Office:
    """One user's settings, and the doctor."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self._capsys = root, capsys
        self.config = root / "config.toml"
        self.configure("stand-a")
        for name in stand.NAMES:
            self.shelf(name, balance="12.5")

    def configure(self, provider: str) -> None:
        tables = "".join(f"[providers.{name}]\nfolder = {json.dumps(str(self.root))}\n" for name in stand.NAMES)
        self.config.write_text(
            f"storage = {json.dumps(str(self.root / 'bucket'))}\nstate_dir = {json.dumps(str(self.root / 'state'))}\n"
            f"provider = {json.dumps(provider)}\n{tables}"
        )

    def shelf(self, name: str, **shelf: Any) -> None:
        (self.root / f"{name}.json").write_text(json.dumps(shelf))

    def ask(self, *args: str) -> tuple[int, dict[str, Any]]:
        code = app.run(["--json", "--config", str(self.config), *args])
        return code, json.loads(self._capsys.readouterr().out)

    def doctor(self, what: str) -> tuple[int, list[dict[str, str]]]:
        code, answer = self.ask("doctor")
        return code, [check for check in answer["checks"] if check["what"] == what]


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Office:
    monkeypatch.syspath_prepend(str(stand.plugged(tmp_path)))
    return Office(tmp_path, capsys)


def test_each_account_says_whether_its_key_works_and_what_is_left(office: Office) -> None:
    code, found = office.doctor("account")
    assert code == 0
    assert [(f["status"], f["text"]) for f in found] == [
        ("ok", "stand-a: its key works; $12.50 left"), ("ok", "stand-b: its key works; $12.50 left"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("shelf", "status", "says", "exits"),
    [
        ({"balance_trouble": "AuthRejected"}, "fail", "says AuthRejected", 11),
        ({"balance_trouble": "ProviderUnavailable"}, "warn", "does not answer", 0),
        ({}, "note", "does not tell the balance", 0),
        ({"balance": "0"}, "warn", "$0.00 left", 0),
    ],
)
def test_what_is_wrong_with_an_account_is_told_with_what_to_do(
    office: Office, shelf: dict[str, Any], status: str, says: str, exits: int
) -> None:
    office.shelf("stand-a", **shelf)
    code, found = office.doctor("account")
    assert (code, found[0]["status"]) == (exits, status)
    assert says in found[0]["text"]
    assert bool(found[0]["hint"]) == (status in ("fail", "warn"))


def test_a_refused_key_of_a_marketplace_that_is_not_the_default_is_no_failure(office: Office) -> None:
    office.shelf("stand-b", balance_trouble="AuthRejected")
    code, found = office.doctor("account")
    assert (code, [f["status"] for f in found]) == (0, ["ok", "warn"])


def test_a_default_of_several_is_checked_one_by_one(office: Office) -> None:
    office.configure("stand-b, stand-a")
    office.shelf("stand-a", no_key=True)
    code, found = office.doctor("provider")
    assert code == 11
    assert [f["status"] for f in found if "stand-" in f["text"]] == ["fail", "ok"]
    assert any("stand-a (the default): no key of stand-a" in f["text"] for f in found)
    office.configure("any")
    assert office.doctor("provider")[0] == 0


def test_a_folder_of_keys_that_others_may_read_is_pointed_out(office: Office) -> None:
    keys = office.root / "state" / "ssh"
    keys.mkdir(parents=True, mode=0o755)
    _, found = office.doctor("state")
    assert [f["status"] for f in found] == ["warn", "ok"]
    assert "chmod 700" in found[0]["hint"]
    keys.chmod(0o700)
    assert [f["status"] for f in office.doctor("state")[1]] == ["ok"]


def test_the_hub_s_token_is_named_by_its_source_and_owner(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        assert office.doctor("hub")[1][0]["status"] == "note", "no token is no fault"
        monkeypatch.setenv("HF_TOKEN", "hf_canary_of_this_test")
        code, found = office.doctor("hub")
        assert (code, found[0]["status"]) == (11, "fail")
        assert "$HF_TOKEN" in found[0]["text"] and "canary" not in str(found)
        hub.tokens["hf_canary_of_this_test"] = {"name": "me", "auth": {"accessToken": {"role": "read"}}}
        code, found = office.doctor("hub")
        assert (code, found[0]["text"]) == (0, "token from $HF_TOKEN: me, read")
        hub.status = 503
        assert office.doctor("hub")[1][0]["status"] == "warn"


def test_offline_the_hub_is_not_asked(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert "not asked" in office.doctor("hub")[1][0]["text"]


@pytest.mark.parametrize(
    ("version", "status"), [("1.9.1", "ok"), ("1.0.0", "ok"), ("0.2.5", "warn"), ("0.5rc1", "warn"), ("2.0.0", "warn")]
)
def test_an_sdk_of_another_time_is_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, status: str
) -> None:
    info = tmp_path / f"vastai-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vastai\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found: list[Finding] = list(accounts.sdks(None))  # type: ignore[arg-type]
    assert found[0].status == status
    assert version in found[0].text
    assert (found[0].hint != "") == (status == "warn")


def test_providers_say_why_they_sell_nothing_interruptible(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    office.shelf("stand-a", no_spot_reason="Stand A sells no interruptible capacity")
    rows = {row["name"]: row for row in office.ask("providers")[1]["providers"]}
    assert rows["stand-a"]["capabilities"]["spot"] is False
    assert rows["stand-b"]["capabilities"]["spot"] is True
    assert app.run(["--config", str(office.config), "providers"]) == 0
    shown = capsys.readouterr().out
    assert "no spot: Stand A sells no interruptible capacity" in shown
    assert "stand-a *" in shown
