"""Whether the machine that answers is the one that was rented; and the key that we show it."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.errors import RemoteError
from orchestrator.remote import sshkeys, sshpins
from orchestrator.remote.sshpins import HostKey, Pin
from tests.remote.conftest import RUN, TOKEN, Desk, tune_home
from tests.remote.sshd import Sshd, host_key


def pin_of(desk: Desk, token: str = TOKEN) -> Path:
    return desk.state / "ssh" / RUN / f"{token}.pin"


def shown(sshd: Sshd) -> HostKey:
    return HostKey.parse(sshd.host_keys[0].export_public_key().decode())


def test_the_first_host_key_is_kept_and_said_to_be_unverified(desk: Desk, sshd: Sshd) -> None:
    remote = desk.reach(sshd.port)
    assert pin_of(desk).read_text() == f"{shown(sshd)}\n"
    assert pin_of(desk).stat().st_mode & 0o777 == 0o600
    assert remote.is_verified is None
    assert "not" not in desk.reach(sshd.port).run(["true"]).stdout.decode(), "the second time it is known"
    assert "nothing vouches for it" in remote.trust


def test_an_instance_vouches_for_its_host_key(desk: Desk, sshd: Sshd) -> None:
    desk.vouch(sshd)
    remote = desk.reach(sshd.port)
    assert remote.is_verified is True
    assert "verified" in remote.trust


def test_one_that_boots_after_we_came_is_verified_once_it_has_booted(desk: Desk) -> None:
    sshd = desk.host(booted=False)
    remote = desk.reach(sshd.port)
    with pytest.raises(RemoteError, match="has not booted yet"):
        remote.put("agent.json", b"{}")
    tune_home(sshd).mkdir(parents=True)
    (sshd.home / ".tune").mkdir()
    (sshd.home / ".tune" / TOKEN).write_text(str(tune_home(sshd)))
    desk.vouch(sshd)
    remote.put("agent.json", b"{}")
    assert remote.is_verified is True


def test_a_start_command_that_is_still_at_it_is_looked_at_again_once(desk: Desk, sshd: Sshd) -> None:
    remote = desk.reach(sshd.port)
    desk.vouch(sshd)
    assert remote.is_verified is None
    remote.put("agent.json", b"{}")
    assert remote.is_verified is True
    before = len(sshd.commands)
    remote.put("agent.json", b"{}")
    assert len(sshd.commands) == before


def test_another_host_key_is_refused_and_told_nothing(desk: Desk, sshd: Sshd) -> None:
    desk.reach(sshd.port).close()
    stranger = desk.host(booted=False)
    stranger.authorized = ""  # lets in whoever comes
    with pytest.raises(RemoteError, match="host key changed") as caught:
        desk.reach(stranger.port)
    assert shown(sshd).fingerprint in caught.value.message
    assert str(pin_of(desk)) in (caught.value.hint or "")
    assert len(stranger.commands) == 1
    assert sshpins.proof_secret(desk.state, RUN, TOKEN) not in stranger.commands[0]
    assert pin_of(desk).read_text() == f"{shown(sshd)}\n"
    desk.reach(sshd.port)


def test_another_host_key_is_told_even_where_we_are_not_let_in(desk: Desk, sshd: Sshd) -> None:
    desk.reach(sshd.port).close()
    stranger = desk.host()
    stranger.refusals = 1
    with pytest.raises(RemoteError, match="host key changed"):
        desk.reach(stranger.port)


def test_another_host_key_counts_if_the_instance_vouches_for_it(desk: Desk, sshd: Sshd) -> None:
    """A container that is started anew may have made new ones."""
    desk.reach(sshd.port).close()
    sshd.host_keys = [host_key()]
    desk.vouch(sshd)
    assert desk.reach(sshd.port).is_verified is True
    assert pin_of(desk).read_text() == f"{shown(sshd)}\n"


@pytest.mark.parametrize("secret", ["", "a guess", "of another attempt"])
def test_nobody_can_vouch_for_a_key_without_the_secret(desk: Desk, sshd: Sshd, secret: str) -> None:
    desk.vouch(sshd)
    proofs = (tune_home(sshd) / "host-keys").read_text()
    desk.reach(sshd.port).close()
    stranger = desk.host()
    stranger.authorized = ""
    if secret == "of another attempt":
        secret = sshpins.proof_secret(desk.state, RUN, TOKEN.replace("a1", "a2"))
    if secret:
        desk.vouch(stranger, secret=secret)
    else:
        (tune_home(stranger) / "host-keys").write_text(proofs)
    with pytest.raises(RemoteError, match="host key changed"):
        desk.reach(stranger.port)


def test_who_turns_us_away_is_not_kept(desk: Desk, sshd: Sshd) -> None:
    """It may be the last tenant of this address, on its way out."""
    stranger = desk.host()
    stranger.refusals = 1000
    with pytest.raises(RemoteError, match="the key is refused"):
        desk.reach(stranger.port)
    assert not pin_of(desk).exists()
    desk.reach(sshd.port)


def test_an_address_that_is_used_again_has_a_host_key_per_attempt(desk: Desk) -> None:
    """Seen in paramiko/paramiko#1045 and Dallinger/Dallinger#8739: a global list refuses the second tenant."""
    sshd = desk.host()
    desk.reach(sshd.port).close()
    sshd.host_keys = [host_key()]
    second = TOKEN.replace("a1", "a2")
    desk.reach(sshd.port, token=second)
    assert pin_of(desk).read_text() != pin_of(desk, second).read_text()
    assert not (Path(os.environ["HOME"]) / ".ssh").exists()


