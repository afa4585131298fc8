"""CP-SAT model of the stage problem: variables, constraints, objectives."""

from __future__ import annotations

from fractions import Fraction

from ortools.sat.python import cp_model

from planner.solver.chain import WEIGHT_DENOMINATOR, Chain

SEED = 0
Found = tuple[tuple[int, ...], int, float, bool]


class ChainModel:
    """One boolean for each option of each stage, and one integer for the longest path."""

    def __init__(self, chain: Chain, quantum_seconds: float, denominator: int) -> None:
        self.chain = chain
        self.model = cp_model.CpModel()
        self.picked = [[self.model.new_bool_var(f"s{s}o{o}") for o in range(len(options))] for s, options in enumerate(chain.stages)]
        self._one_each()
        self._chained()
        self.longest = self._paths(quantum_seconds, denominator)

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
                outgoing: cp_model.LinearExprT = sum(starts.get(layer, [])) if s < len(self.chain.stages) else int(layer == self.chain.layers)
                self.model.add(incoming == outgoing)

    def _paths(self, quantum_seconds: float, denominator: int) -> cp_model.IntVar:
        """The longest path bounds every path."""
        ticks = [[round(o.seconds / quantum_seconds) for o in options] for options in self.chain.stages]
        weights = [[int(Fraction(w).limit_denominator(WEIGHT_DENOMINATOR) * denominator) for w in path] for path in self.chain.paths]
        most = max(sum(w * max(t) for w, t in zip(path, ticks, strict=True)) for path in weights)
        longest = self.model.new_int_var(0, most, "longest")
        for path in weights:
            terms = [w * t * v for w, stage, picked in zip(path, ticks, self.picked, strict=True) for t, v in zip(stage, picked, strict=True)]
            self.model.add(longest >= sum(terms))
        return longest

    def minimise(self, time_limit_seconds: float) -> Found | None:
        """Return (chosen options, ticks of the longest path, bound in ticks, proved), None where nothing is feasible."""
        self.model.minimize(self.longest)
        solver = _solver(time_limit_seconds)
        status = solver.solve(self.model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        return self._chosen(solver), int(solver.objective_value), float(solver.best_objective_bound), status == cp_model.OPTIMAL

    def earliest(self, longest: int, time_limit_seconds: float) -> tuple[int, ...] | None:
        """Return, among the choices whose longest path is at most `longest` ticks, the one of least total time, then of earliest options."""
        self.model.add(self.longest <= longest)
        rank = [o * (s + 1) * v for s, picked in enumerate(self.picked) for o, v in enumerate(picked)]
        self.model.minimize(sum(rank))
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
