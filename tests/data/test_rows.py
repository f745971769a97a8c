"""What the model learns from is what the assistant says, whole and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.recipe import rows
from tests.data.conftest import ALTERNATES, CHATML, FORGETFUL, MARKED, SMOLLM2, build_tokenizer, chat

ANY_TEXT = st.text(
    st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20
).filter(lambda text: text.strip() and "<|" not in text and "</think>" not in text)  # fmt: skip
QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def learned(row: rows.Encoded, tokenizer: Any) -> str:
    return str(tokenizer.decode([token for token, on in zip(row.input_ids, row.mask, strict=True) if on]))


def encode(example: dict[str, Any], tokenizer: Any, **more: Any) -> rows.Encoded:
    return rows.encode(example, tokenizer, sequence_len=None, **more)


@pytest.mark.parametrize("template", [CHATML, MARKED, SMOLLM2], ids=["plain", "marked", "smollm2"])
@QUICK
@given(said=st.lists(ANY_TEXT, min_size=2, max_size=6).filter(lambda said: len(said) % 2 == 0))
def test_exactly_the_replies_and_their_ends_are_learned(tokenizer: Any, template: str, said: list[str]) -> None:
    tokenizer.chat_template = template
    row = encode(chat(*said), tokenizer)
    assert len(row.mask) == len(row.input_ids) == row.full_length
    whole = tokenizer.apply_chat_template(chat(*said)["messages"], tokenize=False)
    assert row.input_ids == tokenizer(whole, add_special_tokens=False)["input_ids"]
    found = learned(row, tokenizer)
    assert found.split("<|im_end|>")[:-1] == said[1::2]
    assert found.count("<|im_end|>") == len(said) // 2


@QUICK
@given(said=st.lists(ANY_TEXT, min_size=2, max_size=4).filter(lambda said: len(said) % 2 == 0))
def test_a_template_that_marks_its_replies_and_one_that_does_not_teach_the_same(
    tokenizer: Any, said: list[str]
) -> None:
    tokenizer.chat_template = CHATML
    plain = encode(chat(*said), tokenizer)
    tokenizer.chat_template = MARKED
    assert encode(chat(*said), tokenizer) == plain


def test_the_mask_is_the_one_that_transformers_itself_makes_of_a_marked_template(tokenizer: Any) -> None:
    tokenizer.chat_template = MARKED
    example = chat("The capital?", "Paris, é and 数", "And then?", "a number")
    theirs = tokenizer.apply_chat_template(
        example["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    row = encode(example, tokenizer)
    assert row.input_ids == theirs["input_ids"]
    assert row.mask == theirs["assistant_masks"]


def test_a_tokenizer_that_cannot_place_its_tokens_teaches_the_same(tokenizer: Any) -> None:
    class Slow:
        is_fast = False
        chat_template = CHATML
        bos_token_id, eos_token_id, eos_token = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.eos_token

        def apply_chat_template(self, *args: Any, **more: Any) -> Any:
            return tokenizer.apply_chat_template(*args, **more)

        def __call__(self, texts: Any, **more: Any) -> Any:
            return tokenizer(texts, **more)

    example = chat("Where is Paris?", "In France", "Sure?", "Yes")
    assert encode(example, Slow()) == encode(example, tokenizer)


def test_thinking_that_a_template_cuts_from_old_replies_is_not_missed(tokenizer: Any) -> None:
    tokenizer.chat_template = FORGETFUL
    row = encode(chat("a", "<think>hm</think>first", "b", "<think>so</think>second"), tokenizer)
    assert learned(row, tokenizer) == "first<|im_end|><think>so</think>second<|im_end|>"


def test_a_message_may_say_by_itself_whether_it_is_learned(tokenizer: Any) -> None:
    example = chat("a", "wrong", "no, b", "right")
    example["messages"][1]["train"] = False
    assert learned(encode(example, tokenizer), tokenizer) == "right<|im_end|>"
    example["messages"][2]["train"] = True
    assert "no, b<|im_end|>" in learned(encode(example, tokenizer), tokenizer)


def test_everything_is_learned_when_the_recipe_trains_on_inputs(tokenizer: Any) -> None:
    row = encode(chat("a", "b"), tokenizer, train_on_inputs=True)
    assert set(row.mask) == {1}


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "no chat template"),
        (ALTERNATES, "must alternate"),
        ("{% for m in messages %}{% endfor %}", "as nothing"),
        ("{{ messages[0]['content'] }}", "leaves out what the user says"),
        ("{{ nope.nope }}", "refuses this row"),
        ("{{ messages | length }}:{% for m in messages %}{{ m['content'] }};{% endfor %}", "differently"),
        ("{% for m in messages | reverse %}{{ m['content'] }};{% endfor %}", "differently"),
    ],
)
def test_a_row_that_the_template_refuses_or_swallows_is_refused_with_its_reason(
    tokenizer: Any, template: str | None, reason: str
) -> None:
    tokenizer.chat_template = template
    example = {
        "messages": [
            {"role": "user", "content": "first"},
            {"role": "user", "content": "second"},
            {"role": "assistant", "content": "third"},
        ]
    }
    with pytest.raises(rows.RowRefused, match=reason):
        encode(example, tokenizer)


@pytest.mark.parametrize(
    ("example", "reason"),
    [
        ({"message": "x"}, "keys found: message"),
        ({"messages": []}, "no messages"),
        ({"messages": [{"role": "user", "content": 7}]}, "text expected, int found"),
        ({"text": None}, "text expected"),
        ({"text": "\ud800"}, "surrogate"),
        ({"text": ""}, "no tokens"),
        ({"messages": [{"role": "assistant", "content": "hi"}]}, "starts with a reply"),
    ],
)
def test_an_example_of_no_known_shape_is_refused(tokenizer: Any, example: dict[str, Any], reason: str) -> None:
    with pytest.raises(rows.RowRefused, match=reason):
        encode(example, tokenizer)


def test_one_refused_row_leaves_its_neighbours_alone(tokenizer: Any) -> None:
    good, bad = {"text": "Paris"}, {"text": 1}
    found = rows.encode_many([good, bad, chat("a", "b"), {"prompt": "a", "completion": "b"}], tokenizer)
    assert [type(row) for row in found] == [rows.Encoded, rows.RowRefused, rows.Encoded, rows.Encoded]
    assert found[0] == encode(good, tokenizer)


@QUICK
@given(prompt=ANY_TEXT, completion=ANY_TEXT)
def test_a_prompt_is_tokenised_as_the_model_will_meet_it_and_only_the_completion_is_learned(
    tokenizer: Any, prompt: str, completion: str
) -> None:
    row = encode({"prompt": prompt, "completion": completion}, tokenizer)
    asked = tokenizer(prompt)["input_ids"]
    assert row.input_ids[: len(asked)] == asked
    assert row.mask == [0] * len(asked) + [1] * (len(row.input_ids) - len(asked))
    assert learned(row, tokenizer) == completion + "<|im_end|>"
    assert row.input_ids.count(tokenizer.eos_token_id) == 1


def test_every_row_begins_with_one_bos_and_ends_with_one_eos() -> None:
    tokenizer = build_tokenizer("{{ bos_token }}" + CHATML, bos=True)
    for example in (
        {"text": "Paris"},
        {"text": "<s>Paris<|im_end|>"},
        {"prompt": "<s>The", "completion": " capital"},
        {"prompt": "The ", "completion": "capital<|im_end|>"},
        {"prompt": "", "completion": "capital"},
        chat("a", "b"),
    ):
        row = encode(example, tokenizer)
        assert row.input_ids.count(tokenizer.bos_token_id) == 1, example
        assert row.input_ids[0] == tokenizer.bos_token_id
        if "messages" not in example:
            assert row.input_ids.count(tokenizer.eos_token_id) == 1, example
            assert row.input_ids[-1] == tokenizer.eos_token_id


def encoded(length: int, prompt: int, *, splits: bool = False) -> rows.Encoded:
    return rows.Encoded(list(range(length)), [0] * prompt + [1] * (length - prompt), length, splits)


@pytest.mark.parametrize(
    ("row", "strategy", "verdict", "lengths"),
    [
        (encoded(8, 2), "drop", "whole", [8]),
        (encoded(9, 2), "drop", "too_long", []),
        (encoded(9, 2), "raise", "too_long", []),
        (encoded(9, 2), "truncate", "truncated", [8]),
        (encoded(12, 8), "truncate", "unsupervised", []),
        (encoded(8, 8), "drop", "unsupervised", []),
        (encoded(1, 0), "drop", "unsupervised", []),  # nothing stands before it to predict it from
        (encoded(20, 0, splits=True), "drop", "split", [8, 8, 4]),
        (encoded(17, 0, splits=True), "drop", "split", [8, 8]),  # one lone token teaches nothing
    ],
)
def test_a_long_row_is_dropped_cut_or_split_as_the_recipe_says(
    row: rows.Encoded, strategy: str, verdict: str, lengths: list[int]
) -> None:
    assert rows.verdict(row, 8, strategy) == verdict
    assert [len(piece.input_ids) for piece in rows.fit(row, 8, strategy)] == lengths


def test_an_unknown_strategy_is_an_error() -> None:
    with pytest.raises(ValueError, match="drop, truncate, raise"):
        rows.fit(encoded(3, 1), 8, "dorp")


def test_encode_cuts_and_remembers_the_full_length(tokenizer: Any) -> None:
    row = rows.encode({"text": "The capital of France is Paris " * 5}, tokenizer, sequence_len=7)
    assert len(row.input_ids) == len(row.mask) == 7
    assert row.full_length > 7


def test_prepare_yields_what_the_check_counts_across_batches(tokenizer: Any) -> None:
    examples = [{"text": "Paris"}, {"text": 3}, chat("a", "b " * 99)] * 400
    prepared = list(rows.prepare(iter(examples), tokenizer, sequence_len=32))
    assert len(prepared) == 400
    assert {tuple(row.input_ids) for row in prepared} == {tuple(encode({"text": "Paris"}, tokenizer).input_ids)}


@QUICK
@given(count=st.integers(0, 300), share=st.floats(0, 0.99), seed=st.integers(0, 9))
def test_rows_held_out_are_drawn_by_seed_and_rounded_up(count: int, share: float, seed: int) -> None:
    kept_out = rows.hold_out(count, share, seed)
    assert kept_out == rows.hold_out(count, share, seed)
    assert kept_out <= set(range(count))
    assert len(kept_out) == min(count, -int(-share * count // 1))
    assert len(rows.hold_out(count, 7, seed)) == min(count, 7)


def test_the_file_needs_nothing_but_the_standard_library() -> None:
    source = Path(rows.__file__)
    code = "import sys; sys.path[:0] = [sys.argv[1]]; import rows, steps; print(sorted(set(sys.modules) & {'orchestrator', 'transformers'}))"
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(source.parent)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"
