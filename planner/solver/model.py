"""CP-SAT model of the stage problem: variables, constraints, objectives."""

from __future__ import annotations

from fractions import Fraction

from ortools.sat.python import cp_model

from planner.solver.chain import WEIGHT_DENOMINATOR, Chain

SEED = 0
Found = tuple[tuple[int, ...], int, float, bool]


class ChainModel:
    """One boolean for each option of each stage, and one integer for the longest path."""

    def __init__(self, chain: Chain, quantum_seconds: float, denominator: int, ceiling: int | None = None) -> None:
        self.chain = chain
        self.model = cp_model.CpModel()
        self.picked = [[self.model.new_bool_var(f"s{s}o{o}") for o in range(len(options))] for s, options in enumerate(chain.stages)]
        self._one_each()
        self._chained()
        self.longest = self._paths(quantum_seconds, denominator)
        if ceiling is not None:
            self.model.add(self.longest <= max(0, ceiling))

    def _one_each(self) -> None:
        """Each stage takes one option."""
        for picked in self.picked:
            self.model.add_exactly_one(picked)

    def _chained(self) -> None:
        """An option is reached from options that end where it starts: flow through the layers between neighbouring stages."""
        for s in range(len(self.chain.stages) + 1):
            ends: dict[int, list[cp_model.IntVar]] = {}
            starts: dict[int, list[cp_model.IntVar]] = {}
            if s > 0:
                for option, var in zip(self.chain.stages[s - 1], self.picked[s - 1], strict=True):
                    ends.setdefault(option.start + option.layers, []).append(var)
            if s < len(self.chain.stages):
                for option, var in zip(self.chain.stages[s], self.picked[s], strict=True):
                    starts.setdefault(option.start, []).append(var)
            for layer in sorted({*ends, *starts}):
                incoming: cp_model.LinearExprT = sum(ends.get(layer, [])) if s > 0 else int(layer == 0)
                last = s == len(self.chain.stages)
                outgoing: cp_model.LinearExprT = int(layer == self.chain.layers) if last else sum(starts.get(layer, []))
                self.model.add(incoming == outgoing)

    def _paths(self, quantum_seconds: float, denominator: int) -> cp_model.IntVar:
        """The longest path bounds every path."""
        ticks = [[round(o.seconds / quantum_seconds) for o in options] for options in self.chain.stages]
        weights = [[int(Fraction(w).limit_denominator(WEIGHT_DENOMINATOR) * denominator) for w in path] for path in self.chain.paths]
        most = max(sum(w * max(t) for w, t in zip(path, ticks, strict=True)) for path in weights)
        longest = self.model.new_int_var(0, most, "longest")
        for path in weights:
            self.model.add(longest >= self._weighted(path, ticks))
        self._slowest(weights, ticks, longest)
        return longest

    def _weighted(self, weights: list[int], ticks: list[list[int]]) -> cp_model.LinearExprT:
        booleans = [v for picked in self.picked for v in picked]
        return cp_model.LinearExpr.weighted_sum(booleans, [w * t for w, stage in zip(weights, ticks, strict=True) for t in stage])

    def _slowest(self, weights: list[list[int]], ticks: list[list[int]], longest: cp_model.IntVar) -> None:
        """Implied: the path through the slowest stage takes its own weight times the slowest time, and of the others at least the least
        weight that any path gives them. It ties the objective to the one time that decides, which the solver then branches on."""
        times = cp_model.Domain.from_values(sorted({t for stage in ticks for t in stage}))
        slowest = self.model.new_int_var_from_domain(times, "slowest")
        for stage, picked in zip(ticks, self.picked, strict=True):
            self.model.add(slowest >= cp_model.LinearExpr.weighted_sum(picked, stage))
        least = [min(path[s] for path in weights) for s in range(len(ticks))]
        own = min(path[j] - least[j] for j, path in enumerate(weights)) if len(weights) == len(ticks) else 0
        self.model.add(longest - own * slowest >= self._weighted(least, ticks))

    def minimise(self, time_limit_seconds: float) -> Found | None:
        """Return (chosen options, ticks of the longest path, bound in ticks, proved), None where nothing is feasible."""
        self.model.minimize(self.longest)
        solver = _solver(time_limit_seconds)
        status = solver.solve(self.model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        return self._chosen(solver), int(solver.objective_value), float(solver.best_objective_bound), status == cp_model.OPTIMAL

    def earliest(self, longest: int, time_limit_seconds: float) -> tuple[int, ...] | None:
        """Return, among the choices whose longest path is at most `longest` ticks, the one of the earliest options."""
        self.model.add(self.longest <= longest)
        ranks = [(o * (s + 1), v) for s, picked in enumerate(self.picked) for o, v in enumerate(picked)]
        self.model.minimize(cp_model.LinearExpr.weighted_sum([v for _, v in ranks], [r for r, _ in ranks]))
        solver = _solver(time_limit_seconds)
        return self._chosen(solver) if solver.solve(self.model) in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None

    def _chosen(self, solver: cp_model.CpSolver) -> tuple[int, ...]:
        return tuple(next(o for o, v in enumerate(picked) if solver.boolean_value(v)) for picked in self.picked)


def _solver(time_limit_seconds: float) -> cp_model.CpSolver:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = SEED
    solver.parameters.max_deterministic_time = time_limit_seconds
    return solver
