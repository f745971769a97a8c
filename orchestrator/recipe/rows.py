"""Turn dataset rows into tokens, the same way where data is checked and where it is trained.

This file is copied as it is beside the training script, so it needs nothing but the standard library (Python 3.9 or
newer) and a transformers tokenizer handed in by the caller.

An *example* is one of `{"messages": [{"role", "content"}, ...]}`, `{"prompt", "completion"}` or `{"text"}`. A message
may carry `"train": true|false` to say by itself whether it is learned from; without it, what the assistant says is.
"""

from __future__ import annotations

import math
import random
import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

STRATEGIES = ("drop", "truncate", "raise")  # `raise` refuses in the dataset check; rows that get here are dropped
BATCH_ROWS = 512  # enough to keep a fast tokenizer's threads busy, few enough to stay small in memory

_GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
_OPEN, _CLOSE = "\ue0f0(reply\ue0f1", "\ue0f0reply)\ue0f1"  # private-use characters: no real text holds them


class RowRefused(ValueError):
    """A row that cannot be trained on, and why. Never replaced by blank text."""


class Encoded(NamedTuple):
    """The tokens of one row. `mask` is 1 where the model learns; `full_length` counts the tokens before any cut."""

    input_ids: list[int]
    mask: list[int]
    full_length: int
    splits: bool = False  # plain text: a long row is cut into several, as Axolotl does for `completion`

    @property
    def supervised(self) -> int:
        """How many tokens are learned. The first has nothing before it to be predicted from."""
        return sum(self.mask[1:])


class _Chat(NamedTuple):
    text: str
    spans: list[tuple[int, int]]


class _Pair(NamedTuple):
    prompt: str
    completion: str


class _Plain(NamedTuple):
    text: str


def encode(
    example: Mapping[str, Any], tokenizer: Any, *, sequence_len: int | None, train_on_inputs: bool = False
) -> Encoded:
    """The tokens of one row, cut after `sequence_len` (None: whole). Raises RowRefused."""
    (row,) = encode_many([example], tokenizer, train_on_inputs=train_on_inputs)
    if isinstance(row, RowRefused):
        raise row
    return row if sequence_len is None else _cut(row, 0, sequence_len)


def encode_many(
    examples: Iterable[Mapping[str, Any]], tokenizer: Any, *, train_on_inputs: bool = False
) -> list[Encoded | RowRefused]:
    """The whole tokens of many rows at once, which is much quicker; a refused row stands as its reason."""
    plans = [_plan(example, tokenizer) for example in examples]
    done: dict[int, Encoded] = {}
    chats = [(i, plan) for i, plan in enumerate(plans) if isinstance(plan, _Chat)]
    pairs = [(i, plan) for i, plan in enumerate(plans) if isinstance(plan, _Pair)]
    plain = [(i, plan) for i, plan in enumerate(plans) if isinstance(plan, _Plain)]
    done.update(zip((i for i, _ in chats), _encode_chats([c for _, c in chats], tokenizer)))  # noqa: B905 - Python 3.9
    done.update(zip((i for i, _ in pairs), _encode_pairs([p for _, p in pairs], tokenizer)))  # noqa: B905
    done.update(zip((i for i, _ in plain), _encode_plain([p for _, p in plain], tokenizer)))  # noqa: B905
    rows: list[Encoded | RowRefused] = []
    for i, plan in enumerate(plans):
        if isinstance(plan, RowRefused):
            rows.append(plan)
        elif not done[i].input_ids:
            rows.append(RowRefused("the tokenizer makes no tokens of this row"))
        else:
            rows.append(done[i]._replace(mask=[1] * len(done[i].mask)) if train_on_inputs else done[i])
    return rows


def verdict(row: Encoded, sequence_len: int, strategy: str = "drop") -> str:
    """What becomes of a row: `whole`, `split` or `truncated`; or left out as `too_long` or `unsupervised`."""
    if strategy not in STRATEGIES:
        raise ValueError(f"excess_length_strategy is one of {', '.join(STRATEGIES)}, not {strategy!r}")
    if row.full_length <= sequence_len:
        return "whole" if row.supervised else "unsupervised"
    if row.splits:
        return "split"
    if strategy != "truncate":
        return "too_long"
    return "truncated" if any(row.mask[1:sequence_len]) else "unsupervised"


def fit(row: Encoded, sequence_len: int, strategy: str = "drop") -> list[Encoded]:
    """The row as it is trained: none, one, or (plain text only) several pieces of at most `sequence_len` tokens.

    A piece from which nothing can be learned is left out: alone in a batch it would make the loss NaN.
    """
    kind = verdict(row, sequence_len, strategy)
    if kind == "whole":
        return [row]
    if kind == "truncated":
        return [_cut(row, 0, sequence_len)]
    if kind != "split":
        return []
    starts = range(0, len(row.input_ids), sequence_len)
    return [piece for piece in (_cut(row, at, at + sequence_len) for at in starts) if piece.supervised]


