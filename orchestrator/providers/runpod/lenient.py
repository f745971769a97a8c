"""Reading RunPod's answers: what must be there is insisted on, what may be absent, null or odd is None."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from orchestrator.providers.runpod.rest import Unheard

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class Answer(BaseModel):
    """Unknown fields are passed over: the API grows."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def _or_none(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError:
        return None


Maybe = Annotated[T | None, WrapValidator(_or_none)]
"""A field that nothing depends on: a surprise in it must not hide an instance that costs money."""


def read(model: type[M], told: Any) -> M:
    """Raises Unheard for an answer without the fields that make it one."""
    try:
        return model.model_validate(told)
    except ValidationError as e:
        wrong = ", ".join(sorted({".".join(map(str, problem["loc"])) or "all of it" for problem in e.errors()}))
        raise Unheard(f"an answer of another form than expected ({wrong})") from None
