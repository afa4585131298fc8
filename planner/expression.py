"""Expressions such as `tp*cp <= 8` or `memory <= 70GiB and not sequence_parallel`: read safely, evaluated on numbers or arrays.

    either   := both ("or" both)*
    both     := negation ("and" negation)*
    negation := "not" negation | comparison
    comparison := sum (("=" | "==" | "!=" | "<" | "<=" | ">" | ">=") sum)*
    sum      := product (("+" | "-") product)*
    product  := factor (("*" | "/") factor)*
    factor   := "-" factor | number [unit | "%"] | name | word | "(" either ")"

Names and their kinds are given by whoever parses. Numbers with a unit are bytes or seconds, and kinds must agree, so that `memory <= 70`
is refused instead of read as 70 bytes. `1 < tp <= 8` means both.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hardware.units import quote
from planner.tokens import END, ExpressionError, Token, Vocabulary, tokens

Kind = Literal["number", "bytes", "seconds", "flag", "word"]
MAX_DEPTH = 40
_AMOUNTS = ("number", "bytes", "seconds")
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_EXAMPLES = {"bytes": "70GiB", "seconds": "12s", "number": "8", "flag": "on or off"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Name:
    """What a name stands for."""

    kind: Kind
    words: tuple[str, ...] = ()
    """What a `word` may be."""
    sentence: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One node of the tree. `what`: an operator, `name`, or `constant`."""

    what: str
    kind: Kind
    at: int
    parts: tuple[Node, ...] = ()
    value: Any = None
    """Of a constant; of a name, the name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expression:
    """A condition that was read."""

    text: str
    tree: Node
    names: tuple[str, ...]
    """Names that it reads, in order of appearance."""

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Return the truth of the condition, elementwise where values are arrays. A comparison with NaN is false."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return _evaluate(self.tree, values)


def parse(text: str, names: Mapping[str, Name]) -> Expression:
    """Return the condition that `text` states. Raises ExpressionError, which points at the place."""
    words = tuple(dict.fromkeys(word for name in names.values() for word in name.words))
    reader = _Reader(text=text, names=names, found=tokens(text, Vocabulary(names=tuple(names), words=words)))
    tree = reader.either()
    if reader.here.text != END:
        raise reader.error(f"{quote(reader.here.text)} is not expected here; join conditions with and, or")
    if tree.kind != "flag":
        raise ExpressionError(text, tree.at, f"this is an amount, not a condition; compare it, as in {_example(tree)}")
    return Expression(text=text, tree=tree, names=tuple(dict.fromkeys(_read(tree))))


def _example(node: Node) -> str:
    name = node.value if node.what == "name" else "tp*pp"
    return f"'{name} <= {_EXAMPLES.get(node.kind, '8')}'"


def _read(node: Node) -> list[str]:
    return [node.value] if node.what == "name" else [name for part in node.parts for name in _read(part)]


@dataclass(kw_only=True, slots=True)
class _Reader:
    """Recursive descent over the tokens."""

    text: str
    names: Mapping[str, Name]
    found: list[Token]
    position: int = 0
    depth: int = field(default=0)

    @property
    def here(self) -> Token:
        return self.found[self.position]

    def error(self, message: str) -> ExpressionError:
        return ExpressionError(self.text, self.here.at, message)

    def take(self, *texts: str) -> Token | None:
        """Return the next token if it is an operator of `texts`, and go on."""
        token = self.here
        if token.kind != "operator" or token.text not in texts:
            return None
        self.position += 1
        return token

    def either(self) -> Node:
        return self._joined("or", self.both)

    def both(self) -> Node:
        return self._joined("and", self.negation)

    def _joined(self, word: str, inner: Any) -> Node:
        node: Node = inner()
        while (token := self.take(word)) is not None:
            right = inner()
            for side in (node, right):
                if side.kind != "flag":
                    raise ExpressionError(self.text, side.at, f"{word} joins conditions; compare this, as in {_example(side)}")
            node = Node(what=word, kind="flag", at=token.at, parts=(node, right))
        return node

    def negation(self) -> Node:
        token = self.take("not")
        if token is None:
            return self.comparison()
        self._deeper()
        inner = self.negation()
        self.depth -= 1
        if inner.kind != "flag":
            raise ExpressionError(self.text, inner.at, f"not turns a condition round; compare this, as in {_example(inner)}")
        return Node(what="not", kind="flag", at=token.at, parts=(inner,))

    def comparison(self) -> Node:
        left, said = self.sum(), []
        while (token := self.take("=", "==", "!=", "<", "<=", ">", ">=")) is not None:
            right = self.sum()
            said.append(self._compared("=" if token.text == "==" else token.text, token, left, right))
            left = right
        if not said:
            if left.kind == "word":
                raise ExpressionError(self.text, left.at, f"{quote(str(left.value))} is no condition; {self._words_hint(left)}")
            return left
        node = said[0]
        for more in said[1:]:
            node = Node(what="and", kind="flag", at=more.at, parts=(node, more))
        return node

    def _words_hint(self, node: Node) -> str:
        if node.what == "name":
            return f"compare it with one of {', '.join(self.names[node.value].words)}"
        owners = [name for name, about in self.names.items() if node.value in about.words]
        return f"compare it, as in '{owners[0]} = {node.value}'" if owners else f"known names: {', '.join(self.names)}"

    def _compared(self, operator: str, token: Token, left: Node, right: Node) -> Node:
        left, right = self._as_other(left, right), self._as_other(right, left)
        if left.kind != right.kind:
            wrong, other = (right, left) if right.what == "constant" or left.what != "constant" else (left, right)
            raise ExpressionError(self.text, wrong.at, f"this is {_of(wrong)}, to be compared with {_of(other)}; {self._give(other)}")
        if left.kind in ("word", "flag") and operator not in ("=", "!="):
            raise ExpressionError(self.text, token.at, f"{_of(left)} has no order; use = or !=")
        return Node(what=operator, kind="flag", at=token.at, parts=(left, right))

    def _give(self, other: Node) -> str:
        if other.what == "name" and other.kind == "word":
            return f"give one of {', '.join(self.names[other.value].words)}"
        return f"give one such as {_EXAMPLES.get(other.kind, other.kind)}"

    def _as_other(self, node: Node, other: Node) -> Node:
        """Read a word as the other side needs it: `on` as a truth, and a choice only where it is one of that name's."""
        if node.what != "constant" or node.kind != "word":
            return node
        if other.kind == "flag" and node.value in _TRUTH:
            return Node(what="constant", kind="flag", at=node.at, value=_TRUTH[node.value])
        if other.what == "name" and other.kind == "word" and node.value not in self.names[other.value].words:
            near = difflib.get_close_matches(node.value, self.names[other.value].words, n=1, cutoff=0.5)
            said = f"nearest: {near[0]}" if near else f"it is one of {', '.join(self.names[other.value].words)}"
            raise ExpressionError(self.text, node.at, f"{quote(node.value)} is no {other.value}; {said}")
        return node

    def sum(self) -> Node:
        node = self.product()
        while (token := self.take("+", "-")) is not None:
            right = self.product()
            self._amounts(token, node, right)
            if node.kind != right.kind:
                raise ExpressionError(self.text, token.at, f"{_of(node)} {token.text} {_of(right)} has no meaning")
            node = Node(what=token.text, kind=node.kind, at=node.at, parts=(node, right))
        return node

    def product(self) -> Node:
        node = self.factor()
        while (token := self.take("*", "/")) is not None:
            right = self.factor()
            self._amounts(token, node, right)
            node = Node(what=token.text, kind=self._product_kind(token, node, right), at=node.at, parts=(node, right))
        return node

    def _product_kind(self, token: Token, left: Node, right: Node) -> Kind:
        if right.kind == "number":
            return left.kind
        if token.text == "*" and left.kind == "number":
            return right.kind
        if token.text == "/" and left.kind == right.kind:
            return "number"
        raise ExpressionError(self.text, token.at, f"{_of(left)} {token.text} {_of(right)} has no meaning here")

    def _amounts(self, token: Token, *sides: Node) -> None:
        for side in sides:
            if side.kind not in _AMOUNTS:
                raise ExpressionError(self.text, side.at, f"{_of(side)} cannot be used with {token.text}")

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"nested more than {MAX_DEPTH} deep")

    def factor(self) -> Node:
        token = self.here
        if (minus := self.take("-")) is not None:
            self._deeper()
            inner = self.factor()
            self.depth -= 1
            self._amounts(minus, inner)
            return Node(what="minus", kind=inner.kind, at=minus.at, parts=(inner,))
        if self.take("(") is not None:
            self._deeper()
            inner = self.either()
            self.depth -= 1
            if self.take(")") is None:
                raise self.error(f"the parenthesis of column {token.at + 1} is not closed")
            return inner
        return self._leaf(token)

    def _leaf(self, token: Token) -> Node:
        if token.kind == "operator" or token.text == END:
            raise self.error("something is missing here: a name, a number or a parenthesis")
        self.position += 1
        if token.kind in _AMOUNTS:
            return Node(what="constant", kind=token.kind, at=token.at, value=token.value)  # type: ignore[arg-type]
        if token.kind == "name":
            return Node(what="name", kind=self.names[token.text].kind, at=token.at, value=token.text)
        if token.kind == "word" or token.text in _TRUTH:
            return Node(what="constant", kind="word", at=token.at, value=token.text)
        near = difflib.get_close_matches(token.text.lower(), self.names, n=3, cutoff=0.5)
        said = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(self.names)}"
        raise ExpressionError(self.text, token.at, f"unknown name {quote(token.text)}; {said}")


