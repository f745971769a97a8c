"""Records to bytes and back: pydantic checks what enters, and what leaves is sorted JSON that a person can read."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.errors import RecordCorrupt

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

FORMAT = 1


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _hashable(kind: Any) -> Any:  # a class is; the type checker is not so sure of a generic one
    return kind


def dump(record: object) -> bytes:
    """Deterministic: equal records give equal bytes."""
    plain = _adapter(_hashable(type(record))).dump_python(record, mode="json")
    return (json.dumps(plain, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


def load(kind: type[T], data: bytes, *, where: str) -> T:
    """The record, or RecordCorrupt: torn, foreign, or written by a newer tune. Never a guess."""
    advice = f"nothing was overwritten; look at {where}, restore it or move it away, then run the command again"
    try:
        plain: Any = json.loads(data)
    except (ValueError, RecursionError) as e:  # brackets by the thousand: JSON, and nobody's record
        raise RecordCorrupt(f"{where} is not JSON ({len(data)} bytes): {e}", hint=advice) from None
    if not isinstance(plain, dict):
        raise RecordCorrupt(f"{where} holds a {type(plain).__name__}, not a record", hint=advice)
    written = plain.get("format")
    if isinstance(written, int) and written > FORMAT:
        raise RecordCorrupt(f"{where} has format {written}; this tune reads up to {FORMAT}", hint="upgrade tune")
    from pydantic import ValidationError

    try:
        record: T = _adapter(_hashable(kind)).validate_json(data)
    except ValidationError as e:
        first = e.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "record"
        raise RecordCorrupt(f"{where} is not a {kind.__name__}: {place}: {first['msg']}", hint=advice) from None
    return record
