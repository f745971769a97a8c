"""Every dataset type reads its own rows as Axolotl does, and says what is wrong with any other row."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import RecipeError
from orchestrator.recipe import formats
from orchestrator.recipe.data import Row, examples
from orchestrator.recipe.model import DatasetRef
from tests.data.conftest import FIXTURES, as_jsonl

SHAREGPT = {"field_messages": "conversations", "message_property_mappings": {"role": "from", "content": "value"}}


def convert(row: dict[str, Any], kind: str | None = None, **ref: Any) -> dict[str, Any]:
    return formats.converter(DatasetRef(path="x", type=kind, **ref))(row)


def fixture(name: str, kind: str, **ref: Any) -> list[Row]:
    return list(examples(DatasetRef(path=name, type=kind, **ref), FIXTURES))


ALPACA_WITHOUT_INPUT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\nAdd\n\n### Response:\n"
)
ALPACA_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\nAdd\n\n### Input:\n1 {2}\n\n### Response:\n"
)


@pytest.mark.parametrize(
    ("kind", "row", "prompt"),
    [
        ("alpaca", {"instruction": "Add", "input": ""}, ALPACA_WITHOUT_INPUT),
        ("alpaca", {"instruction": "Add"}, ALPACA_WITHOUT_INPUT),
        ("alpaca", {"instruction": "Add", "input": None}, ALPACA_WITHOUT_INPUT),
        ("alpaca", {"instruction": "Add", "input": "1 {2}"}, ALPACA_WITH_INPUT),
        ("alpaca_instruct.load", {"instruction": "Add", "input": "1 {2}"}, ALPACA_WITH_INPUT),
        ("alpaca_instruct.load_no_prompt", {"instruction": "Add"}, "### Instruction:\nAdd\n\n### Response:\n"),
        ("alpaca_chat.load_no_prompt", {"instruction": "Add", "input": "1"}, "USER: Add\n1\nASSISTANT:"),
        (
            "alpaca_w_system.load_instruct",
            {"instruction": "Add", "system": "S"},
            "S\n\n### Instruction:\nAdd\n\n### Response:\n",
        ),
        ("alpaca_w_system", {"instruction": "Add", "system": "S"}, "SYSTEM: S\nUSER: Add\nASSISTANT:"),
        ("alpaca_w_system", {"instruction": "Add", "system": ""}, "USER: Add\nASSISTANT:"),
    ],
)
def test_alpaca_prompts_are_spelled_as_axolotl_spells_them(kind: str, row: dict[str, Any], prompt: str) -> None:
    assert convert({**row, "output": "3"}, kind) == {"prompt": prompt, "completion": "3"}


def test_other_styles_and_prompts_of_alpaca_are_known() -> None:
    row = {"instruction": "Add", "output": "3"}
    assert convert(row, "alpaca:chatml")["prompt"].endswith("<|im_start|>user\nAdd<|im_end|>\n<|im_start|>assistant\n")
    assert convert(row, "alpaca:phi")["prompt"].endswith("<|user|>\nAdd<|end|>\n<|assistant|>\n")
    assert convert(row, "alpaca_chat.load_concise")["prompt"].startswith("SYSTEM: Below is an instruction from a USER")
    assert convert({"question": "Why?", "answer": "So"}, "alpaca_chat.load_qa")["completion"] == "So"


def test_a_user_defined_prompt_names_its_fields_and_formats() -> None:
    names = {
        "field_instruction": "q",
        "field_output": "a",
        "system_prompt": "Be kind. ",
        "no_input_format": "[{instruction}] ",
    }
    assert convert({"q": "Why {so}?", "a": "So"}, format=names) == {
        "prompt": "Be kind. [Why {so}?] ",
        "completion": "So",
    }
    assert convert({"q": "Why", "input": "x", "a": "So", "system": ""}, format=names)["prompt"] == "Be kind. Why x "


@pytest.mark.parametrize("text", ["{question}", "{instruction", "{0}", "{instruction.nope}"])
def test_a_user_defined_format_that_cannot_be_filled_in_is_refused_once(text: str) -> None:
    with pytest.raises(formats.UnknownTypeError, match=r"type\.format"):
        convert({}, format={"format": text})


def test_completion_rows_are_plain_text_from_the_named_field() -> None:
    assert convert({"text": "a"}, "completion") == {"text": "a"}
    assert convert({"body": "a", "text": 3}, "completion", text_field="body") == {"text": "a"}


def test_conversations_are_read_by_the_names_the_recipe_gives() -> None:
    row = {"talk": [{"who": "boss", "says": "a"}, {"who": "bot", "says": "b"}]}
    shape = {
        "field_messages": "talk",
        "message_property_mappings": {"role": "who", "content": "says"},
        "roles": {"user": ("boss",), "assistant": ("bot",)},
    }
    assert convert(row, "chat_template", **shape) == {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    }


def test_a_system_prompt_beside_the_messages_comes_first() -> None:
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "system": "S"}
    assert convert(row, "chat_template")["messages"][0] == {"role": "system", "content": "S"}


def test_which_messages_are_learned_may_be_said_by_role_or_by_field() -> None:
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "learn": False}]}
    by_role = convert(row, "chat_template", roles_to_train=("user", "assistant"))["messages"]
    assert [message["train"] for message in by_role] == [True, True]
    by_field = convert(row, "chat_template", message_field_training="learn")["messages"]
    assert [message.get("train") for message in by_field] == [None, False]


def test_mixed_up_messages_are_each_reported_with_line_and_reason() -> None:
    found = fixture("data-mixed-types.jsonl", "chat_template")
    assert [row.line for row in found] == [1, 2, 3, 4, 5, 6, 7]
    assert [row.problem for row in found] == [
        "",
        "the content of a message is a list, not text: message 1",
        "the content of a message is a number, not text: message 1",
        "the content of a message is null, not text: message 1",
        "messages is text, not a list of messages",
        "messages is empty",
        "no key 'messages' (keys found: message)",
    ]


@pytest.mark.parametrize(
    "ref", [{"kind": "sharegpt"}, {"kind": "chat_template", **SHAREGPT}], ids=["sharegpt", "mapped"]
)
def test_roles_of_shared_conversations_are_understood_or_reported(ref: dict[str, Any]) -> None:
    found = fixture("data-sharegpt-roles.jsonl", **ref)
    assert [row.number for row in found if row.example] == [1, 2, 8, 9]
    assert {row.number: row.reason for row in found if row.problem} == {
        3: "unknown role 'bing'",
        4: "starts with a reply",
        5: "two user turns follow each other",
        6: "no reply to learn from",
        7: "an empty reply",
    }


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (["hi"], "a message is text, not an object"),
        ([{"role": "user"}], "a message has no key 'content' (keys found: role)"),
        ([{"role": 1, "content": "a"}], "the role of a message is a number"),
        ([{"role": "user", "content": "\ud800"}], "surrogate"),
        ([{"role": "system", "content": "a"}], "nobody speaks but the system"),
        ([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}], "a system message stands behind"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [{}]}], "calls tools"),
        ([{"role": "user", "content": "a"}, *[{"role": "assistant", "content": "b"}] * 2], "two assistant turns"),
    ],
)
def test_a_message_of_the_wrong_shape_is_reported(messages: list[Any], reason: str) -> None:
    with pytest.raises(formats.UnfitRowError) as caught:
        convert({"messages": messages}, "chat_template")
    assert reason in str(caught.value.fault)


def test_an_object_around_the_rows_is_named_by_its_key() -> None:
    (row,) = fixture("data-wrapped.json", "alpaca")
    assert "wraps the rows under the key 'data'" in row.problem
    assert "20 rows" in row.problem


OWN = {
    "alpaca": {"instruction": "a", "input": "", "output": "b"},
    "chat_template": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    "sharegpt": {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    "completion": {"text": "a"},
    "alpaca_chat.load_qa": {"question": "a", "answer": "b"},
}


@pytest.mark.parametrize(("declared", "other"), list(itertools.product(OWN, OWN)))
def test_a_type_reads_its_own_rows_and_no_others(tmp_path: Path, declared: str, other: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(as_jsonl([OWN[other]] * 2))
    found = list(examples(DatasetRef(path="a.jsonl", type=declared), tmp_path))
    assert [row.number for row in found] == [1, 2]
    if declared == other:
        assert all(row.example for row in found)
        return
    for row in found:
        assert row.example is None
        assert f"keys found: {', '.join(OWN[other])}" in row.problem
        if other != "alpaca_chat.load_qa" and declared != "alpaca_chat.load_qa":
            assert f"this looks like `type: {other}`" in row.problem


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"instruction": 7, "output": "b"}, "instruction is a number, not text"),
        ({"instruction": " ", "output": "b"}, "instruction is empty"),
        ({"instruction": "a", "output": ""}, "output is empty"),
        ({"instruction": "a", "output": None}, "output is null, not text"),
        ({"instruction": "a", "input": ["x"], "output": "b"}, "input is a list, not text"),
        ({"instruction": "a"}, "no key 'output' (keys found: instruction)"),
        ({"instruction": "a", "output": "\udfff"}, "surrogate"),
    ],
)
def test_an_alpaca_row_of_the_wrong_shape_is_reported(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(formats.UnfitRowError) as caught:
        convert(row, "alpaca")
    assert reason in str(caught.value.fault)


LEAVES = st.none() | st.booleans() | st.integers() | st.sampled_from(["", "a", "user", "gpt", "\ud800"])
TURNS = st.dictionaries(st.sampled_from(["role", "content", "from", "value", "tool_calls"]), LEAVES, max_size=4)
FIELDS = ["messages", "conversations", "instruction", "input", "output", "text", "system"]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    row=st.dictionaries(st.sampled_from(FIELDS), LEAVES | st.lists(LEAVES | TURNS, max_size=3)),
    kind=st.sampled_from(formats.KNOWN_TYPES),
)
def test_no_row_makes_a_type_fail_otherwise_than_by_a_report(row: dict[str, Any], kind: str) -> None:
    try:
        shape = set(convert(row, kind))
    except formats.UnfitRowError as error:
        shape = {str(error.fault)}
    assert shape
    assert shape in ({"messages"}, {"prompt", "completion"}, {"text"}) or all(len(reason) > 5 for reason in shape)


def test_an_unknown_or_missing_type_is_a_problem_of_the_recipe(tmp_path: Path) -> None:
    for kind, said in (("alpacca", "type 'alpacca'"), (None, "type is missing")):
        with pytest.raises(RecipeError, match=said):
            list(examples(DatasetRef(path="a.jsonl", type=kind), tmp_path))
