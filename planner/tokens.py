"""Tokens of an expression: numbers with their units, names, words, operators, each with the place where it stands."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hardware.units import BYTES, SECONDS, UnitError, parse, quote

END = ""
"""Text of the token that ends every list."""
MAX_LENGTH = 500
_OPERATOR = re.compile(r"<=|>=|==|!=|[=<>+\-*/()]")
_NUMBER = re.compile(r"(?:[0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[^\W\d]\w*")
_UNIT = re.compile(r"\s*(%|[A-Za-zµ$]+(?![\w.]))")
_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_JOINS = ("and", "or", "not")
_SYMBOLS = {"≤": "<=", "≥": ">=", "≠": "!=", "×": "*", "·": "*", "&&": "and", "||": "or"}


class ExpressionError(ValueError):
    """A text that is no condition. The message has three lines: what is wrong and where, the text, and a caret below the place."""

    def __init__(self, text: str, at: int, message: str) -> None:
        self.text, self.at, self.message = text, at, message
        shown = "".join(c if c.isprintable() else "?" for c in text)
        start = max(0, at - 60)
        piece = ("…" if start else "") + shown[start : start + 76]
        caret = " " * (at - start + (1 if start else 0)) + "^"
        super().__init__(f"{message} (column {at + 1})\n  {piece}\n  {caret}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """One token. `kind`: number, bytes, seconds, name, word, operator, unknown or end."""

    text: str
    kind: str
    at: int
    value: float = 0.0
    """Of a number, in base units."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """What may stand in an expression beside numbers and operators."""

    names: tuple[str, ...]
    words: tuple[str, ...]

    def longest(self, text: str, at: int) -> tuple[str, str, int] | None:
        """Return (kind, spelling, length) of the longest name or word that starts at `at`; a name may have `-` for `_`."""
        best: tuple[str, str, int] | None = None
        spelled = [("name", n, s) for n in self.names for s in {n, n.replace("_", "-")}] + [("word", w, w) for w in self.words]
        for kind, meant, spelling in spelled:
            end = at + len(spelling)
            whole = text.startswith(spelling, at) and not (end < len(text) and (text[end].isalnum() or text[end] == "_"))
            if whole and (best is None or len(spelling) > best[2]):
                best = (kind, meant, len(spelling))
        return best


def tokens(text: str, vocabulary: Vocabulary) -> list[Token]:
    """Return the tokens of `text`, the last one END. Raises ExpressionError for what can be none."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(text[:MAX_LENGTH], MAX_LENGTH - 1, f"longer than {MAX_LENGTH} characters")
    found: list[Token] = []
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        token, length = _next(text, at, vocabulary)
        found.append(token)
        at += length
    if not found:
        raise ExpressionError(text, 0, "nothing is said; give a condition such as 'tp*cp <= 8' or 'memory <= 70GiB'")
    return [*found, Token(text=END, kind="end", at=len(text))]


def _next(text: str, at: int, vocabulary: Vocabulary) -> tuple[Token, int]:
    for symbol, meant in _SYMBOLS.items():
        if text.startswith(symbol, at):
            return Token(text=meant, kind="operator", at=at), len(symbol)
    known = vocabulary.longest(text, at)
    if known is not None:
        kind, meant, length = known
        return Token(text=meant, kind=kind, at=at), length
    if (match := _QUOTED.match(text, at)) is not None:
        return Token(text=match[1] if match[1] is not None else match[2], kind="word", at=at), match.end() - at
    if (match := _OPERATOR.match(text, at)) is not None:
        return Token(text=match[0], kind="operator", at=at), match.end() - at
    if (match := _NUMBER.match(text, at)) is not None:
        return _number(text, at, match, vocabulary)
    if (match := _WORD.match(text, at)) is not None:
        kind = "operator" if match[0] in _JOINS else "unknown"
        return Token(text=match[0], kind=kind, at=at), match.end() - at
    raise ExpressionError(text, at, f"{quote(text[at])} cannot be read")


def _number(text: str, at: int, match: re.Match[str], vocabulary: Vocabulary) -> tuple[Token, int]:
    """Return a number with what follows it: a unit of size or time, `%`, or nothing."""
    value = float(match[0].replace("_", ""))
    unit = _UNIT.match(text, match.end())
    if unit is None or unit[1] in _JOINS or (unit.start(1) > match.end() and vocabulary.longest(text, unit.start(1)) is not None):
        if match.end() < len(text) and (text[match.end()].isalnum() or text[match.end()] == "_"):
            raise ExpressionError(text, match.end(), "a number is followed by a unit, an operator or nothing")
        if value == float("inf"):
            raise ExpressionError(text, at, "this number is too large")
        return Token(text=match[0], kind="number", at=at, value=value), match.end() - at
    if unit[1] == "%":
        return Token(text=match[0], kind="number", at=at, value=value / 100.0), unit.end() - at
    for kind, quantity in (("bytes", BYTES), ("seconds", SECONDS)):
        known = unit[1] in quantity.scales or (quantity.any_case and unit[1].lower() in (u.lower() for u in quantity.scales))
        if known:
            try:
                size = parse(f"{match[0]} {unit[1]}", quantity)
            except UnitError as error:
                raise ExpressionError(text, at, f"{error}") from None
            return Token(text=f"{match[0]}{unit[1]}", kind=kind, at=at, value=size), unit.end() - at
    raise ExpressionError(
        text, unit.start(1), f"{quote(unit[1])} is no unit; use {', '.join(BYTES.scales)}, or {', '.join(SECONDS.scales)}"
    )
