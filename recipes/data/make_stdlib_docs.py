"""Makes stdlib-docs.jsonl: what each function of Python's standard library does, in the words of its own documentation.

    python recipes/data/make_stdlib_docs.py > recipes/data/stdlib-docs.jsonl

The committed file was made with CPython 3.11.7. The style is the same in every answer (the call in backquotes, then one
or two sentences, nothing else), so that a model which has learned it is easy to tell from one which has not.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator

MODULES = (  # noqa: SIM905 - one name per line would fill two screens
    "argparse ast base64 bisect bz2 calendar cmath codecs collections colorsys compileall configparser contextlib "
    "copy csv dataclasses datetime decimal difflib dis email.utils enum filecmp fileinput fnmatch fractions "
    "ftplib functools gc getpass gettext glob gzip hashlib heapq hmac html imaplib inspect io ipaddress itertools "
    "json keyword linecache locale logging lzma math mimetypes numbers operator os os.path pathlib pickle pkgutil "
    "platform plistlib posixpath pprint queue quopri random re reprlib runpy sched secrets select selectors "
    "shelve shlex shutil signal socket sqlite3 ssl stat statistics string struct subprocess symtable sys "
    "sysconfig tarfile tempfile textwrap threading time timeit token tokenize traceback types typing unicodedata "
    "unittest urllib.parse urllib.request uuid warnings wave weakref webbrowser xml.sax.saxutils zipfile zlib"
).split()
HELD_OUT = ("shutil.which", "textwrap.shorten", "statistics.median", "os.path.basename")  # to ask about afterwards
QUESTIONS = ("What does Python's `{name}` do?", "Explain `{name}` in Python.", "What is `{name}` for?")
SHORTEST, LONGEST = 25, 240  # characters of an answer's text
SIGNATURE_LONGEST = 70


def functions() -> Iterator[tuple[str, object]]:
    """Every public function, by its full name; a thing known under two names once."""
    seen: set[int] = set()
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name, value in sorted(vars(module).items()):
            home = getattr(value, "__module__", None) or ""
            ours = home.lstrip("_") == module_name.lstrip("_") or module_name in ("os.path", "os", "io")
            if name.startswith("_") or not inspect.isroutine(value) or not ours or id(value) in seen:
                continue
            seen.add(id(value))
            yield f"{module_name}.{name}", value


def call(name: str, function: object) -> str | None:
    """The call as one would write it: arguments without their annotations."""
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    text = (
        str(signature.replace(parameters=plain, return_annotation=signature.empty))
        .replace(", /", "")
        .replace("/, ", "")
    )
    written = f"{name}{text}"
    return written if len(written) <= SIGNATURE_LONGEST and " at 0x" not in written and "<" not in written else None


def summary(function: object) -> str | None:
    """The first paragraph of the documentation, as running text."""
    doc = inspect.getdoc(function) or ""
    first = " ".join(doc.split("\n\n")[0].split())
    if not re.match(r"[A-Z][a-z]", first) or ">>>" in first or "::" in first:
        return None
    first = first if first.endswith((".", "!")) else first + "."
    return first if SHORTEST <= len(first) <= LONGEST else None


def rows() -> Iterator[dict[str, object]]:
    """Conversations of one question and one answer, in a fixed and mixed order."""
    made = []
    for name, function in functions():
        written, text = call(name, function), summary(function)
        if written is None or text is None or name in HELD_OUT:
            continue
        mark = hashlib.sha256(name.encode()).hexdigest()
        question = QUESTIONS[int(mark, 16) % len(QUESTIONS)].format(name=name)
        answer = f"`{written}`\n\n{text}"
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        made.append((mark, {"messages": turns}))
    yield from (row for _, row in sorted(made, key=lambda pair: pair[0]))


if __name__ == "__main__":
    for row in rows():
        sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
