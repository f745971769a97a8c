"""The shapes of rows that Axolotl's dataset types name, turned into examples: messages, prompt and completion, or text.

Prompts are spelled as Axolotl 0.21 spells them, so that a recipe means the same whichever trainer runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from orchestrator.recipe.model import DatasetRef
from orchestrator.recipe.readers import Fault, name_of

Example = dict[str, Any]
Convert = Callable[[Mapping[str, Any]], Example]


class UnfitRowError(ValueError):
    """A row that does not have the shape its type asks for."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.fault = Fault(reason, detail)


class UnknownTypeError(ValueError):
    """A dataset type that is not known here, or field names that make no sense."""


@dataclass(frozen=True, slots=True)
class _Style:
    """How a system prompt, a turn with input, and a turn without are spelled."""

    system: str
    turn: str
    turn_without_input: str


_ASSISTANT = "<|im_start|>assistant\n"
_STYLES = {
    "instruct": _Style(
        "{system}\n\n",
        "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n",
        "### Instruction:\n{instruction}\n\n### Response:\n",
    ),
    "chat": _Style("SYSTEM: {system}\n", "USER: {instruction}\n{input}\nASSISTANT:", "USER: {instruction}\nASSISTANT:"),
    "chatml": _Style(
        "<|im_start|>system\n{system}<|im_end|>\n",
        "<|im_start|>user\n{instruction}\n{input}<|im_end|>\n" + _ASSISTANT,
        "<|im_start|>user\n{instruction}<|im_end|>\n" + _ASSISTANT,
    ),
    "phi": _Style(
        "<|system|>\n{system}<|end|>\n",
        "<|user|>\n{instruction}<|end|>{input}<|assistant|>",
        "<|user|>\n{instruction}<|end|>\n<|assistant|>\n",
    ),
}
_TASK = "Below is an instruction that describes a task"
_ALPACA = (
    (
        f"{_TASK}, paired with an input that provides further context. "
        "Write a response that appropriately completes the request."
    ),
    f"{_TASK}. Write a response that appropriately completes the request.",
)
_USER_TASK = "Below is an instruction from a USER that describes a task"
_CONCISE = (
    (
        f"{_USER_TASK}, paired with an input that provides further context. "
        "The ASSISTANT writes a response that concisely and appropriately completes the request.\n\n"
    ),
    f"{_USER_TASK}. The ASSISTANT writes a response that appropriately and concisely completes the request.\n\n",
)
_SILENT = ("", "")


@dataclass(frozen=True, slots=True)
class _Alpaca:
    style: str
    systems: tuple[str, str] = _ALPACA  # with input, without
    fields: tuple[str, str, str] = ("instruction", "input", "output")
    system_field: str = ""  # where the row brings its own


_TYPES: dict[str, _Alpaca] = {
    "alpaca": _Alpaca("instruct"),
    **{f"alpaca:{style}": _Alpaca(style) for style in _STYLES},
    "alpaca_chat": _Alpaca("chat"),
    "alpaca_chat.load_concise": _Alpaca("chat", _CONCISE),
    "alpaca_chat.load_qa": _Alpaca("chat", _CONCISE, ("question", "", "answer")),
    "alpaca_chat.load_no_prompt": _Alpaca("chat", _SILENT),
    "alpaca_instruct": _Alpaca("instruct"),
    "alpaca_instruct.load_no_prompt": _Alpaca("instruct", _SILENT),
    "alpaca_w_system": _Alpaca("chat", system_field="system"),
    "alpaca_w_system.load_chat": _Alpaca("chat", system_field="system"),
    "alpaca_w_system.load_instruct": _Alpaca("instruct", system_field="system"),
}
_CHAT_TYPES = ("chat_template", "sharegpt", "messages")
_TEXT_TYPES = ("completion", "pretrain")
KNOWN_TYPES = (*_TYPES, *_CHAT_TYPES, *_TEXT_TYPES)

ROLES = {  # the row's word -> ours
    "human": "user",
    "user": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "system": "system",
    "tool": "tool",
}


