"""Commands over SSH: whatever they are called with, whatever they write, however they end."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import psutil
import pytest

from orchestrator.errors import RemoteError
from orchestrator.remote import sshcall
from orchestrator.remote.ssh import SshRemote
from orchestrator.remote.sshshell import framed, with_home
from tests.remote.conftest import QUICK, RUN, TOKEN, Desk, tune_home
from tests.remote.sshd import Sshd

HOSTILE = [
    "x; touch pwned #",
    "$(touch pwned)",
    "`touch pwned`",
    "a\nb",
    "-rf",
    "~root",
    "--",
    "a b",
    "'",
    '"',
    "\\",
    "*",
    "",
    "ü 训练 🙂",
    "$HOME",
    "!!",
    "a\tb\r",
]


def test_a_command_runs_in_the_tune_home_or_in_the_users(desk: Desk, remote: SshRemote, sshd: Sshd) -> None:
    assert remote.run(["pwd"]).stdout.decode() == f"{tune_home(sshd)}\n"
    unborn = desk.host(booted=False)
    other = desk.reach(unborn.port, token=TOKEN.replace("a1", "a2"))
    assert other.run(["pwd"]).stdout.decode() == f"{unborn.home}\n"
    tune_home(sshd).rmdir()
    done = remote.run(["touch", "astray"])
    assert done.exit_code == 127, "a home that is gone is not replaced by another folder"
    assert not list(sshd.home.rglob("astray"))


def test_arguments_and_variables_arrive_as_they_are(remote: SshRemote, sshd: Sshd) -> None:
    done = remote.run(["printf", "<%s>", *HOSTILE])
    assert done.stdout == "".join(f"<{text}>" for text in HOSTILE).encode("utf-8", "surrogateescape")
    for text in HOSTILE:
        assert (
            remote.run(["printenv", "IT"], env={"IT": text}).stdout == text.encode("utf-8", "surrogateescape") + b"\n"
        )
    assert not list(sshd.home.rglob("pwned"))


@pytest.mark.parametrize("name", [text for text in HOSTILE if text not in ("", "~root")])
def test_a_program_of_any_name_is_not_found_or_refused(remote: SshRemote, sshd: Sshd, name: str) -> None:
    if name.startswith("-"):
        with pytest.raises(RemoteError, match="not a program"):
            remote.run([name])
    else:
        assert remote.run([name, "-c", "touch pwned"]).exit_code in (126, 127)
    assert not list(sshd.home.rglob("pwned"))


@pytest.mark.parametrize("env", [{"A B": "1"}, {"": "1"}, {"A;touch p": "1"}, {"1A": "1"}, {"A": "\0"}, {"Ä": "1"}])
def test_what_is_no_variable_is_refused(remote: SshRemote, env: dict[str, str]) -> None:
    with pytest.raises(RemoteError):
        remote.run(["true"], env=env)


@pytest.mark.parametrize("argv", [[], ["a\0b"], ["x" * 300_000], ["a", "\ud800"]])
def test_a_command_that_cannot_be_sent_is_a_remote_error(remote: SshRemote, argv: list[str]) -> None:
    with pytest.raises(RemoteError):
        remote.run(argv)
    assert remote.run(["echo", "still"]).stdout == b"still\n"


def test_a_failing_program_is_an_answer(remote: SshRemote, sshd: Sshd) -> None:
    done = remote.run(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (done.exit_code, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
    gone = remote.run(["no-such-program"])
    assert gone.exit_code == 127
    assert b"no-such-program" in gone.stderr
    assert remote.run(["sh", "-c", "kill -9 $$"]).exit_code == 137
    (tune_home(sshd) / "plain").write_text("x")
    assert remote.run(["./plain"]).exit_code == 126


def test_bytes_are_kept(remote: SshRemote) -> None:
    done = remote.run(["sh", "-c", r"printf 'no newline\0\377\r\n\033[1m'; printf '\r' >&2"])
    assert done.stdout == b"no newline\0\xff\r\n\033[1m"
    assert done.stderr == b"\r"
    assert remote.run(["true"]).stdout == b""


def test_a_command_gets_no_input(remote: SshRemote) -> None:
    assert remote.run(["cat"]).stdout == b""


BANNER = "".join(f"\033[1;3{i % 8}m* Welcome to machine {i} *\033[0m\r\n" for i in range(15))


@pytest.mark.parametrize("noise", [BANNER, "no end of line", "\n", "<<tune 1234 5\n>>tune 1234 0\n"])
def test_what_start_up_files_print_is_not_the_commands_output(remote: SshRemote, sshd: Sshd, noise: str) -> None:
    sshd.noise = noise
    done = remote.run(["sh", "-c", "echo '{\"a\": 1}'; echo e >&2; exit 3"])
    assert (done.exit_code, done.stdout, done.stderr) == (3, b'{"a": 1}\n', b"e\n")
    remote.put("agent.json", b"{}")
    assert (tune_home(sshd) / "agent.json").read_bytes() == b"{}"


@pytest.mark.parametrize("shell", [["/bin/sh", "-x", "-c"], ["/bin/sh", "-v", "-c"], ["/bin/bash", "-xv", "-c"]])
def test_a_shell_that_echoes_what_it_is_told_confuses_nobody(desk: Desk, sshd: Sshd, shell: list[str]) -> None:
    sshd.shell = shell
    done = desk.reach(sshd.port).run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"out\n", b"err\n")


def test_a_list_of_processes_shows_our_own_command_and_confuses_nobody(remote: SshRemote) -> None:
    look = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null; echo last"
    done = remote.run(["sh", "-c", look])
    assert b"tune " in done.stdout
    assert done.stdout.endswith(b"last\n")


def test_a_user_whose_shell_runs_nothing_is_told_apart(remote: SshRemote, sshd: Sshd) -> None:
    sshd.shell = ["/bin/sh", "-c", "echo This account is not available.; exit 1"]
    with pytest.raises(RemoteError, match="has not run the command; it said: This account is not available"):
        remote.run(["true"])


SIZE = 10 * 2**20


def test_ten_mebibytes_on_both_streams_arrive_within_little_memory(remote: SshRemote) -> None:
    """Seen in paramiko/paramiko#1778: exit status first, output after, and both sides wait for ever."""
    script = f"head -c {SIZE} /dev/zero | tr '\\0' e >&2; head -c {SIZE} /dev/zero | tr '\\0' o; exit 7"
    tracemalloc.start()
    try:
        done = remote.run(["sh", "-c", script])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (done.exit_code, len(done.stdout), len(done.stderr)) == (7, SIZE, SIZE)
    assert set(done.stdout) == {ord("o")} and set(done.stderr) == {ord("e")}
    assert peak < 50 * 2**20, "20 MiB of it is the answer itself"