def test_a_proxy_may_have_a_host_key_of_its_own(desk: Desk, sshd: Sshd) -> None:
    desk.reach(sshd.port).close()
    proxy = desk.host()
    desk.reach(proxy=proxy.port).close()
    desk.reach(sshd.port).close()
    proxy.host_keys = [host_key()]
    with pytest.raises(RemoteError, match="host key changed"):
        desk.reach(proxy=proxy.port)


def test_a_host_with_several_keys_is_asked_for_the_one_that_is_known(desk: Desk, sshd: Sshd) -> None:
    for kind in ("ecdsa-sha2-nistp256", "ssh-rsa"):
        pin_of(desk).unlink(missing_ok=True)
        sshd.host_keys = [host_key(kind)]
        desk.reach(sshd.port).close()
        sshd.host_keys = [*sshd.host_keys, host_key("ssh-ed25519")]
        desk.reach(sshd.port).close()
        assert pin_of(desk).read_text().startswith(kind)


@pytest.mark.parametrize("damaged", ["", "x", "ssh-ed25519 !!!", "a b c", "\xff"])
def test_a_damaged_pin_is_no_reason_to_trust_anybody(desk: Desk, sshd: Sshd, damaged: str) -> None:
    desk.reach(sshd.port).close()
    pin_of(desk).write_text(damaged, encoding="latin-1")
    before = len(sshd.commands)
    with pytest.raises(RemoteError, match="host key cannot be kept") as caught:
        desk.reach(sshd.port)
    assert str(pin_of(desk)) in caught.value.message
    assert len(sshd.commands) == before


def test_the_first_of_several_computers_pins_at_once_wins(tmp_path: Path) -> None:
    keys = [HostKey.of("ssh-ed25519", bytes([i]) * 32) for i in range(20)]
    with ThreadPoolExecutor(20) as pool:
        kept = set(pool.map(lambda key: str(Pin(tmp_path, RUN, TOKEN).keep(key)), keys))
    assert len(kept) == 1
    assert list((tmp_path / "ssh" / RUN).iterdir()) == [tmp_path / "ssh" / RUN / f"{TOKEN}.pin"]


def test_a_shell_on_the_instance_makes_the_same_proof(tmp_path: Path) -> None:
    secret, key = "5ec2e7", HostKey.parse(host_key().export_public_key().decode())
    line = 'read -r _ blob _ && printf "%s:%s:%s" "$0" "$blob" "$0" | sha256sum | cut -c 1-64'
    done = subprocess.run(["sh", "-c", line, secret], input=f"{key} root@box\n", capture_output=True, text=True)
    assert done.stdout.strip() == sshpins.proof(secret, key)


def test_a_fingerprint_is_what_people_know_it_as(tmp_path: Path) -> None:
    key = host_key()
    ours = HostKey.parse(key.export_public_key().decode())
    assert ours.fingerprint == key.get_fingerprint()


def test_secrets_differ_per_attempt_and_stay_the_same(tmp_path: Path) -> None:
    second = TOKEN.replace("a1", "a2")
    told = {token: sshpins.proof_secret(tmp_path, RUN, token) for token in (TOKEN, second)}
    assert len(set(told.values())) == 2
    assert told == {token: sshpins.proof_secret(tmp_path, RUN, token) for token in (TOKEN, second)}


def _make_key(folder: str) -> str:
    return sshkeys.public_key(Path(folder), RUN)


def test_a_key_is_made_once_however_many_ask(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        lines = set(pool.map(_make_key, [str(tmp_path)] * 16, chunksize=1))
    assert len(lines) == 1
    folder = tmp_path / "ssh" / RUN
    assert sorted((path.name, path.stat().st_mode & 0o777) for path in folder.iterdir()) == [
        ("id_ed25519", 0o600),
        ("id_ed25519.pub", 0o600),
    ]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o777 == 0o700, "or doctor complains of what we have made ourselves"
    line = lines.pop()
    assert line.split()[0] == "ssh-ed25519"
    assert line.split()[2] == f"tune-{RUN}"
    told = subprocess.run(["ssh-keygen", "-y", "-f", folder / "id_ed25519"], capture_output=True, text=True)
    assert told.stdout.split()[:2] == line.split()[:2], told.stderr


@pytest.mark.parametrize("content", ["", "null", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"])
def test_a_damaged_key_stops_everything_before_anything_is_rented(tmp_path: Path, content: str) -> None:
    """Seen in openclaw/crabbox#1202: a key that was literally `null` went to the machine."""
    path = sshkeys.private_key_path(tmp_path, RUN)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(RemoteError, match="damaged"):
        sshkeys.public_key(tmp_path, RUN)
    with pytest.raises(RemoteError, match="damaged"):
        sshpins.proof_secret(tmp_path, RUN, TOKEN)
    assert path.read_text() == content


def test_a_folder_that_cannot_be_made_is_a_remote_error(tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text("a file")
    with pytest.raises(RemoteError, match="cannot be kept"):
        sshkeys.public_key(tmp_path, RUN)
