"""CP-SAT model of the stage problem: variables, constraints, objectives."""

from __future__ import annotations

from fractions import Fraction

from ortools.sat.python import cp_model

from planner.solver.chain import NODE, WEIGHT_DENOMINATOR, Chain, Node, Option, Path, depths

SEED = 0
ORDER_BITS = 50
"""Bits of one lexicographic objective: stages are put in order as many at a time as it holds."""
Found = tuple[tuple[int, ...], int, float, bool]


class ChainModel:
    """One boolean for each option of each stage, an integer for each time of a stage, and one for each maximum."""

    def __init__(self, chain: Chain, quantum_seconds: float, denominator: int) -> None:
        self.chain = chain
        self.quantum, self.denominator = quantum_seconds, denominator
        self.model = cp_model.CpModel()
        self.picked = [[self.model.new_bool_var(f"s{s}o{o}") for o in range(len(options))] for s, options in enumerate(chain.stages)]
        self._one_each()
        self._one_level()
        self._covering()
        self.times: dict[tuple[int, int], cp_model.IntVar] = {}
        self.objective = self._objective()

    def at_most(self, ticks: int) -> None:
        """Allow only choices whose objective is at most `ticks`."""
        self.model.add(self.objective <= max(0, ticks))

    def _one_each(self) -> None:
        """Each stage takes one option."""
        for picked in self.picked:
            self.model.add_exactly_one(picked)

    def _one_level(self) -> None:
        """All stages take options of one level."""
        levels = sorted({o.level for options in self.chain.stages for o in options})
        self.levels = {level: self.model.new_bool_var(f"level{level}") for level in levels}
        self.model.add_exactly_one(self.levels.values())
        if len(levels) == 1:
            return
        for options, picked in zip(self.chain.stages, self.picked, strict=True):
            for level, chosen in self.levels.items():
                self.model.add(sum(v for o, v in zip(options, picked, strict=True) if o.level == level) == chosen)

    def _covering(self) -> None:
        """The layers add up, and an option that names starts begins at one of them."""
        before: cp_model.LinearExpr = cp_model.LinearExpr.sum([])
        for options, picked in zip(self.chain.stages, self.picked, strict=True):
            by_starts: dict[tuple[int, ...], list[cp_model.IntVar]] = {}
            for option, var in zip(options, picked, strict=True):
                if option.starts is not None:
                    by_starts.setdefault(option.starts, []).append(var)
            for starts, those in by_starts.items():
                domain = cp_model.Domain.from_values(list(starts))
                for var in those:
                    self.model.add_linear_expression_in_domain(before, domain).only_enforce_if(var)
            held = cp_model.LinearExpr.weighted_sum(picked, [o.layers for o in options])
            before = cp_model.LinearExpr.sum([before, held])
        self.model.add(before == self.chain.layers)

    def _ticks(self, options: tuple[Option, ...], value: int) -> list[int]:
        return [round(o.values[value] / self.quantum) for o in options]

    def _time(self, stage: int, value: int) -> cp_model.IntVar:
        """The value of a stage's option, as an integer variable."""
        key = (stage, value)
        if key not in self.times:
            ticks = self._ticks(self.chain.stages[stage], value)
            var = self.model.new_int_var_from_domain(cp_model.Domain.from_values(sorted(set(ticks))), f"t{stage}v{value}")
            self.model.add(var == cp_model.LinearExpr.weighted_sum(self.picked[stage], ticks))
            self.times[key] = var
        return self.times[key]

    def _objective(self) -> cp_model.LinearExprT:
        """The sum of the nodes that count, in ticks of the finest unit: quantum / denominator ** depth."""
        self.depths = depths(self.chain)
        self.nodes: list[tuple[cp_model.IntVar, int]] = []
        for number, node in enumerate(self.chain.nodes):
            self.nodes.append(self._node(number, node))
        deepest = max(self.depths)
        self.unit = self.denominator**deepest
        counted = [i for i, node in enumerate(self.chain.nodes) if node.counts]
        weights = [self.denominator ** (deepest - self.depths[i]) for i in counted]
        return cp_model.LinearExpr.weighted_sum([self.nodes[i][0] for i in counted], weights)

    def _node(self, number: int, node: Node) -> tuple[cp_model.IntVar, int]:
        """Return the variable of a node, and the most it can be: it bounds all of its paths from above."""
        sums, most = [], 0
        for path in node.paths:
            path_sum, top = self._sum(path, self.depths[number])
            sums.append(path_sum)
            most = max(most, top)
        largest = self.model.new_int_var(0, most, f"n{number}")
        for path_sum in sums:
            self.model.add(largest >= path_sum)
        return largest, most

    def _sum(self, path: Path, depth: int) -> tuple[cp_model.LinearExpr, int]:
        """Return a path as an expression in units of a node of `depth`, and the most it can be."""
        variables, weights, most = [], [], 0
        for s, v, w in path:
            if s == NODE:
                (var, top), own = self.nodes[v], self.depths[v]
            else:
                var, top, own = self._time(s, v), max(self._ticks(self.chain.stages[s], v)), 0
            weight = self._weight(w, depth - own)
            variables.append(var)
            weights.append(weight)
            most += max(weight, 0) * top
        return cp_model.LinearExpr.weighted_sum(variables, weights), most

    def hint(self, chosen: tuple[int, ...]) -> None:
        """Start from a known choice, with all that follows from it."""
        for picked, i in zip(self.picked, chosen, strict=True):
            for o, var in enumerate(picked):
                self.model.add_hint(var, o == i)
        level = self.chain.stages[0][chosen[0]].level
        for number, var in self.levels.items():
            self.model.add_hint(var, number == level)
        ticks = {key: self._ticks(self.chain.stages[key[0]], key[1])[chosen[key[0]]] for key in self.times}
        for key, var in self.times.items():
            self.model.add_hint(var, ticks[key])
        values: list[int] = []
        for (var, _), node, depth in zip(self.nodes, self.chain.nodes, self.depths, strict=True):
            paths = [
                sum(
                    self._weight(w, depth - self.depths[v]) * values[v] if s == NODE else self._weight(w, depth) * ticks[s, v]
                    for s, v, w in path
                )
                for path in node.paths
            ]
            values.append(max(0, *paths))
            self.model.add_hint(var, values[-1])

    def _weight(self, weight: float, depth: int) -> int:
        """Return a weight of something whose unit the denominator divides `depth` times less often."""
        return int(Fraction(weight).limit_denominator(WEIGHT_DENOMINATOR) * self.denominator**depth)

    def minimise(self, time_limit_seconds: float) -> Found | bool | None:
        """Return (chosen options, objective and bound in ticks, proved); False where nothing is feasible, None where nothing was found."""
        self.model.minimize(self.objective)
        solver = _solver(time_limit_seconds)
        status = solver.solve(self.model)
        if status == cp_model.INFEASIBLE:
            return False
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        return self._chosen(solver), int(solver.objective_value), float(solver.best_objective_bound), status == cp_model.OPTIMAL

    def earliest(self, most: int, time_limit_seconds: float) -> tuple[int, ...] | None:
        """Return, among the choices whose objective is at most `most` ticks, the first in lexicographic order of the options."""
        self.model.add(self.objective <= most)
        chosen: tuple[int, ...] | None = None
        stage = 0
        while stage < len(self.picked):
            weights, end = self._digits(stage)
            order = cp_model.LinearExpr.weighted_sum([v for v, _ in weights], [w for _, w in weights])
            self.model.minimize(order)
            solver = _solver(time_limit_seconds)
            if solver.solve(self.model) != cp_model.OPTIMAL:
                return chosen
            chosen = self._chosen(solver)
            for s in range(stage, end):
                self.model.add(self.picked[s][chosen[s]] == 1)
            stage = end
        return chosen

    def _digits(self, stage: int) -> tuple[list[tuple[cp_model.IntVar, int]], int]:
        """Weights that put the options of as many stages as fit in order, most significant first, and the stage after them."""
        end, room = stage, 1
        while end < len(self.picked) and room * len(self.picked[end]) <= 2**ORDER_BITS:
            room *= len(self.picked[end])
            end += 1
        end = max(end, stage + 1)
        weights, unit = [], 1
        for s in range(end - 1, stage - 1, -1):
            weights += [(v, o * unit) for o, v in enumerate(self.picked[s])]
            unit *= len(self.picked[s])
        return weights, end

    def _chosen(self, solver: cp_model.CpSolver) -> tuple[int, ...]:
        return tuple(next(o for o, v in enumerate(picked) if solver.boolean_value(v)) for picked in self.picked)


def _solver(time_limit_seconds: float) -> cp_model.CpSolver:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = SEED
    solver.parameters.max_deterministic_time = time_limit_seconds
    return solver
