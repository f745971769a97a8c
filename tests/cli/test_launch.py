"""From a recipe to a stored run: what is sent, what is refused, and what a crash leaves."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator import keys
from orchestrator import recipe as recipes
from orchestrator.cli import app
from orchestrator.errors import RecipeError, RunConflict, RunNotFound, UsageError
from orchestrator.launch import Prepared, check_name, launch, prepare
from orchestrator.storage.local import LocalStore
from orchestrator.storage.memory import MemoryStore
from orchestrator.storage.runs import RunStore
from orchestrator.types import Phase
from tests.assets.tiny import Tiny
from tests.cli.simdesk import SimDesk

NOW = datetime(2026, 5, 1, tzinfo=UTC)
HOSTILE = [
    "x; touch /tmp/tune-was-here #", "$(touch /tmp/tune-was-here)", "`touch /tmp/tune-was-here`", "~root", "a b", "it's", 'say "hi"',
    "nächtlich 夜", "..", "a/b", "../../x", "%2e%2e", "*", "a\\b", "🦙",
]  # fmt: skip
REFUSED = [
    "",
    " ",
    "-rf",
    "--name",
    "new\nline",
    "nul\0",
    "tab\t",
    "esc\x1b[31m",
    "trailing ",
    " leading",
    "n" * 181,
    "夜" * 61,
    "half\udc80",
]


@pytest.fixture
def written(tmp_path: Path, tiny_assets: Tiny) -> Path:
    """A folder with a recipe, its data, and much that must not be sent."""
    (tmp_path / "data.jsonl").write_bytes(tiny_assets.alpaca.read_bytes())
    for name in (".env", "id_rsa", "other.jsonl", ".aws/credentials", ".git/config"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("secret stuff\n")
    write_recipe(tmp_path)
    return tmp_path


def write_recipe(folder: Path, **tune: Any) -> Path:
    training = {
        "base_model": "nobody/model-without-tokenizer", "adapter": "lora", "lora_r": 8, "lora_alpha": 16, "lora_target_linear": True,
        "datasets": [{"path": "data.jsonl", "type": "alpaca"}], "sequence_len": 512, "micro_batch_size": 2, "max_steps": 10,
        "learning_rate": 0.001,
    }  # fmt: skip
    path = folder / "recipe.yaml"
    path.write_text(json.dumps({**training, "tune": {"trainer": "trl", **tune}}))
    return path


def prepared(folder: Path, name: str = "night", **more: Any) -> Prepared:
    return prepare(recipes.load(folder / "recipe.yaml"), provider="sim", name=name, **more)


class Clock:
    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


class Dying(MemoryStore):
    """A store whose user dies at the n-th write, before or after it is done."""

    def __init__(self) -> None:
        super().__init__(Clock())
        self.writes, self.dies_at, self.after = 0, -1, False

    def _step(self, verb: Any, *args: Any, **kwargs: Any) -> Any:
        self.writes += 1
        if self.writes == self.dies_at and not self.after:
            raise KeyboardInterrupt
        done = verb(*args, **kwargs)
        if self.writes == self.dies_at:
            raise KeyboardInterrupt
        return done

    def put(self, *args: Any, **kwargs: Any) -> Any:
        return self._step(super().put, *args, **kwargs)

    def put_new(self, *args: Any, **kwargs: Any) -> Any:
        return self._step(super().put_new, *args, **kwargs)

    def upload(self, *args: Any, **kwargs: Any) -> Any:
        return self._step(super().upload, *args, **kwargs)


# -- what is sent -----------------------------------------------------------------------------------------------------


def test_only_what_the_recipe_names_is_sent(written: Path) -> None:
    write_recipe(written, files=["other.jsonl"])
    found = prepared(written)
    own = {path for path in found.contents if not path.startswith("trainer/")}
    assert own == {"data/000.jsonl", "files/other.jsonl"}
    everything = b"".join(
        c if isinstance(c, bytes) else c.read_bytes() for p, c in found.contents.items() if p != "files/other.jsonl"
    )
    assert b"secret stuff" not in everything
    assert {file.path for file in found.files.files} == set(found.contents)


def test_a_launch_stores_the_files_then_their_list_then_the_run(written: Path) -> None:
    store = MemoryStore(Clock())
    run = launch(prepared(written), RunStore(store), now=NOW).run
    stored = RunStore(store)
    assert stored.load(run.run_id).run == run or stored.load(run.run_id).run.name == "night"
    for file in stored.files(run.run_id).files:
        assert len(store.get(keys.file(run.run_id, file.path)).data) == file.size
    assert store.get(keys.recipe(run.run_id)).data == (written / "recipe.yaml").read_bytes()
    assert json.loads(store.get(keys.data_report(run.run_id)).data)["rows_in"] == 48
    assert stored.active() == [run.run_id]
    assert stored.resolve("night") == run.run_id


def test_the_limits_of_the_recipe_are_the_run_s(written: Path) -> None:
    write_recipe(
        written, budget_usd=3, max_attempts=4, deadline="2h", spot="never", max_usd_per_hour=0.5, min_vram="20GiB"
    )
    run = launch(prepared(written), RunStore(MemoryStore(Clock())), now=NOW).run
    assert (str(run.limits.budget_usd), run.limits.max_attempts, run.limits.deadline_s) == ("3", 4, 7200)
    assert (run.want.spot, str(run.want.max_usd_per_hour), run.want.vram_gib) == ("never", "0.5", 20)


def test_an_instance_elsewhere_is_told_what_it_needs_and_given_no_more(written: Path) -> None:
    write_recipe(written, gpu={"count": 1, "name": ["RTX 4090", "L4"]}, image="me/image:1")
    found = prepared(written, is_elsewhere=True)
    run = launch(found, RunStore(MemoryStore(Clock())), now=NOW).run
    assert run.needs == ("HF_TOKEN",), "the model is on the hub, and no tracker is named"
    assert (run.want.gpu_names, run.want.gpu_count, run.want.image) == (("RTX4090", "L4"), 1, "me/image:1")
    assert run.want.disk_gb >= 50


def test_a_model_of_this_computer_is_stored_with_the_run_for_an_instance_elsewhere(
    written: Path, tiny_assets: Tiny
) -> None:
    text = (written / "recipe.yaml").read_text().replace("nobody/model-without-tokenizer", str(tiny_assets.model))
    (written / "recipe.yaml").write_text(text)
    store = MemoryStore(Clock())
    run = launch(prepared(written, is_elsewhere=True), RunStore(store), now=NOW).run
    weights = store.get(keys.file(run.run_id, "model/model.safetensors")).data
    assert weights == (tiny_assets.model / "model.safetensors").read_bytes()
    job = json.loads(store.get(keys.file(run.run_id, "trainer/job.json")).data)
    assert job["settings"]["base_model"] == "{job}/model"
    assert run.needs == ()
    here = prepared(written, name="here")
    assert not any(path.startswith("model/") for path in here.contents), "this computer reads it where it lies"


@pytest.mark.parametrize("name", [".env", "id_rsa", ".aws/credentials"])
def test_a_named_file_that_looks_like_a_secret_is_refused_unless_allowed(written: Path, name: str) -> None:
    write_recipe(written, files=[name])
    with pytest.raises(RecipeError, match="look like secrets") as caught:
        prepared(written)
    assert name in caught.value.message
    assert "--allow-secret-files" in caught.value.hint
    assert name in prepared(written, allow_secret_files=True).warnings[0]


def test_data_that_holds_a_key_is_refused_wherever_in_the_file_it_is(written: Path) -> None:
    row = json.dumps({"instruction": "x", "output": "hf_" + "aB3d" * 9})
    with (written / "data.jsonl").open("a") as data:
        data.write(row + "\n")
    with pytest.raises(RecipeError, match="a Hugging Face token"):
        prepared(written)


def test_the_value_of_a_secret_variable_of_this_computer_is_never_sent(written: Path) -> None:
    (written / "other.jsonl").write_text("x canary-1234 y")
    write_recipe(written, files=["other.jsonl"])
    with pytest.raises(RecipeError, match=r"the value of \$MY_TOKEN"):
        prepared(written, own_secrets=[("canary-1234", "MY_TOKEN")])


@pytest.mark.parametrize("name", ["gone.txt", "../outside.txt", "/etc/hostname", ".git"])
def test_files_that_cannot_be_sent_are_named(written: Path, name: str) -> None:
    write_recipe(written, files=[name])
    with pytest.raises(RecipeError) as caught:
        prepared(written)
    assert name in caught.value.message


# -- idempotent, and safe to kill -------------------------------------------------------------------------------------


def test_the_same_name_recipe_and_data_is_the_same_run(written: Path) -> None:
    runs = RunStore(MemoryStore(Clock()))
    first, second = launch(prepared(written), runs, now=NOW), launch(prepared(written), runs, now=NOW)
    assert (first.is_new, second.is_new) == (True, False)
    assert second.run.run_id == first.run.run_id


def test_the_same_name_for_something_else_is_refused(written: Path) -> None:
    runs = RunStore(MemoryStore(Clock()))
    first = launch(prepared(written), runs, now=NOW).run
    other = (written / "recipe.yaml").read_text().replace("0.001", "0.002")
    (written / "recipe.yaml").write_text(other)
    with pytest.raises(RunConflict, match="another recipe") as caught:
        launch(prepared(written), runs, now=NOW)
    assert first.run_id in caught.value.message
    write_recipe(written)
    (written / "data.jsonl").write_text((written / "data.jsonl").read_text().replace("garden", "desert"))
    with pytest.raises(RunConflict, match="another data"):
        launch(prepared(written), runs, now=NOW)


def test_without_a_name_every_launch_is_a_new_run(written: Path) -> None:
    runs = RunStore(MemoryStore(Clock()))
    names = {launch(prepared(written, name=""), runs, now=NOW).run.name for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("recipe-") for name in names)


def test_killed_at_any_write_the_same_command_finishes_the_same_run(written: Path) -> None:
    found = prepared(written)
    count = Dying()
    launch(found, RunStore(count), now=NOW)
    assert count.writes > 10
    for dies_at in range(1, count.writes + 1):
        for after in (False, True):
            store = Dying()
            store.dies_at, store.after = dies_at, after
            with pytest.raises(KeyboardInterrupt):
                launch(found, RunStore(store), now=NOW)
            claims = list(store.children(keys.NAMES))
            run = launch(found, RunStore(store), now=NOW).run
            runs = RunStore(store)
            assert runs.active() == [run.run_id], "one run, and nothing that looks like another"
            assert list(store.children(keys.RUNS)) == [f"{run.run_id}/"]
            assert len(runs.files(run.run_id).files) == len(found.contents)
            assert runs.load(run.run_id).run.phase is Phase.PENDING
            assert claims in ([], list(store.children(keys.NAMES)))


def test_a_run_is_not_there_before_its_last_file_is(written: Path) -> None:
    found, store = prepared(written), Dying()
    launch(found, RunStore(store), now=NOW)
    total = store.writes
    store = Dying()
    store.dies_at = total
    with pytest.raises(KeyboardInterrupt):
        launch(found, RunStore(store), now=NOW)
    with pytest.raises(RunNotFound):
        RunStore(store).load(RunStore(store).resolve("night"))


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_taken_literally(tmp_path: Path, written: Path, name: str) -> None:
    runs = RunStore(LocalStore(tmp_path / "bucket"))
    run = launch(prepared(written, name=name), runs, now=NOW).run
    assert run.name == name
    assert runs.resolve(name) == run.run_id
    assert not Path("/tmp/tune-was-here").exists()
    outside = {path.name for path in tmp_path.iterdir()} - {"bucket", "home-of-the-test"}
    assert outside == {path.name for path in written.iterdir()} - {"bucket", "home-of-the-test"}


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_would_hurt_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)


# -- the command ------------------------------------------------------------------------------------------------------


def test_a_dry_run_lists_exactly_what_would_be_sent_and_stores_nothing(sim: SimDesk, written: Path) -> None:
    plan = sim.json("launch", str(written / "recipe.yaml"), "--dry-run")
    assert set(plan) == {
        "recipe", "recipe_sha256", "data_sha256", "name", "provider", "trainer", "storage", "resolved", "files", "upload_bytes", "data",
        "notices", "warnings", "preflight",
    }  # fmt: skip
    assert not sim.bucket.exists()
    sim.climate(total_steps=1)
    assert sim.tune("launch", str(written / "recipe.yaml"), "--name", "night").returncode == 0
    stored = sim.runs.files(sim.runs.resolve("night")).files
    assert [(f["path"], f["size"], f["sha256"]) for f in plan["files"]] == [(f.path, f.size, f.sha256) for f in stored]


def test_a_dry_run_shows_the_recipe_as_it_was_understood_and_as_the_run_stores_it(sim: SimDesk, written: Path) -> None:
    argv = ("launch", str(written / "recipe.yaml"), "--set", "learning_rate=2e-4", "--set", "tune.hang_timeout=90s")
    plan = sim.json(*argv, "--dry-run")
    assert plan["resolved"]["training"]["learning_rate"] == 0.0002
    assert plan["resolved"]["tune"]["hang_timeout_s"] == 90
    said = sim.tune(*argv, "--dry-run").stdout.splitlines()
    assert {"  learning_rate: 0.0002", "  tune.hang_timeout_s: 90.0", "  tune.trainer: trl"} <= set(said)
    sim.climate(total_steps=1)
    assert sim.tune(*argv, "--name", "night").returncode == 0
    stored = json.loads((sim.bucket / keys.resolved_recipe(sim.runs.resolve("night"))).read_bytes())
    assert stored == plan["resolved"]


def test_a_bad_recipe_is_refused_with_every_problem_and_nothing_is_stored(sim: SimDesk, written: Path) -> None:
    (written / "recipe.yaml").write_text("base_modle: x\nadapter: lora\nlearning_rate: fast\ntune: {trainer: trl}\n")
    done = sim.tune("--json", "launch", str(written / "recipe.yaml"))
    assert done.returncode == 10
    message = json.loads(done.stderr)["message"]
    assert "recipe.yaml:1: base_modle" in message
    assert "learning_rate" in message
    assert not sim.bucket.exists()


def test_hostile_names_on_the_command_line_do_no_harm(sim: SimDesk, written: Path) -> None:
    sim.climate(total_steps=1)
    name = "$(touch /tmp/tune-was-here); `touch /tmp/tune-was-here` 'x'"
    done = sim.tune("launch", str(written / "recipe.yaml"), "--name", name)
    assert done.returncode == 0, done.stderr
    for command in (("status", name), ("logs", name), ("resume", name), ("stop", name)):
        done = sim.tune(*command)
        assert done.returncode == 0, done.stderr
    assert sim.tune("launch", str(written / "recipe.yaml"), "--name", "-rf").returncode == 2
    assert not Path("/tmp/tune-was-here").exists()


SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "canary-aws-secret", "AWS_SESSION_TOKEN": "canary-aws-session", "HF_TOKEN": "canary-hf-token",
    "RUNPOD_API_KEY": "canary-runpod-key", "VAST_API_KEY": "canary-vast-key", "WANDB_API_KEY": "canary-wandb-key",
}  # fmt: skip


def test_no_secret_of_the_environment_is_printed_or_kept(sim: SimDesk, written: Path) -> None:
    recipe = str(written / "recipe.yaml")
    done = [
        sim.tune("--debug", *command, **SECRETS)
        for command in (
            ("launch", recipe, "--name", "night"),
            ("launch", recipe, "--name", "night", "--json"),
            ("launch", recipe, "--set", "canary-hf-token=1"),
            ("status", "canary-runpod-key"),
            ("status", "night"),
            ("doctor",),
            ("providers",),
            ("cron",),
            ("ls", "--canary-vast-key"),
        )
    ]
    printed = "".join(one.stdout + one.stderr for one in done)
    assert "canary" not in printed
    assert "[HF_TOKEN]" in printed
    kept = [
        path
        for root in (sim.bucket, sim.state)
        for path in root.rglob("*")
        if path.is_file() and b"canary" in path.read_bytes()
    ]
    assert kept == []


# -- the recipe commands ----------------------------------------------------------------------------------------------


def test_init_writes_a_recipe_that_is_valid_and_never_overwrites(sim: SimDesk, written: Path) -> None:
    target = written / "mine.yaml"
    assert sim.tune("init", str(target)).returncode == 0
    assert sim.json("validate", str(target))["valid"] is True
    before = target.read_bytes()
    done = sim.tune("init", str(target))
    assert done.returncode == 2
    assert "exists already" in done.stderr
    assert target.read_bytes() == before
    assert sim.tune("init", str(written / "no" / "folder.yaml")).returncode == 2


def test_validate_says_what_the_data_is_and_what_keeps_it_from_being_launched(sim: SimDesk, written: Path) -> None:
    answer = sim.json("validate", str(written / "recipe.yaml"))
    assert (answer["valid"], answer["launchable"], answer["data"]["rows_in"]) == (True, True, 48)
    (written / "recipe.yaml").write_text((written / "recipe.yaml").read_text().replace('"trl"', '"axolotl"'))
    answer = sim.json("validate", str(written / "recipe.yaml"), "--no-data")
    assert (answer["valid"], answer["launchable"], answer["data"]) == (True, False, None)
    assert "trl" in answer["obstacles"][0]


def test_the_schema_is_json_that_a_recipe_fits(sim: SimDesk, written: Path) -> None:
    from jsonschema import Draft202012Validator

    schema = json.loads(sim.tune("schema").stdout)
    Draft202012Validator.check_schema(schema)
    assert list(Draft202012Validator(schema).iter_errors(json.loads((written / "recipe.yaml").read_text()))) == []
    assert list(Draft202012Validator(schema).iter_errors({"base_modle": "x"})) != []


@pytest.mark.parametrize(("provider", "said"), [("sin", "did you mean sim"), ("sim,local", "cannot stand in")])
def test_a_dry_run_promises_nothing_of_a_provider_that_is_not_there(
    sim: SimDesk, written: Path, provider: str, said: str
) -> None:
    done = sim.tune("launch", str(written / "recipe.yaml"), "--provider", provider, "--dry-run")
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("orchestrator.launch.prepare", "before anything was stored or rented"),
        ("orchestrator.launch.launch", "while the run was being stored"),
    ],
)
def test_an_early_ctrl_c_says_whether_there_is_a_run(
    sim: SimDesk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], at: str, said: str
) -> None:
    """Exit code 130 alone would promise that something goes on."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(at, interrupted)
    recipe = sim.recipe(base_model="some/model")
    assert app.run(["--config", str(sim.config), "launch", str(recipe), "--provider", "sim"]) == 130
    assert said in capsys.readouterr().err
    assert sim.json("ls")["runs"] == []
