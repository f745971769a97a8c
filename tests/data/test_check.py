"""Nothing starts on data that would teach nothing, and what the report says is what will be trained."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator import codec
from orchestrator.errors import RecipeError
from orchestrator.recipe import rows as encoding
from orchestrator.recipe.data import DataReport, check, examples
from orchestrator.recipe.model import DatasetRef
from tests.data.conftest import ALTERNATES, FIXTURES, MARKED, MakeRecipe, build_tokenizer, chat

LONG = "word " * 100
QUICK = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def refused(recipe: Any, **more: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        check(recipe, **more)
    assert caught.value.problems
    return str(caught.value)


def test_the_report_counts_what_training_will_see(recipe: MakeRecipe, tokenizer: Any, tmp_path: Path) -> None:
    rows = [chat("a", "b")] * 30 + [chat("a", LONG)] * 2 + [{"nope": 1}]
    report = check(recipe(rows, micro_batch_size=2, gradient_accumulation_steps=4, num_epochs=3), tokenizer=tokenizer)
    assert (report.rows_in, report.rows_used, report.dropped, report.faulty) == (33, 30, 2, 1)
    assert (report.sequences, report.steps_per_epoch, report.steps, report.rows_per_step) == (30, 4, 12, 8)
    found = examples(DatasetRef("rows.jsonl", "chat_template"), tmp_path)
    trained = list(encoding.prepare((r.example for r in found if r.example), tokenizer, sequence_len=64))
    assert report.sequences == len(trained)
    assert report.tokens == sum(len(row.input_ids) for row in trained)
    assert report.supervised_tokens == sum(row.supervised for row in trained)
    assert sum(item.rows for item in report.histogram) == 32
    assert report.histogram[-1].up_to_tokens >= report.longest > 64
    assert report.problems[0].line == 33
    assert report.problem_counts == {"no key 'messages' (keys found: nope)": 1}
    assert [notice.split(" (")[0] for notice in report.notices] == ["1 of 33 rows", "2 of 33 rows"]


def test_the_report_survives_the_round_trip_through_the_run_record(recipe: MakeRecipe, tokenizer: Any) -> None:
    report = check(recipe([chat("a", "b")] * 9 + [{"x": 1}]), tokenizer=tokenizer)
    assert codec.load(DataReport, codec.dump(report), where="data.json") == report


def test_nine_rows_in_ten_too_long_needs_to_be_allowed(recipe: MakeRecipe, tokenizer: Any) -> None:
    rows = [chat("a", "b")] * 10 + [chat("a", LONG)] * 90
    said = refused(recipe(rows), tokenizer=tokenizer)
    assert "90 of 100 rows (90 %) would be left out: 90 longer than sequence_len 64" in said
    assert "tune.allow_drop (now 0.1)" in said
    report = check(recipe(rows, allow_drop=0.9), tokenizer=tokenizer)
    assert (report.rows_in, report.rows_used, report.excess_length_strategy) == (100, 10, "drop")
    cut = check(recipe(rows, excess_length_strategy="truncate"), tokenizer=tokenizer)
    assert (cut.rows_used, cut.truncated, cut.dropped) == (100, 90, 0)
    strict = recipe(rows, excess_length_strategy="raise", allow_drop=1.0)
    assert "90 of 100 rows are longer than sequence_len 64; raise sequence_len" in refused(strict, tokenizer=tokenizer)


@pytest.mark.parametrize("strategy", ["drop", "truncate"])
def test_prompts_that_fill_the_context_leave_nothing_to_learn(
    recipe: MakeRecipe, tokenizer: Any, strategy: str
) -> None:
    said = refused(recipe([chat(LONG, "b")] * 5, excess_length_strategy=strategy), tokenizer=tokenizer)
    assert "0 % of rows have supervised tokens" in said
    assert "either the prompts fill sequence_len 64" in said
    assert "or the chat template and field names find no reply" in said


def test_a_template_that_marks_no_reply_leaves_nothing_to_learn(recipe: MakeRecipe, tokenizer: Any) -> None:
    tokenizer.chat_template = MARKED.replace("'assistant'", "'model'")
    assert "0 % of rows have supervised tokens" in refused(recipe([chat("a", "b")] * 5), tokenizer=tokenizer)


def test_some_rows_without_anything_to_learn_are_a_notice_with_counts(recipe: MakeRecipe, tokenizer: Any) -> None:
    rows = [chat("a", "b")] * 6 + [chat(LONG, "b")] * 4
    report = check(recipe(rows, excess_length_strategy="truncate"), tokenizer=tokenizer)
    assert (report.supervised_share, report.unsupervised, report.rows_used) == (0.6, 4, 6)
    assert "4 of 10 rows (40 %) have no supervised tokens" in report.notices[0]


def test_rows_that_the_template_refuses_are_counted_exactly(recipe: MakeRecipe, tokenizer: Any) -> None:
    tokenizer.chat_template = ALTERNATES
    bad = {"messages": [{"role": "system", "content": "s"}, *chat("a", "b")["messages"]]}
    rows = [bad if i % 4 == 0 else chat("a", "b") for i in range(40)]
    said = refused(recipe(rows), tokenizer=tokenizer)
    assert "10 of 40 rows (25 %) would be left out: 10 refused by the chat template" in said
    assert "rows.jsonl:5: row 5 - the chat template refuses this row: Conversation roles must alternate" in said
    report = check(recipe(rows, allow_drop=0.25), tokenizer=tokenizer)
    assert (report.template_refused, report.rows_used) == (10, 30)
    assert "refuses every row (4)" in refused(recipe([bad] * 4, allow_drop=1.0), tokenizer=tokenizer)


def test_zero_steps_are_refused_with_the_numbers(recipe: MakeRecipe, tokenizer: Any) -> None:
    packed = recipe([chat("a", "b")] * 3, trainer="axolotl", sample_packing=True, micro_batch_size=4)
    said = refused(packed, tokenizer=tokenizer)
    assert "0 steps: 3 sequences, packed into" in said
    assert "at 4 per step" in said
    all_held_out = recipe([chat("a", "b")] * 3, val_set_size=3)
    assert "0 steps: 3 sequences, 3 of them held out" in refused(all_held_out, tokenizer=tokenizer)


def test_less_than_one_whole_step_is_a_notice(recipe: MakeRecipe, tokenizer: Any) -> None:
    report = check(recipe([chat("a", "b")] * 10, gradient_accumulation_steps=64), tokenizer=tokenizer)
    assert report.steps == 1
    assert "10 sequences do not fill one step of 64" in report.notices[0]


def test_held_out_rows_are_checked_but_not_trained_on(recipe: MakeRecipe, tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text(json.dumps(chat("a", "b")) + "\n" + json.dumps({"x": 1}) + "\n")
    made = recipe([chat("a", "b")] * 20, val_set_size=0.1)
    assert (check(made, tokenizer=tokenizer).sequences, check(made, tokenizer=tokenizer).held_out) == (18, 2)
    two = recipe(ref=(*made.datasets, DatasetRef("test.jsonl", "chat_template", held_out=True)))
    report = check(two, tokenizer=tokenizer)
    assert (report.sequences, report.rows_in, report.faulty) == (20, 22, 1)
    assert [(item.rows, item.used, item.held_out) for item in report.datasets] == [(20, 20, False), (2, 1, True)]


def test_datasets_are_joined_in_order_and_may_differ_in_type(
    recipe: MakeRecipe, tokenizer: Any, tmp_path: Path
) -> None:
    (tmp_path / "t.jsonl").write_text('{"text": "' + "word " * 150 + '"}\n')
    ref = (DatasetRef(str(FIXTURES / "data-alpaca.jsonl"), "alpaca"), DatasetRef("t.jsonl", "completion", index=1))
    report = check(recipe(ref=ref, sequence_len=256), tokenizer=tokenizer)
    assert (report.rows_in, report.rows_used, report.split) == (21, 21, 1)
    assert report.sequences > 21
    swapped = check(recipe(ref=ref[::-1], sequence_len=256), tokenizer=tokenizer)
    assert swapped.data_sha256 != report.data_sha256


@pytest.mark.parametrize("name", ["data-alpaca-bom.jsonl", "data-alpaca-blank-lines.jsonl", "data-array.jsonl"])
def test_the_same_rows_have_the_same_hash_in_every_layout(recipe: MakeRecipe, tokenizer: Any, name: str) -> None:
    plain = check(
        recipe((FIXTURES / "data-alpaca.jsonl").read_bytes(), kind="alpaca", sequence_len=256), tokenizer=tokenizer
    )
    other = check(recipe((FIXTURES / name).read_bytes(), kind="alpaca", sequence_len=256), tokenizer=tokenizer)
    assert plain.rows_in == other.rows_in == 20
    assert (plain.data_sha256, plain.cache_key) == (other.data_sha256, other.cache_key)


@QUICK
@given(at=st.integers(0, 19), letter=st.sampled_from("bcdxyz"))
def test_a_changed_byte_changes_the_hash_though_size_and_time_stay(
    recipe: MakeRecipe, tokenizer: Any, tmp_path: Path, at: int, letter: str
) -> None:
    rows = [chat("a", "a") for _ in range(20)]
    made = recipe(rows)
    path = tmp_path / "rows.jsonl"
    before, stat = check(made, tokenizer=tokenizer), path.stat()
    rows[at]["messages"][1]["content"] = letter
    recipe(rows)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    after = check(made, tokenizer=tokenizer)
    assert after.data_sha256 != before.data_sha256
    assert after.cache_key != before.cache_key


def test_what_decides_the_tokens_decides_the_cache_key(recipe: MakeRecipe, tokenizer: Any) -> None:
    made = [chat("a", "b")] * 20
    first = check(recipe(made), tokenizer=tokenizer)
    assert check(recipe(made), tokenizer=tokenizer) == first
    variants = [
        check(recipe(made, sequence_len=65), tokenizer=tokenizer),
        check(recipe(made, train_on_inputs=True), tokenizer=tokenizer),
        check(recipe(made, excess_length_strategy="truncate"), tokenizer=tokenizer),
        check(recipe(made), tokenizer=build_tokenizer(bos=True)),
        check(recipe(made), tokenizer=build_tokenizer(MARKED)),
    ]
    assert {report.data_sha256 for report in variants} == {first.data_sha256}
    assert len({first.cache_key, *(report.cache_key for report in variants)}) == 6
    other_fields = check(recipe(made, ref={"roles_to_train": ("assistant", "user")}), tokenizer=tokenizer)
    assert other_fields.data_sha256 != first.data_sha256


def test_many_faulty_rows_are_sampled_and_all_counted(recipe: MakeRecipe, tokenizer: Any) -> None:
    rows = [{"conversations": [{"from": "bing", "value": "a"}]}] * 700 + [{"x": 1}] * 50
    said = refused(recipe(rows, kind="sharegpt"), tokenizer=tokenizer)
    assert "750 of 750 rows (100 %) would be left out: 750 cannot be read as the declared type" in said
    assert "rows.jsonl:1: row 1 - unknown role 'bing'" in said
    assert "700 x unknown role 'bing'" in said
    assert "50 x no key 'conversations' (keys found: x)" in said
    assert said.count("rows.jsonl:") == 10


def test_progress_is_told_while_rows_are_read(recipe: MakeRecipe, tokenizer: Any) -> None:
    seen: list[tuple[int, str]] = []
    check(
        recipe([{"text": "a word"}] * 1200, kind="completion"),
        tokenizer=tokenizer,
        progress=lambda *at: seen.append(at),
    )
    assert seen == [(512, "rows.jsonl"), (1024, "rows.jsonl"), (1200, "rows.jsonl")]


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        ({"path": "row.jsonl"}, "no file '{base}/row.jsonl'; did you mean 'rows.jsonl'?"),
        ({"path": "no/such.jsonl"}, "there is no folder '{base}/no' either"),
        ({"path": "pipe.jsonl"}, "'pipe.jsonl' is not a regular file; save the rows in one"),
        ({"path": "."}, "'.' is a folder; name each file as an entry of its own: rows.jsonl"),
        ({"path": "*.jsonl"}, "'*.jsonl' is a pattern; name each file as an entry of its own: rows.jsonl"),
        ({"path": "yahma/alpaca-cleaned"}, "'yahma/alpaca-cleaned' looks like a data set of the Hugging Face Hub"),
        ({"path": "s3://bucket/rows.jsonl"}, "is not a local file; download it"),
        ({"path": "a\0b"}, "a\\x00b'"),
        ({"path": "x" * 5000}, "xxxx'"),
        ({"path": "rows.jsonl", "ds_type": "csv"}, "ds_type 'csv' cannot be read here"),
        ({"path": "rows.jsonl", "split": "train[:10]"}, "split and shards are not supported"),
        ({"path": "rows.jsonl", "type": "alpacca"}, "datasets[0].type - type 'alpacca' is not one"),
    ],
)
def test_an_entry_that_names_no_rows_is_a_problem_with_its_place(
    recipe: MakeRecipe, tokenizer: Any, tmp_path: Path, ref: dict[str, Any], said: str
) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    os.mkfifo(tmp_path / "pipe.jsonl")
    entry = DatasetRef(**{"type": "alpaca", "line": 7, **ref})
    message = refused(recipe(ref=(entry,)), tokenizer=tokenizer)
    assert said.format(base=tmp_path) in message
    assert "recipe.yaml:7: datasets[0]" in message


def test_keys_that_would_be_ignored_are_refused_unless_axolotl_reads_them(recipe: MakeRecipe, tokenizer: Any) -> None:
    ref = {
        "train_on_eos": "last",
        "message_field_training_detail": "parts",
        "extra": {"split_thinking": True, "x": None},
    }
    said = refused(recipe([chat("a", "b")] * 9, ref=ref), tokenizer=tokenizer)
    for key in ("train_on_eos", "message_field_training_detail", "split_thinking"):
        assert f"datasets[0].{key} - the trainer trl does not honour this key" in said
    assert "datasets[0].x" not in said
    assert check(recipe([chat("a", "b")] * 9, ref=ref, trainer="axolotl"), tokenizer=tokenizer).rows_used == 9


def test_all_bad_entries_are_reported_at_once(recipe: MakeRecipe, tokenizer: Any) -> None:
    ref = tuple(DatasetRef(path, "alpaca", index=i) for i, path in enumerate(["a.jsonl", "b.jsonl"]))
    message = refused(recipe(ref=ref), tokenizer=tokenizer)
    assert "datasets[0]" in message
    assert "datasets[1]" in message
    assert "no dataset to train on" in refused(recipe(ref=()), tokenizer=tokenizer)


def test_data_files_name_the_files_below_the_path(recipe: MakeRecipe, tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in ("one", "two"):
        (tmp_path / "d" / name).write_bytes((FIXTURES / "data-alpaca.jsonl").read_bytes())
    ref = DatasetRef("d", "alpaca", data_files=("one", "two"))
    assert check(recipe(ref=(ref,), sequence_len=256), tokenizer=tokenizer).rows_in == 40
    ref = DatasetRef("json", "alpaca", data_files=("d/one",))
    assert check(recipe(ref=(ref,), sequence_len=256), tokenizer=tokenizer).rows_in == 20


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf", b"[]"])
def test_a_file_without_rows_is_refused(recipe: MakeRecipe, tokenizer: Any, data: bytes) -> None:
    assert "'rows.jsonl' holds no rows" in refused(recipe(data), tokenizer=tokenizer)


@QUICK
@given(data=st.binary(max_size=80))
def test_whatever_the_file_holds_the_check_reports_or_refuses(recipe: MakeRecipe, tokenizer: Any, data: bytes) -> None:
    assert "rows.jsonl" in refused(recipe(data), tokenizer=tokenizer)


def test_the_models_own_tokenizer_is_used_when_it_is_here(recipe: MakeRecipe, tmp_path: Path) -> None:
    build_tokenizer().save_pretrained(tmp_path / "model")
    rows = [chat("a", "b")] * 20
    report = check(recipe(rows, base_model="model"))
    assert report.tokenizer == "model"
    assert report.notices == ()
    assert report.tokens == check(recipe(rows), tokenizer=build_tokenizer()).tokens
    chosen = check(recipe(rows, base_model="model", chat_template="jinja", chat_template_jinja=MARKED))
    assert chosen.cache_key != report.cache_key
    other = check(recipe(rows, base_model="model", chat_template="llama3"))
    assert "not with 'llama3'" in other.notices[0]


def test_special_tokens_are_those_of_the_recipe(recipe: MakeRecipe, tmp_path: Path) -> None:
    build_tokenizer().save_pretrained(tmp_path / "model")
    rows = [{"text": "Paris"}] * 20
    plain = check(recipe(rows, kind="completion", base_model="model"))
    other = check(recipe(rows, kind="completion", base_model="model", special_tokens={"eos_token": "<|im_start|>"}))
    assert plain.cache_key != other.cache_key
    unknown = {"kind": "completion", "base_model": "model", "special_tokens": {"pad_token": "<unknown>"}}
    said = refused(recipe(rows, **unknown))
    assert "special_tokens.pad_token - '<unknown>' is not in the tokenizer's vocabulary" in said
    assert check(recipe(rows, trainer="axolotl", **unknown)).tokens == plain.tokens  # Axolotl adds it


def test_without_a_tokenizer_lengths_are_estimates_and_say_so(recipe: MakeRecipe) -> None:
    rows = [chat("Where is the capital of France?", "It is Paris, of course.")] * 20
    report = check(recipe(rows, base_model="nobody/has-this-model"))
    assert report.tokenizer == "approximate"
    assert "token counts are estimates" in report.notices[0]
    assert 15 <= report.longest <= 35
    assert "(lengths are estimates)" in refused(
        recipe([*rows, *[chat("a", LONG)] * 9], base_model="nobody/has-this-model")
    )


def test_code_that_comes_with_a_model_is_never_run(recipe: MakeRecipe, tmp_path: Path) -> None:
    model = tmp_path / "model"
    build_tokenizer().save_pretrained(model)
    config = json.loads((model / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    (model / "evil.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w').close()\nclass Evil: pass\n")
    check(recipe([chat("a", "b")] * 20, base_model="model"))
    assert not (tmp_path / "pwned").exists()
