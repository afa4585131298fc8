"""Wishes: what the user asks of a layout beyond fixed fields, as conditions over its fields and its results."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Literal, get_args

from cost_models.choices.schedules import names as schedule_names
from cost_models.layout import Choices, Degrees, Offload, OffloadTarget, Recompute
from cost_models.training import Framework
from hardware.units import quote
from planner.expression import Expression, Name, parse
from planner.tokens import ExpressionError

WishFlag = Literal["require", "forbid", "max", "min"]
Objective = Literal["time", "cost", "memory", "gpus"]

_WORDS: dict[str, tuple[str, ...]] = {
    "schedule": schedule_names(),
    "recompute": get_args(Recompute),
    "offload": get_args(Offload),
    "offload_target": get_args(OffloadTarget),
    "framework": get_args(Framework),
}
LAYOUT_NAMES: dict[str, Name] = {
    **{f.name: Name(kind="number") for f in fields(Degrees)},
    "rank_order": Name(kind="number", sentence="0: tp-cp-ep-dp-pp, 1: tp-cp-ep-pp-dp"),
    "zero": Name(kind="number"),
    "sequence_parallel": Name(kind="flag"),
    **{name: Name(kind="word", words=words) for name, words in _WORDS.items()},
    "accumulation": Name(kind="number", sentence="micro-batches per step and replica"),
}
"""Fields of a layout, and what follows from them alone."""
CASE_NAMES: dict[str, Name] = {
    "gpus": Name(kind="number", sentence="GPUs of the pool"),
    "nodes": Name(kind="number", sentence="servers of the pool"),
    "seq": Name(kind="number"),
    "global_batch": Name(kind="number"),
}
"""What is the same for all layouts of a request."""
RESULT_NAMES: dict[str, Name] = {
    "memory": Name(kind="bytes", sentence="device peak of a GPU, as nvidia-smi shows it"),
    "allocated": Name(kind="bytes", sentence="torch's allocated peak"),
    "reserved": Name(kind="bytes", sentence="torch's reserved peak"),
    "headroom": Name(kind="bytes", sentence="capacity less device peak"),
    "host_memory": Name(kind="bytes", sentence="of a server"),
    "nvme": Name(kind="bytes", sentence="of a server"),
    "step": Name(kind="seconds", sentence="seconds of a step"),
    "tokens_per_second": Name(kind="number", sentence="of all GPUs"),
    "tokens_per_second_per_gpu": Name(kind="number"),
    "tokens_per_dollar": Name(kind="number", sentence="needs a known price of the server"),
    "mfu": Name(kind="number"),
    "hfu": Name(kind="number"),
}
"""What an evaluation gives."""
NAMES: dict[str, Name] = {**LAYOUT_NAMES, **CASE_NAMES, **RESULT_NAMES}
RELIEFS = ("recompute_layers", "offload_fraction", "activation_offload")
RATES = ("tokens_per_second", "tokens_per_second_per_gpu", "tokens_per_dollar", "mfu")
CHOICE_NAMES = tuple(f.name for f in fields(Choices))
MOST = 50
"""Wishes of one request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """One condition. `forbid` turns it round."""

    flag: WishFlag
    text: str
    """As the user gave it."""
    expression: Expression

    @property
    def spelled(self) -> str:
        """The flag that states it: `--max pp=8`."""
        return f"--{self.flag} {self.text if self.flag in ('max', 'min') and ' ' not in self.text else quoted(self.text)}"

    @property
    def words(self) -> str:
        """The condition in words: `pp <= 8`, `not (zero=3)`."""
        if self.flag == "forbid":
            return f"not ({self.text})"
        return self.expression.text

    @property
    def needs_results(self) -> bool:
        """Whether it is judged after an evaluation: it reads results, or a relief, whose value is only chosen then."""
        return any(name in RESULT_NAMES or name in RELIEFS for name in self.expression.names)

    @property
    def about_speed(self) -> bool:
        """Whether it says no more than that a plan is fast enough, so that what breaks it without recompute and offload breaks it with."""
        tree = self.expression.tree
        if self.flag == "forbid" or len(tree.parts) != 2 or tree.parts[0].what != "name" or tree.parts[1].what != "constant":
            return False
        name = tree.parts[0].value
        return (name == "step" and tree.what in ("<", "<=")) or (name in RATES and tree.what in (">", ">="))

    @property
    def reads(self) -> tuple[str, ...]:
        """Layout fields that it looks at."""
        found = [f for name in self.expression.names for f in (("micro_batch", "dp") if name == "accumulation" else (name,))]
        return tuple(dict.fromkeys(f for f in found if f in LAYOUT_NAMES and f != "framework"))

    def most(self, name: str) -> float | None:
        """Return the value that the wish limits `name` to, where it says no more than `name <= value`; None otherwise."""
        tree = self.expression.tree
        if self.flag == "forbid" or tree.what != "<=" or tree.parts[0].what != "name" or tree.parts[1].what != "constant":
            return None
        return float(tree.parts[1].value) if tree.parts[0].value == name else None

    def holds(self, values: Mapping[str, object]) -> object:
        """Return whether the condition holds, elementwise over `values`."""
        told = self.expression.evaluate(values)
        return ~told if self.flag == "forbid" and not isinstance(told, bool) else (not told if self.flag == "forbid" else told)


