"""Case: one architecture, trained one way, on one pool: what a layout is judged against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cost_models.architecture import Architecture
from cost_models.training import Framework, Training
from hardware.spec import Pool
from planner.bands import CONFIDENCE, fit_limit, memory_class
from planner.wish import Wish

HOST_KEPT = 0.05
"""Part of a server's memory that stays with the system and the data loader where no margin is given: an assumption, no run measures it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Everything about a plan but its layout."""

    architecture: Architecture
    training: Training
    pool: Pool
    confidence: float = CONFIDENCE
    """Probability of fit from which a plan is called fitting."""
    margin: float | None = None
    """Part of the capacity that stays free, whatever the confidence; None: what the confidence takes."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Layout field (of Degrees or Choices) -> the value that the user fixed: planner's own preferences about it are lifted."""
    wishes: tuple[Wish, ...] = ()
    """Conditions that a plan must keep beside the laws."""

    @property
    def fixed(self) -> frozenset[str]:
        """Names of the fixed fields."""
        return frozenset(self.given)

    @property
    def framework(self) -> Framework:
        """The framework that trains."""
        return self.training.framework

    @property
    def world(self) -> int:
        """GPUs in the pool."""
        return self.pool.count

    @property
    def limit_bytes(self) -> float:
        """Device bytes that a plan may use: what fits with the asked confidence, or capacity less margin, or what a wish about memory
        alone leaves of it."""
        capacity = self.pool.capacity_bytes
        if self.margin is not None:
            limit = capacity * (1.0 - self.margin)
        else:
            limit = fit_limit(memory_class(self.architecture, self.training), capacity, self.confidence)
        return min([limit, *(most for wish in self.wishes if (most := wish.most("memory")) is not None)])

    @property
    def host_limit_bytes(self) -> float | None:
        """Host bytes that a plan may use on each server; None: unknown."""
        memory = self.pool.node.host_memory_bytes
        return None if memory is None else memory * (1.0 - (HOST_KEPT if self.margin is None else self.margin))

    def under(self, framework: Framework) -> Case:
        """Return the same case in another framework."""
        return self if framework == self.framework else replace(self, training=self.training.model_copy(update={"framework": framework}))