def _of(node: Node) -> str:
    kinds = {"number": "a plain number", "bytes": "a size", "seconds": "a time", "flag": "a condition", "word": "a word"}
    said = kinds[node.kind]
    return f"{node.value} ({said})" if node.what == "name" else said


def _evaluate(node: Node, values: Mapping[str, Any]) -> Any:
    if node.what == "constant":
        return node.value
    if node.what == "name":
        return values[node.value]
    parts = [_evaluate(part, values) for part in node.parts]
    return _OPERATORS[node.what](*parts)


_OPERATORS: dict[str, Any] = {
    "or": lambda a, b: np.logical_or(a, b),
    "and": lambda a, b: np.logical_and(a, b),
    "not": lambda a: np.logical_not(a),
    "minus": lambda a: -np.asarray(a, dtype=np.float64),
    "+": lambda a, b: np.asarray(a, dtype=np.float64) + b,
    "-": lambda a, b: np.asarray(a, dtype=np.float64) - b,
    "*": lambda a, b: np.asarray(a, dtype=np.float64) * b,
    "/": lambda a, b: np.asarray(a, dtype=np.float64) / np.asarray(b, dtype=np.float64),
    "=": lambda a, b: np.equal(a, b) if not isinstance(a, str) else a == b,
    "!=": lambda a, b: np.not_equal(a, b) if not isinstance(a, str) else a != b,
    "<": lambda a, b: np.less(a, b),
    "<=": lambda a, b: np.less_equal(a, b),
    ">": lambda a, b: np.greater(a, b),
    ">=": lambda a, b: np.greater_equal(a, b),
}
