"""One scalar to one value, by YAML 1.2 and by what the key expects. What cannot be meant is refused with the reason."""

from __future__ import annotations

import math
import re
import unicodedata

from orchestrator.recipe.source import is_invisible, name_of

INT_MAX = 2**63 - 1
_LONGEST_NUMBER = 60
_TRUE = {"true", "yes", "on"}
_FALSE = {"false", "no", "off"}
_DECIMAL = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*", re.ASCII)
_BASED = re.compile(r"[-+]?0(?:x[0-9a-fA-F]+|o[0-7]+)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]", re.ASCII)
_SEXAGESIMAL = re.compile(r"[-+]?[0-9]+(?::[0-9]+)+", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.?(?:inf|infinity|nan)", re.IGNORECASE)
_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2212\ufe63\uff0d"), "-")
_QUOTES = "\u201c\u201d\u201e\u201f\u2018\u2019\u201a\u201b\u00ab\u00bb"


class Unfit(Exception):
    """The text is not what the key expects."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def parse_bool(text: str) -> bool:
    """true/yes/on, false/no/off in lower, Title or UPPER case."""
    bare = text.strip(" \t\n")
    if bare.lower() in _TRUE | _FALSE and bare in {bare.lower(), bare.title(), bare.upper()}:
        return bare.lower() in _TRUE
    guess = {"1": "true", "0": "false", "y": "true", "n": "false", "t": "true", "f": "false"}.get(
        bare.lower(), "true or false"
    )
    raise Unfit(f"{show(text)} is neither true nor false", _odd_characters(text) or f"write {guess}")


def parse_int(text: str) -> int:
    """A whole number: 8, 1_000, 0x10, 0o10, 8.0, 1e3."""
    bare = _bare(text)
    if _BASED.fullmatch(bare):
        number = int(bare, 0)
    elif _DECIMAL.fullmatch(bare):
        number = int(bare.replace("_", ""))
    else:
        value = parse_float(text)
        if not value.is_integer():
            raise Unfit(f"{show(text)} is not a whole number", f"write {math.floor(value)} or {math.ceil(value)}")
        number = int(value)
    if abs(number) > INT_MAX:
        raise Unfit(f"{show(text)} is too large", "look for extra digits")
    return number


def parse_float(text: str) -> float:
    """A finite number: 2e-4, 2.e-4, .05, 1., 1E-2, 1_000.5."""
    bare = _bare(text)
    if _BASED.fullmatch(bare):
        return float(int(bare, 0))
    if not _FLOAT.fullmatch(bare):
        raise Unfit(f"{show(text)} is not a number", _odd_characters(text) or _number_hint(bare))
    value = float(bare.replace("_", ""))
    if not math.isfinite(value):
        raise Unfit(f"{show(text)} is too large", "look at the exponent")
    return value


def parse_number(text: str) -> int | float:
    """An int where it is whole, else a float."""
    value = parse_float(text)
    return parse_int(text) if value.is_integer() and abs(value) < 2**53 else value


def parse_choice(text: str, choices: tuple[str, ...]) -> str:
    """One of a few words. YAML 1.1 writes the word `no` in six ways; where `no` is a choice, all of them mean it."""
    bare = text.strip(" \t\n")
    if bare in choices:
        return bare
    for word, family in (("no", _FALSE), ("false", _FALSE), ("yes", _TRUE), ("true", _TRUE)):
        if word in choices and bare.lower() in family:
            return word
    near = nearest(bare, choices)
    listed = ", ".join(choices[:12]) + (" …" if len(choices) > 12 else "")
    hint = f"did you mean {near}?" if near else f"one of: {listed}"
    raise Unfit(f"{show(text)} is not one of the {len(choices)} words it may be", _odd_characters(text) or hint)


def parse_text(text: str, *, quoted: bool) -> str:
    """The text as written; typographic quotes around it are a slip of the editor."""
    if not quoted and text and (text[0] in _QUOTES or text[-1] in _QUOTES):
        char = text[0] if text[0] in _QUOTES else text[-1]
        raise Unfit(f"{show(text)} carries {name_of(char)}", f"""use plain quotes: "{text.strip(_QUOTES)}" """.strip())
    if any(0xD800 <= ord(c) <= 0xDFFF for c in text):
        raise Unfit("half of a surrogate pair is no character", r"write the character itself instead of \u escapes")
    return text


def parse_any(text: str, *, quoted: bool) -> object:
    """By the YAML 1.2 core schema, where the key does not say what it expects."""
    if quoted:
        return parse_text(text, quoted=True)
    if text in {"true", "True", "TRUE", "false", "False", "FALSE"}:
        return text.lower() == "true"
    if text in {"", "~", "null", "Null", "NULL"}:
        return None
    if (_FLOAT.fullmatch(text) or _BASED.fullmatch(text)) and not _LEADING_ZERO.match(text):
        whole = _DECIMAL.fullmatch(text) or _BASED.fullmatch(text)
        return parse_int(text) if whole else parse_float(text)
    return parse_text(text, quoted=False)


def show(text: str) -> str:
    """The text as a message can carry it: one line, no surprises, not a megabyte."""
    return f"`{one_line(text, 60)}`"


def one_line(text: str, longest: int = 400) -> str:
    """Text from a file, safe for a terminal: no line breaks, no escapes, nothing unseen."""
    short = text if len(text) <= longest else text[: longest - 1] + "…"
    return "".join(map(_visible, short))


def _visible(char: str) -> str:
    if char in "\n\t":
        return {"\n": "\\n", "\t": "\\t"}[char]
    return f"\\u{ord(char):04x}" if is_invisible(char) or not char.isprintable() else char


def nearest(word: str, known: tuple[str, ...] | list[str]) -> str:
    """The known word that was probably meant, or nothing."""
    import difflib

    if len(word) > 80:
        return ""
    by_case = {k.lower().replace("-", "_"): k for k in known}
    plain = word.strip(" :").lower().replace("-", "_").replace(" ", "_")
    if plain in by_case:
        return by_case[plain]
    found = difflib.get_close_matches(plain, by_case, n=1, cutoff=0.72)
    return by_case[found[0]] if found else ""


def _bare(text: str) -> str:
    bare = text.strip(" \t\n")
    if len(bare) > _LONGEST_NUMBER:
        raise Unfit(f"{show(text)} is not a number", "it is longer than any number that makes sense here")
    if _LEADING_ZERO.match(bare) and _FLOAT.fullmatch(bare):
        plain = bare.lstrip("+-0_") or "0"
        hint = f"write {plain}" + (f", or 0o{plain} for octal" if re.fullmatch("[0-7]+", plain) else "")
        raise Unfit(f"{show(text)} starts with a zero, which some YAML parsers read as octal", hint)
    return bare


def _odd_characters(text: str) -> str:
    """A hint that names what looks right but is not: en dash for minus, full-width digits, no-break spaces."""
    odd = [c for c in text if ord(c) > 127 or is_invisible(c)]
    if not odd:
        return ""
    plain = "".join(c for c in unicodedata.normalize("NFKC", text.translate(_DASHES)) if not is_invisible(c)).strip(
        " " + _QUOTES
    )
    cure = f"; write {plain}" if plain.isascii() and plain else "; type it again"
    return f"it contains {name_of(odd[0])}{cure}"


def _number_hint(bare: str) -> str:
    if _NOT_FINITE.fullmatch(bare):
        return "a finite number is needed"
    if _SEXAGESIMAL.fullmatch(bare):
        return "YAML 1.1 would read it in base 60; write one plain number"
    if re.fullmatch(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?", bare):
        return f"write {bare.replace(',', '')}"
    if re.fullmatch(r"[-+]?[0-9]+,[0-9]+", bare):
        return f"write {bare.replace(',', '.')}"
    if re.fullmatch(r"[-+]?[0-9.]+ ?%", bare):
        return "write it as a share: 5% is 0.05"
    if re.fullmatch(r"0[xXoObB].*", bare):
        return "write it as a decimal number"
    if match := re.match(_FLOAT.pattern, bare, re.ASCII):
        return f"write {match[0]}, if that is meant" if match[0].strip("+-.") else "a number is needed"
    if bare.lower() in _TRUE | _FALSE:
        return "a number is needed, not a yes or no"
    return "a number is needed"