def quoted(text: str) -> str:
    """Return `text` in quotes that a shell understands."""
    return f'"{text}"' if not any(c in text for c in '"$`\\!') else "'" + text.replace("'", "'\\''") + "'"


def parse_wishes(flag: WishFlag, texts: Iterable[str]) -> tuple[list[Wish], list[str]]:
    """Return the wishes of one flag, and a line (with the place marked below it) for each that cannot be read."""
    made, problems = [], []
    for text in texts:
        try:
            made.append(Wish(flag=flag, text=text, expression=_limit(flag, text) if flag in ("max", "min") else parse(text, NAMES)))
        except ExpressionError as error:
            problems.append(f"--{flag}: {error}")
    if len(made) > MOST:
        return [], [f"--{flag}: more than {MOST} wishes"]
    return made, problems


def _limit(flag: WishFlag, text: str) -> Expression:
    """Return the condition of `--max pp=8`: pp <= 8."""
    name, sign, value = text.partition("=")
    ordered = name.endswith(("<", ">", "!"))
    if not sign or ordered or value.startswith("="):
        raise ExpressionError(text, len(name) - ordered, f"--{flag} takes NAME=VALUE, such as pp=8 or memory=70GiB")
    operator = "<=" if flag == "max" else ">="
    try:
        read = parse(f"{name.strip()} {operator} {value.strip()}", NAMES)
    except ExpressionError as error:
        before = len(name.strip()) + len(operator) + 2
        shift = len(name) - len(name.lstrip())
        at = error.at + shift if error.at < before else len(name) + 1 + len(value) - len(value.lstrip()) + error.at - before
        raise ExpressionError(text, min(at, len(text)), error.message) from None
    if len(read.names) != 1 or read.tree.what != operator or read.tree.parts[0].what != "name":
        raise ExpressionError(text, 0, f"--{flag} limits one name by one value; give longer conditions with --require")
    return read


def split_fix(text: str, known: Iterable[str]) -> tuple[str, str]:
    """Return the field and the value of `tp=8`. Raises ExpressionError for anything else, with the nearest names."""
    name, sign, value = text.partition("=")
    key, value = name.strip().replace("-", "_"), value.removeprefix("=").strip()
    fields_known = tuple(known)
    if not sign or not value:
        raise ExpressionError(text, len(text), "--fix takes FIELD=VALUE, such as tp=8")
    if key not in fields_known:
        near = difflib.get_close_matches(key, fields_known, n=3, cutoff=0.4)
        said = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(fields_known)}"
        raise ExpressionError(text, len(name) - len(name.lstrip()), f"unknown layout field {quote(key)}; {said}")
    return key, value


def as_fix(wish: Wish, known: Iterable[str]) -> tuple[str, str] | None:
    """Return field and value where the wish does no more than name one value of one field (`--require zero=3`)."""
    tree = wish.expression.tree
    if wish.flag != "require" or tree.what != "=" or tree.parts[0].what != "name" or tree.parts[1].what != "constant":
        return None
    name, constant = str(tree.parts[0].value), tree.parts[1]
    if name not in tuple(known) or constant.kind == "flag":
        return None
    if constant.kind == "number" and float(constant.value) != int(constant.value):
        return None
    return name, constant.value if constant.kind == "word" else f"{int(constant.value)}"
