"""Rule: a yes/no law about layouts, with its sentence, its source, and an answer for whoever breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from cost_models.choices.schedules import names as schedule_names
from cost_models.layout import RANK_ORDERS, Choices, Degrees, Layout, Offload, OffloadTarget, Recompute, Zero
from cost_models.numeric import num
from cost_models.training import Framework
from planner.case import Case

Mask = npt.NDArray[np.bool_] | np.bool_ | bool
Kind = Literal["law", "preference", "canonical"]
DEGREES = tuple(f.name for f in fields(Degrees))
CHOICES = tuple(f.name for f in fields(Choices))
FLAGS = {"shard_group": "shard-group", "sequence_parallel": "sequence-parallel", "micro_batch": "micro-batch"}
"""Layout field -> flag, where `_` became `-`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One law. `holds` takes one layout or a batch and gives a mask of the degrees' shape (or one bool)."""

    id: str
    sentence: str
    source: str
    """Framework file and line, paper, or `planner` for our own."""
    reads: tuple[str, ...]
    """Layout fields that `holds` looks at; empty: the case alone."""
    holds: Callable[[Case, Layout], Mask]
    given: Callable[[Case, Layout], str]
    """What a single layout that breaks the law gave, and the law with its numbers."""
    vary: tuple[str, ...] = ()
    """Fields whose nearest lawful values are offered."""
    frameworks: tuple[Framework, ...] = ()
    """Who enforces it; empty: all."""
    kind: Kind = "law"
    """`law`: refused or wrong; `preference`: lawful but never sensible; `canonical`: another spelling of a layout that is in the space.
    The latter two bind the search only, and not where the user fixed a field that lifts them."""
    lifted_by: tuple[str, ...] | None = None
    """Fields that lift a preference or canonical rule where the user fixed one; None: those that it reads."""

    def binds(self, case: Case) -> bool:
        """Tell whether the rule applies to the framework and the user's fixed fields."""
        if self.frameworks and case.framework not in self.frameworks:
            return False
        return self.kind == "law" or not case.fixed.intersection(self.reads if self.lifted_by is None else self.lifted_by)


def divides(small: object, large: object) -> npt.NDArray[np.bool_]:
    """Tell elementwise whether `small` divides `large` (both whole, below 2**53)."""
    return np.asarray(np.mod(num(large), num(small)) == 0.0)


def show(value: object) -> str:
    """Return a degree as people write it."""
    number = float(num(value).reshape(-1)[0])
    return f"{int(number):,}" if number == int(number) else f"{number:g}"


def value(layout: Layout, field: str) -> Any:
    """Return a degree (as array) or a choice of `layout`."""
    return num(getattr(layout.degrees, field)) if field in DEGREES else getattr(layout.choices, field)


def spelled(field: str, what: object) -> str:
    """Return `tp=4`, `zero=3`, `sequence_parallel=on`."""
    if field == "rank_order":
        return f"{field}={RANK_ORDERS[int(float(num(what).reshape(-1)[0]))]}"
    if isinstance(what, bool):
        return f"{field}={'on' if what else 'off'}"
    return f"{field}={what if isinstance(what, str) else show(what)}"


def explain(case: Case, layout: Layout, rule: Rule, others: Iterable[Rule] = ()) -> str:
    """Return one line: what was given, the law with numbers, and the nearest values that keep it and `others` about that field alone."""
    laws = tuple(others)
    hints = [h for field in rule.vary if (h := _nearest(case, layout, rule, field, tuple(r for r in laws if r.reads == (field,))))]
    return rule.given(case, layout) + (f"; try {' or '.join(hints)}" if hints else "")


def candidates(case: Case, layout: Layout, field: str) -> tuple[Any, ...]:
    """Return the values of `field` that are worth trying in its place."""
    options: dict[str, tuple[Any, ...]] = {
        "zero": get_args(Zero),
        "sequence_parallel": (True, False),
        "schedule": schedule_names(),
        "recompute": get_args(Recompute),
        "offload": get_args(Offload),
        "offload_target": get_args(OffloadTarget),
        "recompute_layers": (-1.0,),
        "rank_order": tuple(float(i) for i in range(len(RANK_ORDERS))),
        "offload_fraction": (1.0,),
        "activation_offload": (0.0,),
        "shard_group": (0.0, *divisors(case.world)),
        "micro_batch": divisors(case.training.global_batch),
        "vpp": tuple(float(v) for v in range(1, case.architecture.layers + 3)),
    }
    return options.get(field, divisors(case.world))


def _nearest(case: Case, layout: Layout, rule: Rule, field: str, others: tuple[Rule, ...]) -> str:
    """Return up to two lawful values of `field` nearest to the one given: `tp=4 or tp=8`."""
    tried = candidates(case, layout, field)
    if field in CHOICES:
        good = [o for o in tried if _holds_all(case, with_field(layout, field, o), (rule, *others))]
        return " or ".join(spelled(field, o) for o in good[:2])
    values = np.array(tried, dtype=np.float64)
    batch = with_field(layout, field, values.reshape(-1, 1))
    keep = np.ones(len(values), dtype=bool)
    for each in (rule, *others):
        keep &= np.broadcast_to(np.asarray(each.holds(case, batch)).reshape(-1), keep.shape)
    good_values = sorted(values[keep], key=lambda v: (abs(v - float(value(layout, field))), v))[:2]
    return " or ".join(spelled(field, v) for v in sorted(good_values))


def _holds_all(case: Case, layout: Layout, rules: tuple[Rule, ...]) -> bool:
    return all(bool(np.all(rule.holds(case, layout))) for rule in rules)


def with_field(layout: Layout, field: str, what: Any) -> Layout:
    """Return `layout` with one degree or choice replaced."""
    if field in DEGREES:
        return replace(layout, degrees=replace(layout.degrees, **{field: what}))
    return replace(layout, choices=replace(layout.choices, **{field: what}))


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a positive whole number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))
