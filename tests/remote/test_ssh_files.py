"""Files over SSH, with SFTP and without: whole or not at all, their modes exact, their names whatever they are."""

from __future__ import annotations

import hashlib
import os
import random
import stat
from pathlib import Path

import pytest

from orchestrator.errors import RemoteError
from orchestrator.remote.ssh import SshRemote
from orchestrator.remote.sshdoor import Patience
from tests.remote.conftest import Desk, tune_home
from tests.remote.sshd import Sshd

WAYS = ["real", "none", "closes", "silent", "garbage"]
PATIENCE = Patience(sftp=0.3)


@pytest.fixture(params=WAYS)
def sftp(request: pytest.FixtureRequest, sshd: Sshd) -> str:
    sshd.sftp = request.param
    return sshd.sftp


@pytest.fixture
def remote(desk: Desk, sshd: Sshd, sftp: str) -> SshRemote:
    return desk.reach(sshd.port, patience=PATIENCE)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def everything(sshd: Sshd) -> list[str]:
    return sorted(str(path.relative_to(tune_home(sshd))) for path in tune_home(sshd).rglob("*"))


def test_five_megabytes_arrive_whichever_way(remote: SshRemote, sshd: Sshd, sftp: str) -> None:
    """Seen in runpod/runpod-mcp#73: SSH that works, and no SFTP."""
    data = random.Random(1).randbytes(5_000_000)
    remote.put("wheel/x.whl", data)
    arrived = (tune_home(sshd) / "wheel" / "x.whl").read_bytes()
    assert hashlib.sha256(arrived).digest() == hashlib.sha256(data).digest()
    remote.put("other", b"")
    assert (tune_home(sshd) / "other").read_bytes() == b""
    assert everything(sshd) == ["other", "wheel", "wheel/x.whl"]
    assert sshd.sftp_requests == 1, "the way that works is remembered"
    assert any("cat >" in command for command in sshd.commands) is (sftp != "real")


@pytest.mark.parametrize("wanted", [0o600, 0o644, 0o755, 0o400, 0o444, 0o700])
def test_modes_are_exact_whatever_the_umask(desk: Desk, sshd: Sshd, wanted: int) -> None:
    before = os.umask(0o077)
    try:
        for way in ("real", "none"):
            sshd.sftp = way
            desk.reach(sshd.port).put("a/b/f", way.encode(), mode=wanted)
            assert mode(tune_home(sshd) / "a" / "b" / "f") == wanted
            assert (tune_home(sshd) / "a" / "b" / "f").read_bytes() == way.encode()
    finally:
        os.umask(before)


def test_nobody_else_can_read_a_file_that_is_being_written(remote: SshRemote, sshd: Sshd, sftp: str) -> None:
    if sftp == "real":
        remote.put("secrets.json", b"x" * 100_000, mode=0o600)
        assert sshd.draft_modes
        assert {folder for _, folder in sshd.draft_modes} == {0o700}
        return
    tools = sshd.home / "tools"
    tools.mkdir()
    (tools / "chmod").write_text('#!/bin/sh\nstat -c %a "$2" >>"$HOME/modes"; exec /bin/chmod "$@"\n')
    (tools / "chmod").chmod(0o755)
    sshd.path = f"{tools}:{sshd.path}"
    remote.put("secrets.json", b"x" * 100_000, mode=0o644)
    assert (sshd.home / "modes").read_text() == "600\n"


@pytest.mark.parametrize(
    "name",
    [
        'a b\'c "d" $(touch p) `touch p`.txt',
        "-rf",
        "--help",
        "a\nb",
        "~root",
        "ü 训练 🙂",
        "*",
        "$HOME",
        "\\",
        "x" * 255,
        "dir with ' quote/-dash/file",
        "./a//b/./c",
        "!",
        ";",
    ],
)
def test_names_are_taken_as_they_are(desk: Desk, sshd: Sshd, name: str) -> None:
    for way in ("real", "none"):
        sshd.sftp = way
        remote = desk.reach(sshd.port, patience=PATIENCE)
        remote.put(name, way.encode())
        assert (tune_home(sshd) / name).read_bytes() == way.encode()
    files = [path for path in tune_home(sshd).rglob("*") if path.is_file()]
    assert files == [tune_home(sshd) / name]
    assert not (sshd.home / "p").exists() and not (tune_home(sshd) / "p").exists()


