"""The program as such: help, errors, exit codes, and every kind of place it may be started from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import errors
from orchestrator.cli import app, invocation
from orchestrator.cli.render import Renderer
from tests.cli.simdesk import SimDesk

HIDDEN = (
    "runpod",
    "vastai",
    "boto3",
    "paramiko",
    "torch",
    "transformers",
    "yaml",
    "psutil",
    "rich",
    "tenacity",
    "requests",
)
HIDE = f"""
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HIDDEN!r}:
            raise ModuleNotFoundError("hidden: " + name)

sys.meta_path.insert(0, Hidden())
from orchestrator.cli.app import run
code = run(sys.argv[1:])
leaked = sorted({{name.partition(".")[0] for name in sys.modules}} & set({(*HIDDEN, "pydantic")!r}))
sys.stderr.write("loaded: " + " ".join(leaked))
sys.exit(code)
"""


def tune(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *args],
        capture_output=True,
        text=True,
        env={**os.environ, **more},
        timeout=60,
    )


def test_help_needs_no_sdk_and_loads_none() -> None:
    done = subprocess.run([sys.executable, "-c", HIDE, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "loaded: ", "tune --help must load neither an SDK nor pydantic"
    for command in set(app.COMMANDS) - set(app.HIDDEN):
        assert f"\n  {command} " in done.stdout


@pytest.mark.parametrize("command", [name for name in app.COMMANDS if ":app" not in app.COMMANDS[name]])
def test_every_command_explains_itself_with_an_example_and_without_an_sdk(command: str) -> None:
    done = subprocess.run([sys.executable, "-c", HIDE, command, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"Usage: tune {command}" in done.stdout
    assert f"    tune {command}" in done.stdout, "an example"
    assert "--json" in done.stdout


def test_the_version_is_told_in_both_ways() -> None:
    assert tune("--version").stdout.startswith("tune 0.")
    assert set(json.loads(tune("--version", "--json").stdout)) == {"version"}


def test_a_mistyped_command_is_a_usage_error_with_a_suggestion() -> None:
    done = tune("lanch")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: No such command 'lanch'. Did you mean 'launch'?\n  hint: run `tune --help`\n"


@pytest.mark.parametrize("args", [("--json", "ls", "--wrong"), ("ls", "--wrong", "--json")])
def test_usage_errors_are_json_too_wherever_the_flag_stands(args: tuple[str, ...]) -> None:
    done = tune(*args)
    assert done.returncode == 2
    assert json.loads(done.stderr) == {
        "error": "UsageError",
        "exit_code": 2,
        "message": "No such option: --wrong",
        "hint": "run `tune ls --help`",
    }


def test_an_option_without_its_value_is_a_usage_error() -> None:
    done = tune("ls", "--config")
    assert (done.returncode, done.stderr) == (2, "error: --config needs a value\n  hint: run `tune --help`\n")


def test_common_options_are_taken_from_anywhere_but_not_from_behind_two_dashes() -> None:
    rest = invocation.take_common(["ls", "--json", "--config=a.toml", "--storage", "s3://b", "-a", "--", "--debug"])
    common = invocation.current()
    assert rest == ["ls", "-a", "--", "--debug"]
    assert (common.json, common.debug, common.config, common.storage) == (True, False, "a.toml", "s3://b")


def every_error() -> Iterator[type[errors.TuneError]]:
    waiting = [errors.TuneError]
    while waiting:
        kind = waiting.pop()
        yield kind
        waiting += kind.__subclasses__()


@pytest.mark.parametrize("kind", sorted(set(every_error()), key=lambda kind: kind.__name__))
def test_every_error_leaves_with_its_code_and_its_four_json_fields(
    kind: type[errors.TuneError], capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"token": "tune-x"} if kind is errors.OutcomeUnknown else {}
    error = kind("what happened", hint="what to do", **more)
    assert app._report(error, Renderer(json_mode=True)) == kind.exit_code
    said = capsys.readouterr()
    assert said.out == ""
    assert json.loads(said.err) == {
        "error": kind.__name__,
        "exit_code": kind.exit_code,
        "message": "what happened",
        "hint": "what to do",
    }
    assert f" {kind.exit_code} " in errors.__doc__.replace("\n", " \n")


def test_an_expected_error_shows_no_traceback_unless_asked(sim: SimDesk) -> None:
    plain = sim.tune("status", "nobody")
    assert plain.returncode == 20
    assert "Traceback" not in plain.stderr
    assert "Traceback" in sim.tune("--debug", "status", "nobody").stderr


def test_a_bug_says_so_with_its_trace_and_without_the_values_of_variables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "canary-in-the-message")

    def broken() -> None:
        local = "a-local-value"
        raise KeyError("canary-in-the-message" + local[:0])

    with pytest.raises(KeyError) as caught:
        broken()
    assert app._report(caught.value, Renderer(json_mode=False)) == 1
    said = capsys.readouterr().err
    assert "this is a bug in tune" in said
    assert "in broken" in said
    assert "a-local-value\n" not in said
    assert "canary" not in said
    assert "[SOME_TOKEN]" in said


def test_it_works_with_an_empty_environment_from_the_root_folder(sim: SimDesk) -> None:
    sim.a_run("night")
    argv = ["env", "-i", sys.executable, "-m", "orchestrator", "--config", str(sim.config), "ls"]
    done = subprocess.run(
        argv, capture_output=True, text=True, cwd="/", stdin=subprocess.DEVNULL, start_new_session=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "night" in done.stdout


def test_an_ascii_locale_is_no_reason_to_fall_over(sim: SimDesk) -> None:
    sim.a_run("nächtlich-夜")
    more = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LANG": "C"}
    done = sim.tune("ls", **more)
    assert done.returncode == 0, done.stderr
    assert r"n\xe4chtlich-\u591c" in done.stdout
    assert sim.json("ls", **more)["runs"][0]["name"] == "nächtlich-夜"


@pytest.mark.parametrize("term", [{}, {"TERM": "dumb"}, {"TERM": "xterm-256color", "NO_COLOR": "1"}])
def test_without_a_terminal_nothing_is_coloured_or_redrawn(sim: SimDesk, term: dict[str, str]) -> None:
    sim.a_run("night")
    done = sim.tune("resume", "night", **term)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr
    assert "step 50/50" in done.stdout


def test_a_closed_pipe_ends_it_without_a_word(sim: SimDesk) -> None:
    for number in range(3):
        sim.a_run(f"run-{number}")
    argv = f'"{sys.executable}" -m orchestrator --config "{sim.config}" ls | head -1'
    done = subprocess.run(["bash", "-c", argv], capture_output=True, text=True, timeout=60, env=sim.environment)
    assert done.stdout.startswith("RUN ")
    assert done.stderr == ""


def test_closed_output_streams_are_no_crash(sim: SimDesk) -> None:
    argv = f'"{sys.executable}" -m orchestrator --config "{sim.config}" ls >&- 2>&-'
    assert subprocess.run(["bash", "-c", argv], timeout=60, env=sim.environment).returncode == 0


def test_a_run_name_cannot_steer_the_terminal(sim: SimDesk, tmp_path: Path) -> None:
    sim.a_run("x", reason="\x1b]0;owned\x07\x1b[31mred")
    done = sim.tune("status", "x")
    assert "\x1b" not in done.stdout
    assert "red" in done.stdout


def test_an_instance_is_given_the_token_that_the_hub_s_own_tools_would_use(
    sim: SimDesk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from orchestrator.cli.session import Session

    invocation.take_common(["--config", str(sim.config)])
    (tmp_path / "token").write_text("hf_from_the_file\r\n")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", " ")
    assert Session().secrets() == {"HF_TOKEN": "hf_from_the_file"}, "an empty variable counts as not set"
    monkeypatch.setenv("HF_TOKEN", "hf_from_the_variable")
    assert Session().secrets() == {"HF_TOKEN": "hf_from_the_variable"}
