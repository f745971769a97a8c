"""What the pages say is so."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import errors
from orchestrator.providers.registry import names

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted(
    p
    for p in ROOT.glob("**/*.md")
    if not any(part.startswith(".") or part == "build" for part in p.relative_to(ROOT).parts)
)
SPANS = [a or b for a, b in re.findall(r"`([^`\n]+)`|^\$ (.*)$", README, re.MULTILINE)]
COMMANDS = sorted({m for span in SPANS for m in re.findall(r"^tune ([a-z]+(?: print| preempt)?)\b", span)})


def codes_of_the_program() -> set[int]:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.TuneError)]
    return {c.exit_code for c in classes} | {0, 130}


def test_every_exit_code_stands_in_the_readme_and_no_other() -> None:
    table = README.split("## Exit codes")[1].split("\n## ")[0]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == codes_of_the_program()


def test_the_error_tree_draws_every_error_with_its_code() -> None:
    drawn = dict(re.findall(r"^\W*([A-Z]\w+) +(\d+)", errors.__doc__ or "", re.MULTILINE))
    real = {
        n: str(c.exit_code) for n, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.TuneError)
    }
    assert drawn == real


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert broken == []


def test_the_readme_names_a_fair_number_of_commands() -> None:
    assert len(COMMANDS) >= 10, COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_readme_exists(command: str) -> None:
    argv = [sys.executable, "-m", "orchestrator", *command.split(), "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_every_provider_stands_in_the_readme() -> None:
    table = README.split("## Providers")[1].split("\n## ")[0]
    assert [name for name in names() if f"`{name}`" not in table] == []


def test_no_module_is_longer_than_four_hundred_lines() -> None:
    sizes = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in (ROOT / "orchestrator").rglob("*.py")}
    assert len(sizes) > 50
    assert {name: size for name, size in sizes.items() if size > 400} == {}
