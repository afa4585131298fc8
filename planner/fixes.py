"""Fixes: `--fix tp=8`, and the wishes that say no more than that, become the layout fields that they name."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from hardware.units import quote
from planner.tokens import ExpressionError
from planner.wish import as_fix, parse_wishes, split_fix


def move_fixes(values: MutableMapping[str, object], fixable: Sequence[str]) -> list[str]:
    """Move what `fix` lists, and each `require` of one value for one field, into the fields of `values`.

    Returns a line for each `fix` that cannot be read or that says otherwise than the rest of the request; what `require` says otherwise
    stays a wish, as wishes that clash are explained by the search.
    """
    given, problems = values.pop("fix", ()), []
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return [f"fix={quote(given)}: give a list of FIELD=VALUE"]
    for text in texts:
        try:
            key, value = split_fix(text, fixable)
        except ExpressionError as error:
            problems.append(f"--fix: {error}")
            continue
        read = _read(key, value)
        if key in values and values[key] != read:
            problems.append(f"--fix {text}: {key}={quote(values[key])} is asked for too")
        values[key] = read
    _move_required(values, fixable)
    return problems


def _move_required(values: MutableMapping[str, object], fixable: Sequence[str]) -> None:
    required = values.get("require", ())
    texts = [required] if isinstance(required, str) else required
    if not isinstance(texts, list | tuple):
        return
    left = []
    for text in texts:
        wishes, _ = parse_wishes("require", [text]) if isinstance(text, str) else ([], [])
        fixed = as_fix(wishes[0], fixable) if wishes else None
        if fixed is None or values.get(fixed[0], _read(*fixed)) != _read(*fixed):
            left.append(text)
        else:
            values[fixed[0]] = _read(*fixed)
    values["require"] = tuple(left)


def _read(key: str, text: str) -> object:
    """Return a value as its flag reads it: numbers as such, module names as a tuple."""
    if key == "recompute_modules":
        return tuple(word.strip() for word in text.split(",") if word.strip())
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text