def test_output_without_an_end_is_cut_off(remote: SshRemote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sshcall, "MAX_OUTPUT_BYTES", 2**20)
    with pytest.raises(RemoteError, match="wrote more than 1048576 bytes"):
        remote.run(["yes", "endless-1f7a"])
    ended("endless-1f7a")
    assert remote.run(["echo", "still"]).stdout == b"still\n"


def test_at_its_timeout_a_command_is_killed_with_all_it_started(remote: SshRemote) -> None:
    script = "sleep 4711 & (sleep 4712; true) & while :; do sleep 4713; done"
    with pytest.raises(RemoteError, match=r"sh did not end within 0\.5 s and was killed"):
        remote.run(["sh", "-c", script], timeout_s=0.5)
    for number in ("4711", "4712", "4713"):
        ended(number)
    assert remote.run(["echo", "still"]).stdout == b"still\n"


def test_what_a_command_leaves_behind_lives_on_and_holds_nobody_up(remote: SshRemote, sshd: Sshd) -> None:
    """The streams are still open on the other side, as sshd sees it."""
    script = "setsid sh -c 'echo $$ >left; while [ ! -e go ]; do sleep 0.05; done; touch gone-on' & echo up"
    done = remote.run(["sh", "-c", script], timeout_s=30)
    assert (done.exit_code, done.stdout) == (0, b"up\n")
    home = tune_home(sshd)
    wait(lambda: (home / "left").exists() and (home / "left").read_text().strip())
    sshd.hang_up()
    remote.close()
    assert psutil.pid_exists(int((home / "left").read_text()))
    (home / "go").touch()
    wait((home / "gone-on").exists)