def converter(ref: DatasetRef) -> Convert:
    """The function that turns a row of this dataset into an example, or raises UnfitRowError. UnknownTypeError."""
    if ref.format:
        return _user_defined(ref.format)
    if not ref.type:
        raise UnknownTypeError("type is missing")
    kind = ref.type.removesuffix(".load")
    if kind in _TYPES:
        return partial(_alpaca, _TYPES[kind])
    if kind in _TEXT_TYPES:
        return partial(_completion, ref.text_field or "text")
    if kind in _CHAT_TYPES:
        return partial(_chat, _Chat.of(ref, kind))
    raise UnknownTypeError(f"type {ref.type!r} is not one that can be checked here")


def _text(row: Mapping[str, Any], key: str, *, needed: bool = True) -> str:
    value = row.get(key)
    if value is None and not needed:
        return ""
    if key not in row:
        raise _misses(row, key)
    if not isinstance(value, str):
        raise UnfitRowError(f"{key} is {name_of(value)}, not text")
    if needed and not value.strip():
        raise UnfitRowError(f"{key} is empty")
    return _sound(value, key)


def _sound(value: str, what: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UnfitRowError(f"{what} holds half of a surrogate pair, which is not text") from None
    return value


def _misses(row: Mapping[str, Any], key: str) -> UnfitRowError:
    for wrapping, inside in row.items():
        rows = isinstance(inside, list) and inside and all(isinstance(item, dict) for item in inside)
        if rows and not {"role", "from"} & set(inside[0]):
            return UnfitRowError(
                f"one object wraps the rows under the key {wrapping!r}",
                f"save the {len(inside)} rows themselves, one per line or as an array",
            )
    found = ", ".join(map(str, list(row)[:20])) or "none"
    return UnfitRowError(f"no key {key!r} (keys found: {found})", _likely_type(row, key))


def _likely_type(row: Mapping[str, Any], missing: str) -> str:
    if missing in ("output", "answer"):
        return ""  # the type is right, the row is not
    for key, kind in (("messages", "chat_template"), ("instruction", "alpaca"), ("text", "completion")):
        if key in row:
            return f"this looks like `type: {kind}`"
    if "conversations" in row:
        return "this looks like `type: sharegpt`"
    return ""


# --- instruction and response -------------------------------------------------------------------------------------


def _alpaca(kind: _Alpaca, row: Mapping[str, Any]) -> Example:
    instruction_key, input_key, output_key = kind.fields
    instruction = _text(row, instruction_key)
    given = _text(row, input_key, needed=False) if input_key else ""
    output = _text(row, output_key)
    style = _STYLES[kind.style]
    system = kind.systems[0] if given else kind.systems[1]
    if kind.system_field:
        system = _text(row, kind.system_field, needed=False)
    before = style.system.format(system=system) if system else ""
    turn = style.turn if given else style.turn_without_input
    return {"prompt": before + turn.format(instruction=instruction, input=given), "completion": output}


def _user_defined(names: Mapping[str, str]) -> Convert:
    def named(key: str, default: str) -> str:
        return names.get(key) or default

    def convert(row: Mapping[str, Any]) -> Example:
        instruction = _text(row, named("field_instruction", "instruction"))
        given = _text(row, named("field_input", "input"), needed=False)
        output = _text(row, named("field_output", "output"))
        system = _text(row, named("field_system", "system"), needed=False) or names.get("system_prompt", "")
        before = named("system_format", "{system}").format(system=system) if system else ""
        turn = named("format", "{instruction} {input} ") if given else named("no_input_format", "{instruction} ")
        return {"prompt": before + turn.format(instruction=instruction, input=given), "completion": output}

    for key, allowed in (
        ("format", {"instruction": "", "input": ""}),
        ("no_input_format", {"instruction": ""}),
        ("system_format", {"system": ""}),
    ):
        try:
            names.get(key, "").format(**allowed)
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            may = ", ".join(f"{{{name}}}" for name in allowed)
            raise UnknownTypeError(f"type.{key} cannot be filled in ({error}); it may hold {may}") from None
    return convert


def _completion(key: str, row: Mapping[str, Any]) -> Example:
    return {"text": _text(row, key)}


# --- conversations ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Chat:
    messages: str
    role: str
    content: str
    roles: Mapping[str, str]
    system: str
    learned_roles: tuple[str, ...] = ()
    learned_field: str = ""

    @classmethod
    def of(cls, ref: DatasetRef, kind: str) -> _Chat:
        named = ref.message_property_mappings
        sharegpt = kind == "sharegpt"
        roles = {word: role for role, words in ref.roles.items() for word in words} if ref.roles else ROLES
        return cls(
            messages=ref.field_messages or ("conversations" if sharegpt else "messages"),
            role=named.get("role") or ("from" if sharegpt else "role"),
            content=named.get("content") or ("value" if sharegpt else "content"),
            roles=roles,
            system=ref.field_system or "system",
            learned_roles=tuple(roles.get(word, word) for word in ref.roles_to_train),
            learned_field=ref.message_field_training or "",
        )


def _chat(shape: _Chat, row: Mapping[str, Any]) -> Example:
    turns = row.get(shape.messages)
    if shape.messages not in row:
        raise _misses(row, shape.messages)
    if not isinstance(turns, Sequence) or isinstance(turns, str):
        raise UnfitRowError(f"{shape.messages} is {name_of(turns)}, not a list of messages")
    if not turns:
        raise UnfitRowError(f"{shape.messages} is empty")
    messages = [_message(shape, turn, i) for i, turn in enumerate(turns, start=1)]
    system = row.get(shape.system)
    if isinstance(system, str) and system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": _sound(system, shape.system)})
    _check_turns(messages, {"assistant", *shape.learned_roles})
    if shape.learned_roles not in ((), ("assistant",)):
        for message in messages:
            message.setdefault("train", message["role"] in shape.learned_roles)
    return {"messages": messages}


def _message(shape: _Chat, turn: object, number: int) -> dict[str, Any]:
    place = f"message {number}"
    if not isinstance(turn, dict):
        raise UnfitRowError(f"a message is {name_of(turn)}, not an object", place)
    for key in (shape.role, shape.content):
        if key not in turn:
            found = ", ".join(map(str, turn)) or "none"
            raise UnfitRowError(f"a message has no key {key!r} (keys found: {found})", place)
    said, content = turn[shape.role], turn[shape.content]
    if not isinstance(said, str):
        raise UnfitRowError(f"the role of a message is {name_of(said)}, not text", place)
    role = shape.roles.get(said)
    if role is None:
        raise UnfitRowError(f"unknown role {said!r}", f"{place}; known are {', '.join(shape.roles)}")
    if turn.get("tool_calls"):
        raise UnfitRowError("a message calls tools, which is not supported", place)
    if not isinstance(content, str):
        raise UnfitRowError(f"the content of a message is {name_of(content)}, not text", place)
    message: dict[str, Any] = {"role": role, "content": _sound(content, "a message")}
    if shape.learned_field and turn.get(shape.learned_field) is not None:
        learned = turn[shape.learned_field]
        if not isinstance(learned, bool):
            raise UnfitRowError(f"{shape.learned_field} is {name_of(learned)}, not true or false", place)
        message["train"] = learned
    return message


def _check_turns(messages: list[dict[str, Any]], repliers: set[str]) -> None:
    roles = [message["role"] for message in messages]
    if "system" in roles[1:]:
        raise UnfitRowError("a system message stands behind the first place", f"message {roles.index('system', 1) + 1}")
    spoken = [role for role in roles if role != "system"]
    if not spoken:
        raise UnfitRowError("nobody speaks but the system")
    if spoken[0] == "assistant":
        raise UnfitRowError("starts with a reply")
    for number, (before, role) in enumerate(pairwise(roles), start=2):
        if before == role and role in ("user", "assistant"):
            raise UnfitRowError(f"two {role} turns follow each other", f"message {number}")
    if not repliers & set(roles):
        raise UnfitRowError("no reply to learn from")
    for number, message in enumerate(messages, start=1):
        if message["role"] == "assistant" and not message["content"].strip():
            raise UnfitRowError("an empty reply", f"message {number}")
