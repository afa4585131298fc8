"""What a plan rests on: papers, code, datasheets and calibrations behind exactly its terms, each once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from cost_models.numeric import num
from hardware.calibration import calibration, generation, names
from planner.explain import at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cost_models.ledger import Term
    from hardware.spec import Gpu
    from planner.plan import Plan

Kind = Literal["model", "datasheet", "paper", "code", "calibration", "reasoning"]
KINDS: dict[Kind, str] = {
    "model": "Model",
    "datasheet": "Machine",
    "paper": "Papers",
    "code": "Code that was read",
    "calibration": "Calibrations",
    "reasoning": "Other grounds",
}
"""Kind of source -> its heading."""
FOLDER = "hardware/measured"
MOST_ORIGINS = 20
"""Constants of a file up to which their origins are listed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One source and what it is used for."""

    kind: Kind
    text: str
    used_by: tuple[str, ...]
    """Names of terms, or what else rests on it."""


def sources(plan: Plan) -> tuple[Source, ...]:
    """Return the sources of `plan`, by kind; terms that are zero need none."""
    found: dict[tuple[Kind, str], list[str]] = {}

    def add(kind: Kind, text: str, user: str) -> None:
        users = found.setdefault((kind, text.strip()), [])
        if user not in users:
            users.append(user)

    for part in _parts(plan.architecture.source):
        add("model", part, "dimensions")
    for name, text in _datasheets(plan):
        for part in _parts(text):
            add("datasheet", part, name)
    for term in _terms(plan):
        for part in _parts(term.source):
            if FOLDER not in part:
                add(_kind(part), part, term.name)
            for text in _calibrations(part, plan.pool.gpu):
                add("calibration", text, term.name)
    order = list(KINDS)
    made = [Source(kind=kind, text=text, used_by=tuple(users)) for (kind, text), users in found.items() if text]
    return tuple(sorted(made, key=lambda s: order.index(s.kind)))


def _terms(plan: Plan) -> Iterator[Term]:
    """Terms that are not zero anywhere: of the highest phases, overhead, host and step."""
    m = plan.cost.memory
    for number, ledger in enumerate(m.phases.values()):
        if np.any(num(m.stage_phase) == float(number)):
            yield from (t for t in ledger.terms if np.any(num(t.value)))
    yield from (t for t in (*m.overhead.terms, *m.host.terms) if np.any(num(t.value)))
    yield from (t for t in plan.cost.time.ledger.terms if at(t.value, 0))


def _datasheets(plan: Plan) -> Iterator[tuple[str, str]]:
    gpu, node = plan.pool.gpu, plan.pool.node
    yield gpu.name, gpu.source
    if gpu.memory_note:
        yield f"{gpu.name}: memory", gpu.memory_note
    yield node.name, node.source
    for fact, text in node.fact_sources.items():
        yield f"{node.name}: {fact}", text


def _parts(text: str) -> list[str]:
    """Split at semicolons that stand between sources, not inside brackets."""
    return [part.strip() for part in re.split(r";(?![^(]*\))", text) if part.strip()]


def _kind(text: str) -> Kind:
    if re.search(r"arXiv|et al\.", text):
        return "paper"
    if re.search(r"\.py\b|\.md\b|docs/|README|Megatron|DeepSpeed|torch|PyTorch|Engine|bitsandbytes|litgpt|traced", text):
        return "code"
    return "reasoning"


def _calibrations(source: str, gpu: Gpu) -> list[str]:
    """What part of a term's source says about measured constants: each that it names, else the files as a whole."""
    if FOLDER not in source:
        return []
    files = [name for name in re.findall(rf"{FOLDER}/(\w+)\.toml", source) if name in names()]
    if not files:
        own = generation(gpu.arch)
        return [_file(name, gpu) for name in (("default",) if own is None else (own.name, "default"))]
    found = []
    for file in files:
        constants = calibration(file).constants
        named = [name for name in re.findall(r"\w+", source.partition(".toml")[2]) if name in constants]
        found += [f"{FOLDER}/{file}.toml, {name}: {constants[name].meaning} ({constants[name].origin})" for name in named]
        found += [] if named else [_file(file, gpu)]
    return found


def _file(file: str, gpu: Gpu) -> str:
    """A file with its date, and the origins of the constants that the accelerator takes from it where they are few."""
    found = calibration(file)
    constants = found.constants
    own = generation(gpu.arch)
    if file == "default" and own is not None:
        constants = {name: c for name, c in constants.items() if name not in own.constants}
    date = f" ({found.date})" if found.date else ""
    head = f"{FOLDER}/{file}.toml{date}, {len(constants)} constants"
    if len(constants) > MOST_ORIGINS:
        return f"{head}, each with its origin. {found.sentence}"
    return f"{head} from {'; '.join(dict.fromkeys(c.origin for c in constants.values()))}"