def test_an_absolute_path_in_the_tune_home_is_fine(remote: SshRemote, sshd: Sshd) -> None:
    remote.put(str(tune_home(sshd) / "job" / "f"), b"x")
    assert everything(sshd) == ["job", "job/f"]


@pytest.mark.parametrize(
    "path", ["../f", "a/../../f", "/etc/tune-test", "", ".", "..", "/", "a/..", "nul\0", "\udcff", "a/../f"]
)
def test_a_path_that_leads_out_is_refused(desk: Desk, sshd: Sshd, path: str) -> None:
    remote = desk.reach(sshd.port)
    with pytest.raises(RemoteError, match="does not lie below the tune home"):
        remote.put(path, b"x")
    assert sshd.sftp_requests == 0
    assert not any("cat >" in command for command in sshd.commands)
    assert everything(sshd) == []


def test_what_cannot_be_written_leaves_no_trace(remote: SshRemote, sshd: Sshd) -> None:
    home = tune_home(sshd)
    (home / "file").write_text("kept")
    (home / "folder" / "inside").mkdir(parents=True)
    before = everything(sshd)
    with pytest.raises(RemoteError, match="cannot write"):
        remote.put("file/below", b"x")
    with pytest.raises(RemoteError, match="cannot write"):
        remote.put("folder", b"x")
    with pytest.raises(RemoteError, match="cannot write"):
        remote.put("x" * 256, b"x")
    assert everything(sshd) == before
    assert (home / "file").read_text() == "kept"
    remote.put("good", b"x")
    assert everything(sshd) == sorted([*before, "good"])


def test_a_file_that_is_cut_short_is_not_put_in_place(remote: SshRemote, sshd: Sshd, sftp: str) -> None:
    """A full disk: the first writer notices, or nobody does."""
    remote.put("f", b"old")
    if sftp == "real":
        sshd.sftp_limit = 1000
    else:
        tools = sshd.home / "tools"
        tools.mkdir()
        (tools / "cat").write_text("#!/bin/sh\nexec head -c 1000\n")
        (tools / "cat").chmod(0o755)
        sshd.path = f"{tools}:{sshd.path}"
    with pytest.raises(RemoteError, match="cannot write"):
        remote.put("f", b"n" * 300_000)
    assert (tune_home(sshd) / "f").read_bytes() == b"old"
    assert everything(sshd) == ["f"]


def test_a_line_that_goes_silent_costs_the_timeout(desk: Desk, sshd: Sshd, sftp: str) -> None:
    """paramiko waits without an end for room in the socket."""
    street = desk.street(sshd)
    remote = desk.reach(street.port, patience=PATIENCE)
    remote.put("f", b"old")
    street.freeze()
    with pytest.raises(RemoteError, match=r"did not arrive within 0\.5 s"):
        remote.put("f", b"n" * 30_000_000, timeout_s=0.5)
    assert (tune_home(sshd) / "f").read_bytes() == b"old"


def test_a_connection_that_breaks_between_files_is_a_remote_error(remote: SshRemote, sshd: Sshd) -> None:
    remote.put("f", b"x")
    sshd.hang_up()
    with pytest.raises(RemoteError):
        remote.put("g", b"x", timeout_s=10)
    assert everything(sshd) == ["f"]


def test_sftp_that_dies_later_is_replaced(desk: Desk, sshd: Sshd) -> None:
    remote = desk.reach(sshd.port)
    remote.put("f", b"x")
    assert remote._files._client is not None
    remote._files._client.close()
    remote.put("g", b"y")
    assert (tune_home(sshd) / "g").read_bytes() == b"y"