def prepare(
    examples: Iterable[Mapping[str, Any]],
    tokenizer: Any,
    *,
    sequence_len: int,
    strategy: str = "drop",
    train_on_inputs: bool = False,
) -> Iterator[Encoded]:
    """Every row that is trained on, in order: exactly those that the dataset check counted."""
    for batch in batches(examples, BATCH_ROWS):
        for row in encode_many(batch, tokenizer, train_on_inputs=train_on_inputs):
            if not isinstance(row, RowRefused):
                yield from fit(row, sequence_len, strategy)


def hold_out(count: int, val_set_size: float, seed: int) -> frozenset[int]:
    """Which of `count` prepared rows are kept for evaluation: a share below 1, or a number of rows."""
    size = math.ceil(val_set_size * count) if val_set_size < 1 else int(val_set_size)
    return frozenset(random.Random(seed).sample(range(count), min(size, count)))  # noqa: S311 - chosen, not secret


def batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of at most `size` items, in order."""
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _cut(row: Encoded, start: int, end: int) -> Encoded:
    if start == 0 and end >= len(row.input_ids):
        return row
    return row._replace(input_ids=row.input_ids[start:end], mask=row.mask[start:end])


def _plan(example: Mapping[str, Any], tokenizer: Any) -> _Chat | _Pair | _Plain | RowRefused:
    try:
        if "messages" in example:
            return _render_chat(example["messages"], tokenizer)
        if "prompt" in example and "completion" in example:
            return _Pair(_as_text(example["prompt"]), _as_text(example["completion"]))
        if "text" in example:
            return _Plain(_as_text(example["text"]))
    except RowRefused as refused:
        return refused
    return RowRefused(f"neither messages, prompt and completion, nor text; keys found: {', '.join(map(str, example))}")


def _as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise RowRefused(f"text expected, {type(value).__name__} found")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RowRefused("holds half of a surrogate pair, which is not text") from None
    return value


# --- chat ---------------------------------------------------------------------------------------------------------


def _render_chat(messages: Sequence[Mapping[str, Any]], tokenizer: Any) -> _Chat:
    if not isinstance(messages, list) or not messages:
        raise RowRefused("no messages")
    said = [_as_text(message.get("content")) for message in messages]
    turns = [{"role": _as_text(message.get("role")), "content": text} for message, text in zip(messages, said)]  # noqa: B905
    template = _template(tokenizer)
    text = _render(tokenizer, turns)
    if not text.strip():
        raise RowRefused("the chat template renders this row as nothing")
    for turn in turns:
        if _core(turn) not in text:
            raise RowRefused(f"the chat template leaves out what the {turn['role']} says")
    chosen = any("train" in message for message in messages)
    if not chosen and _GENERATION.search(template):
        spans = _marked_spans(tokenizer, turns, template, text)
        if spans is not None:
            return _Chat(text, spans)
    learned = [bool(m.get("train", m["role"] == "assistant")) for m in messages]
    return _Chat(text, _prefix_spans(tokenizer, turns, text, learned))


def _template(tokenizer: Any) -> str:
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    if not template:
        raise RowRefused("the tokenizer has no chat template")
    return str(template)


def _render(tokenizer: Any, turns: list[dict[str, str]], *, template: str | None = None, ask: bool = False) -> str:
    more = {} if template is None else {"chat_template": template}
    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=ask, **more))
    except Exception as error:  # a template is a program: it may fail in any way, and each refuses the row
        raise RowRefused(f"the chat template refuses this row: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _core(turn: Mapping[str, str]) -> str:
    """What must be found again in the text: templates trim blanks, and some cut the thinking off old replies."""
    return turn["content"].rpartition("</think>")[2].strip()


def _marked_spans(
    tokenizer: Any, turns: list[dict[str, str]], template: str, text: str
) -> list[tuple[int, int]] | None:
    """Where the template itself says the reply is, or None when its marks cannot be followed."""

    def mark(tag: re.Match[str]) -> str:
        # An `if` keeps the white-space rules of the tag that it replaces; the mark inside is cut out again below.
        return "{%" + tag[1] + " if true %}" + (_CLOSE if tag[2] else _OPEN) + "{% endif " + tag[3] + "%}"

    marked = _render(tokenizer, turns, template=_GENERATION.sub(mark, template))
    spans: list[tuple[int, int]] = []
    plain: list[str] = []
    at = 0
    for part in marked.split(_OPEN):
        inside, closed, outside = part.partition(_CLOSE)
        if closed:
            spans.append((at, at + len(inside)))
        at += len(inside) + len(outside)
        plain += (inside, outside)
    return spans if "".join(plain) == text else None


def _prefix_spans(tokenizer: Any, turns: list[dict[str, str]], text: str, learned: list[bool]) -> list[tuple[int, int]]:
    """Where learned turns stand, found by rendering the conversation up to each and past it."""
    spans = []
    for i, turn in enumerate(turns):
        if not learned[i]:
            continue
        start = _turn_start(tokenizer, turns, i, text)
        end = len(text) if i == len(turns) - 1 else _turn_end(tokenizer, turns, i, text, start)
        if _core(turn) not in text[start:end]:
            raise RowRefused(f"the chat template moves message {i + 1} out of its place")
        spans.append((start, start + len(text[start:end].rstrip())))  # nobody asks the model for the blank after a turn
    return spans


def _turn_start(tokenizer: Any, turns: list[dict[str, str]], i: int, text: str) -> int:
    if i == 0:
        if turns[0]["role"] == "assistant":
            raise RowRefused("starts with a reply")
        return 0
    asks = (True, False) if turns[i]["role"] == "assistant" else (False,)
    for ask in asks:  # with the reply's header first, so that only what the model must write is learned
        before = _render(tokenizer, turns[:i], ask=ask)
        if text.startswith(before):
            return len(before)
    raise RowRefused(f"the chat template renders the turns before message {i + 1} differently once it follows")


def _turn_end(tokenizer: Any, turns: list[dict[str, str]], i: int, text: str, start: int) -> int:
    upto = _render(tokenizer, turns[: i + 1])
    if text.startswith(upto):
        return len(upto)
    # Some templates cut thinking out of a reply once another turn follows: look for the words and what closes the turn.
    core = _core(turns[i])
    closing = upto[upto.rfind(core) + len(core) :]
    found = text.find(core + closing, start)
    if found < 0 or not core:
        raise RowRefused(f"the chat template renders message {i + 1} differently once another follows")
    return found + len(core) + len(closing)


def _encode_chats(chats: list[_Chat], tokenizer: Any) -> list[Encoded]:
    if not chats:
        return []
    texts = [chat.text for chat in chats]  # templates write the special tokens themselves
    if getattr(tokenizer, "is_fast", False):
        found = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        masks = [_mask(offsets, chat.spans) for offsets, chat in zip(found["offset_mapping"], chats)]  # noqa: B905
        return [Encoded(list(ids), mask, len(ids)) for ids, mask in zip(found["input_ids"], masks)]  # noqa: B905
    return [_encode_slowly(chat, tokenizer) for chat in chats]


def _mask(offsets: Sequence[Sequence[int]], spans: list[tuple[int, int]]) -> list[int]:
    """1 for each token that begins inside a span. Zero-width tokens (trimmed blanks) belong to what ends with them."""
    mask = [0] * len(offsets)
    at = 0
    for k, (start, end) in enumerate(offsets):
        first = start if end > start else start - 1
        while at < len(spans) and spans[at][1] <= first:
            at += 1
        mask[k] = int(at < len(spans) and spans[at][0] <= first)
    return mask


def _encode_slowly(chat: _Chat, tokenizer: Any) -> Encoded:
    """For tokenizers that cannot say where a token stands: compare with the tokens of the text up to each border."""
    ids = _ids([chat.text], tokenizer, special=False)[0]
    mask = [0] * len(ids)
    for span in chat.spans:
        start, end = (_common(ids, _ids([chat.text[:border]], tokenizer, special=False)[0]) for border in span)
        mask[start:end] = [1] * (end - start)
    return Encoded(ids, mask, len(ids))


def _common(left: list[int], right: list[int]) -> int:
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count


# --- prompt and completion, and plain text ------------------------------------------------------------------------


def _encode_pairs(pairs: list[_Pair], tokenizer: Any) -> list[Encoded]:
    if not pairs:
        return []
    prompts = _ids([pair.prompt for pair in pairs], tokenizer)
    wholes = _ids([pair.prompt + pair.completion for pair in pairs], tokenizer)
    rows = []
    for pair, prompt, whole in zip(pairs, prompts, wholes):  # noqa: B905
        ids = whole
        if (
            whole[: len(prompt)] != prompt
        ):  # a token would straddle the border, which never happens when the model is asked
            ids = prompt + _ids([pair.completion], tokenizer, special=False)[0]
        ids = _with_eos(ids, tokenizer)
        rows.append(Encoded(ids, [0] * len(prompt) + [1] * (len(ids) - len(prompt)), len(ids)))
    return rows


def _encode_plain(texts: list[_Plain], tokenizer: Any) -> list[Encoded]:
    if not texts:
        return []
    rows = [_with_eos(ids, tokenizer) for ids in _ids([plain.text for plain in texts], tokenizer)]
    return [Encoded(ids, [1] * len(ids), len(ids), splits=True) for ids in rows]


def _ids(texts: list[str], tokenizer: Any, *, special: bool = True) -> list[list[int]]:
    """Tokens of each text with at most one BOS before it and no EOS that the text does not spell."""
    bos, eos = getattr(tokenizer, "bos_token_id", None), getattr(tokenizer, "eos_token_id", None)
    spelled = getattr(tokenizer, "eos_token", None)
    found = tokenizer(texts, add_special_tokens=special, verbose=False)["input_ids"]
    rows = []
    for text, ids in zip(texts, map(list, found)):  # noqa: B905
        if bos is not None and ids[:2] == [bos, bos]:
            del ids[0]
        if special and ids and ids[-1] == eos and not (spelled and text.rstrip().endswith(spelled)) and bos != eos:
            del ids[-1]
        rows.append(ids)
    return rows


def _with_eos(ids: list[int], tokenizer: Any) -> list[int]:
    eos = getattr(tokenizer, "eos_token_id", None)
    return ids if eos is None or not ids or ids[-1] == eos else [*ids, eos]
