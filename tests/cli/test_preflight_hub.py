"""What the hub says of models, data and where to publish, found out before a cent is spent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.findings import Finding
from orchestrator.preflight_hub import Hub, hub_token, is_offline
from orchestrator.recipe.needs import HubRepo
from tests.cli.hub import FakeHub, running_hub

GOOD = "hf_good"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with running_hub() as running:
        running.tokens[GOOD] = who()
        yield running


def who(role: str = "write", orgs: tuple[dict[str, str], ...] = (), **token: Any) -> dict[str, Any]:
    return {"name": "me", "orgs": list(orgs), "auth": {"accessToken": {"role": role, **token}}}


def ask(hub: FakeHub, name: str, *, token: str = "", revision: str = "", kind: str = "model") -> Finding:
    return Hub({"HF_ENDPOINT": hub.url + "/", "HF_TOKEN": token}).repo(HubRepo(kind, name, revision, "base_model"))


def publish(hub: FakeHub, target: str, *, token: str = GOOD) -> Finding:
    return Hub({"HF_ENDPOINT": hub.url, "HF_TOKEN": token}).publish_target(target)


@pytest.mark.parametrize(("name", "kind"), [("me/open", "model"), ("me/rows", "dataset")])
def test_what_is_open_needs_no_token(hub: FakeHub, name: str, kind: str) -> None:
    assert ask(hub, name, kind=kind).status == "ok"
    assert all(not with_token for _, with_token in hub.asked)


def test_each_refusal_has_a_message_and_an_exit_code_of_its_own(hub: FakeHub) -> None:
    """No token, no licence, no such model, no such revision: four things that a person mends in four ways."""
    found = [
        ask(hub, "big/gated"),
        ask(hub, "big/gated", token=GOOD),
        ask(hub, "me/gone", token=GOOD),
        ask(hub, "me/open", revision="v2"),
    ]
    assert [f.status for f in found] == ["fail"] * 4
    assert [f.exit_code for f in found] == [11, 11, 10, 10]
    for finding, says in zip(found, ("is gated, and there is no HF_TOKEN", "licence has not been accepted",
                                     "no model me/gone", "no revision 'v2'"), strict=True):  # fmt: skip
        assert says in finding.text
        assert finding.text.startswith("base_model: ")
        assert finding.hint
    assert len({finding.text for finding in found}) == 4
    assert f"{hub.url}/big/gated" in found[1].hint


def test_without_a_token_the_hub_does_not_say_whether_it_exists(hub: FakeHub) -> None:
    found = ask(hub, "me/private")
    assert (found.status, found.exit_code) == ("fail", 11)
    assert "private, gated or does not exist" in found.text
    assert ask(hub, "me/private", token=GOOD).status == "ok"


def test_a_token_that_is_refused_is_named_by_its_source_and_not_by_its_value(hub: FakeHub) -> None:
    found = ask(hub, "me/open", token="hf_canary_of_this_test")
    assert (found.status, found.exit_code) == ("fail", 11)
    assert "$HF_TOKEN" in found.text
    assert "canary" not in found.text + found.hint


def test_a_licence_that_was_accepted_is_enough(hub: FakeHub) -> None:
    hub.accepted.add(GOOD)
    assert ask(hub, "big/gated", token=GOOD).status == "ok"
    assert ask(hub, "me/open", revision="v1").status == "ok"


def test_a_mirror_that_does_not_know_every_question_is_believed(hub: FakeHub) -> None:
    hub.knows_auth_check = False
    assert ask(hub, "me/open").status == "ok"


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_hub_in_trouble_is_a_warning_and_no_refusal(hub: FakeHub, status: int) -> None:
    hub.status = status
    assert (ask(hub, "me/open").status, publish(hub, "me/x").status) == ("warn", "warn")


def test_a_hub_that_does_not_answer_is_a_warning() -> None:
    silent = FakeHub(url="http://127.0.0.1:9")
    found = ask(silent, "me/open", token=GOOD)
    assert found.status == "warn"
    assert "does not answer" in found.text
    assert publish(silent, "me/x").status == "warn"


def test_a_netrc_never_replaces_the_token(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login other password canary\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert ask(hub, "me/private", token=GOOD).status == "ok"


@pytest.mark.parametrize(
    ("token", "target", "says"),
    [
        (who("read"), "me/out", "may only read"),
        (who(), "acme/out", "no member of acme"),
        (who(orgs=({"name": "acme", "roleInOrg": "read"},)), "acme/out", "may only read in acme"),
        (who("fineGrained", fineGrained={"scoped": [{"entity": {"name": "me/other"}, "permissions": ["repo.write"]}]}), "me/out",
         "has no right to write"),
        (who("fineGrained", fineGrained={"scoped": [{"entity": {"name": "me"}, "permissions": ["repo.content.read"]}]}), "me/out",
         "has no right to write"),
        (who(), "me/rows", "exists already, as a data set"),
    ],
)  # fmt: skip
def test_a_target_that_cannot_be_written_is_refused_before_launch(
    hub: FakeHub, token: dict[str, Any], target: str, says: str
) -> None:
    hub.tokens["hf_t"] = token
    found = publish(hub, target, token="hf_t")
    assert (found.status, found.exit_code) == ("fail", 11)
    assert says in found.text
    assert found.hint


@pytest.mark.parametrize(
    ("token", "target"),
    [
        (who(), "me/new"),
        (who(), "me/open"),
        (who(orgs=({"name": "acme", "roleInOrg": "contributor"},)), "acme/out"),
        (who("fineGrained", fineGrained={"scoped": [{"entity": {"name": "me"}, "permissions": ["repo.write"]}]}), "me/out"),
        (who("fineGrained", fineGrained={"scoped": [{"entity": {"name": "me/out"}, "permissions": ["repo.write"]}]}), "me/out"),
    ],
)  # fmt: skip
def test_a_target_that_can_be_written_is_in_order(hub: FakeHub, token: dict[str, Any], target: str) -> None:
    hub.tokens["hf_t"] = token
    assert publish(hub, target, token="hf_t").status == "ok"


def test_publishing_needs_a_token(hub: FakeHub) -> None:
    for token, says in (("", "there is no HF_TOKEN"), ("hf_unknown", "refuses the token")):
        found = publish(hub, "me/out", token=token)
        assert (found.status, found.exit_code) == ("fail", 11)
        assert says in found.text


class TestWhereTheTokenComesFrom:
    def test_an_empty_variable_does_not_hide_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_bytes(b"\xef\xbb\xbfhf_file\r\n")
        found = hub_token({"HF_TOKEN": " ", "HF_HOME": str(tmp_path)})
        assert found is not None and (found.value, found.source) == ("hf_file", str(tmp_path / "token"))

    def test_variables_win_and_line_ends_are_no_part_of_a_token(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("hf_file")
        found = hub_token({"HF_TOKEN": "hf_variable\r\n", "HF_HOME": str(tmp_path)})
        assert found is not None and (found.value, found.source) == ("hf_variable", "$HF_TOKEN")

    def test_the_usual_file_is_read_and_none_is_no_error(self, tmp_path: Path) -> None:
        assert hub_token({"HOME": str(tmp_path)}) is None
        assert hub_token({}) is None
        (tmp_path / ".cache/huggingface").mkdir(parents=True)
        (tmp_path / ".cache/huggingface/token").write_text("hf_usual\n")
        found = hub_token({"HOME": str(tmp_path)})
        assert found is not None and found.value == "hf_usual"

    @pytest.mark.parametrize(("value", "means"), [("1", True), ("ON", True), ("0", False), ("", False)])
    def test_offline_is_what_hugging_face_s_libraries_take_for_it(self, value: str, means: bool) -> None:
        assert is_offline({"HF_HUB_OFFLINE": value}) is means