def test_a_connection_that_breaks_is_a_remote_error(remote: SshRemote, sshd: Sshd) -> None:
    timer = threading.Timer(0.2, sshd.hang_up)
    timer.start()
    with pytest.raises(RemoteError, match="connection broke"):
        remote.run(["sleep", "4714"])
    timer.join()
    with pytest.raises(RemoteError, match="connection broke"):
        remote.run(["true"])
    with pytest.raises(RemoteError):
        remote.put("f", b"x")
    kill("4714")


def test_a_line_that_goes_silent_costs_the_timeout_and_little_more(
    desk: Desk, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sshcall, "_GRACE_S", 0.2)
    street = desk.street(sshd)
    remote = desk.reach(street.port)
    street.freeze()
    with pytest.raises(RemoteError, match=r"the connection broke: Timeout opening channel"):
        remote.run(["true"], timeout_s=0.3)
    with pytest.raises(RemoteError):
        remote.run(["true"], timeout_s=0.3)


def test_a_request_that_is_never_answered_costs_the_timeout(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """paramiko waits for the answer without an end."""
    from orchestrator.remote import sshkeys
    from tests.remote.rude import RudeHost

    monkeypatch.setattr(sshcall, "_GRACE_S", 0.2)
    sshkeys.public_key(desk.state, RUN)
    patience = type(QUICK)(budget=1, look=0.3)
    with (
        RudeHost(never_answers=True) as host,
        pytest.raises(RemoteError, match=r"lets us in, but no answer to the first look within 0\.3 s"),
    ):
        desk.reach(host.port, patience=patience)


def test_an_interrupt_ends_the_command_there_too(desk: Desk, sshd: Sshd) -> None:
    """In a process of its own: the signal is for its main thread."""
    program = f"""
import pathlib, signal, sys, threading
from orchestrator.remote.ssh import SshRemote
from orchestrator.types import Instance, InstanceId, InstanceState
from tests.remote.conftest import TOKEN
address = {{"direct_host": "127.0.0.1", "direct_port": "{sshd.port}"}}
instance = Instance(InstanceId("1"), TOKEN, "vastai", InstanceState.RUNNING, address=address)
remote = SshRemote(instance, state_dir=pathlib.Path({str(desk.state)!r}))
try:
    remote.run(["sh", "-c", "touch started; sleep 4715"])
except KeyboardInterrupt:
    remote.close()
    sys.exit(42)
"""
    child = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2])
    wait(lambda: (tune_home(sshd) / "started").exists() or child.poll() is not None)
    time.sleep(1)  # the line that tells the process to end has to come back to us, too
    child.send_signal(2)
    assert child.wait(60) == 42
    ended("4715")


def test_closing_twice_is_harmless(remote: SshRemote) -> None:
    remote.close()
    remote.close()
    with pytest.raises(RemoteError):
        remote.run(["true"])


def test_a_frame_is_read_while_it_grows() -> None:
    frame = framed("true")
    whole = f"noise<<tune {frame.mark} 12\nwords>>tune {frame.mark} 3\n".encode()
    for split in range(len(whole)):
        assert frame.code(whole[:split]) is None
        assert frame.code(whole, since=split) == 3
    assert frame.pid(whole) == 12
    assert frame.inside(whole) == b"words"
    assert frame.inside(whole[:-1]) == b"words"
    assert frame.inside(b"noise") == b""
    assert frame.inside(whole.partition(b">>")[0]) == b"words"


def test_bytes_that_are_no_text_are_sent_as_they_are() -> None:
    frame = framed(with_home(["printf", "<%s>", "a\udcffb"], {}, token=TOKEN))
    done = subprocess.run(["sh", "-c", frame.command], capture_output=True)
    assert frame.inside(done.stdout) == b"<a\xffb>"


def named(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if mark in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def ended(mark: str) -> None:
    try:
        wait(lambda: not named(mark))
    finally:
        kill(mark)


def kill(mark: str) -> None:
    for process in named(mark):
        process.kill()


def wait(until: object, within_s: float = 30) -> None:
    give_up = time.monotonic() + within_s
    while not until():  # type: ignore[operator]
        assert time.monotonic() < give_up
        time.sleep(0.01)
