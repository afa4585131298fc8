"""Terms and ledgers: every total is a sum of named terms, each with its unit and its source."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cost_models.numeric import Num, num


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """One named summand of a ledger."""

    name: str
    """Dotted, from the bucket down: ``activations.attention.qkv_input``."""
    value: Num
    """Shape () or (N, 1) or (…, K); broadcasts against the other terms of its ledger."""
    source: str
    """Paper and equation, framework file, datasheet or calibration that the term rests on."""
    formula: str = ""
    """The formula in names, for the report."""
    exposed: Num | None = None
    """Seconds that lengthen the step (time ledgers only); None: all of `value`."""
    hidden: str = ""
    """What hides the others, and under which condition."""

    @property
    def bucket(self) -> str:
        """The first part of the name."""
        return self.name.split(".", 1)[0]


@dataclass(frozen=True, slots=True)
class Ledger:
    """Ordered terms in one unit."""

    unit: str
    terms: tuple[Term, ...] = field(default=())
    known: npt.NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    """The total, where it has been added up already."""

    @property
    def total(self) -> npt.NDArray[np.float64]:
        """Sum of the terms, added left to right (so a batch equals its rows bit for bit)."""
        return add(term.value for term in self.terms) if self.known is None else self.known

    def plus(self, *terms: Term) -> Ledger:
        """Return the ledger with further terms. Its total goes on from this one's, so that ledgers that begin alike share the sum."""
        values = tuple(term.value for term in terms)
        return Ledger(self.unit, self.terms + terms, add((self.total, *values) if self.terms else values))

    @property
    def exposed(self) -> npt.NDArray[np.float64]:
        """Sum of what lengthens the step."""
        return add(term.value if term.exposed is None else term.exposed for term in self.terms)

    def bucket(self, name: str) -> npt.NDArray[np.float64]:
        """Sum of the terms of one bucket, 0 where it has none."""
        return add(term.value for term in self.terms if term.bucket == name)

    def buckets(self) -> tuple[str, ...]:
        """Names of the buckets, in order of appearance."""
        return tuple(dict.fromkeys(term.bucket for term in self.terms))

    def map(self, change: Callable[[Num], Num]) -> Ledger:
        """Return the ledger with `change` applied to every value (to take one row, or one stage)."""
        return Ledger(
            self.unit,
            tuple(
                Term(
                    name=t.name,
                    value=change(t.value),
                    source=t.source,
                    formula=t.formula,
                    exposed=None if t.exposed is None else change(t.exposed),
                    hidden=t.hidden,
                )
                for t in self.terms
            ),
        )

    def __add__(self, other: Ledger) -> Ledger:
        if other.unit != self.unit:
            raise ValueError(f"a ledger in {other.unit} cannot be added to one in {self.unit}")
        return Ledger(self.unit, self.terms + other.terms)


def add(values: Iterable[Num]) -> npt.NDArray[np.float64]:
    """Add values left to right; 0 for none. The sum is kept in one array from where its shape is final."""
    total: npt.NDArray[np.float64] | None = None
    own = False
    for value in values:
        x = num(value)
        if total is None:
            total = x
        elif own and x.ndim <= total.ndim and x.size in (1, len(total), total.size):
            np.add(total, x, out=total)
        else:
            total = num(total + x)
            own = total.ndim > 0
    return num(0.0) if total is None else total
