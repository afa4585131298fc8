"""Keys of one JSON object, read with types and limits; problems are collected so that all are told at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cost_models.model_laws import LIMITS, shown, size_problem

PLACEHOLDER = 1
"""Stands for a size that was refused, until the problems are raised together."""


class Keys:
    """A JSON object under a label. `null` counts as absent, as the Hub's own classes have it."""

    def __init__(self, values: Mapping[str, object], prefix: str = "") -> None:
        self.values = values
        self.prefix = prefix
        self.problems: list[str] = []
        self.assumed: list[str] = []
        self.warnings: list[str] = []

    def has(self, key: str) -> bool:
        """Tell whether `key` is there, `null` included."""
        return key in self.values

    def get(self, *names: str) -> object:
        """Return the first value that is neither absent nor null; None without one."""
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        return None

    def problem(self, text: str) -> None:
        """Note a problem of this object."""
        self.problems.append(self.prefix + text)

    def size(self, field: str, *names: str, default: int | None = None, minimum: int = 1) -> int:
        """Return the size under the first of `names` that is there, within the limits of `field`; else `default`.

        Without a default a missing key is a problem, and so are two names that disagree.
        """
        present = [(name, self.values[name]) for name in names if self.values.get(name) is not None]
        if not present:
            if default is None:
                self.problem(f"{' or '.join(names[:2])} is missing")
                return PLACEHOLDER
            return default
        name, value = present[0]
        trouble = size_problem(name, value, LIMITS.get(field, 10**9), minimum)
        if trouble:
            self.problem(trouble)
            return PLACEHOLDER
        for other, second in present[1:]:
            if second != value:
                self.problem(f"{name} = {shown(value)} and {other} = {shown(second)} contradict each other")
        assert isinstance(value, int)
        return value

    def optional_size(self, field: str, *names: str) -> int | None:
        """Return the size under one of `names`, None where it is absent or null."""
        return None if self.get(*names) is None else self.size(field, *names)

    def flag(self, name: str, default: bool) -> bool:
        """Return the boolean under `name`, `default` where it is absent or null."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.problem(f"{name} = {shown(value)} must be true or false")
            return default
        return value

    def text(self, *names: str, default: str) -> str:
        """Return the string under one of `names`, `default` where it is absent or null."""
        value = self.get(*names)
        if value is None:
            return default
        if not isinstance(value, str):
            self.problem(f"{names[0]} = {shown(value)} must be text")
            return default
        return value

    def part(self, name: str) -> Keys | None:
        """Return the object under `name`; None where it is absent or null. Its problems join these."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.problem(f"{name} = {shown(value)} must be an object")
            return None
        inner = Keys(value, f"{self.prefix}{name}.")
        inner.problems, inner.assumed, inner.warnings = self.problems, self.assumed, self.warnings
        return inner

    def replaced(self, more: Mapping[str, object]) -> Keys:
        """Return these keys with some values replaced; problems, assumptions and warnings stay shared."""
        changed = Keys({**self.values, **more}, self.prefix)
        changed.problems, changed.assumed, changed.warnings = self.problems, self.assumed, self.warnings
        return changed

    def items(self, name: str) -> Sequence[object] | None:
        """Return the list under `name`; None where it is absent or null."""
        value = self.values.get(name)
        if value is None or isinstance(value, list):
            return value
        self.problem(f"{name} = {shown(value)} must be a list")
        return None
