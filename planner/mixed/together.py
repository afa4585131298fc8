"""Together: the best plans over all pools of a mixed cluster, beside the best single pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from cost_models.layout import Choices, Degrees, Layout
from cost_models.numeric import num
from hardware.units import significant
from planner.mixed.link import Link
from planner.mixed.replicas import GAP, Replicas
from planner.mixed.stages import UNEVEN, Looked, best_stages
from planner.plan import Mixed, MixedPlan, Plan
from planner.rules import laws

if TYPE_CHECKING:
    from cost_models.training import Framework
    from hardware.spec import Pool
    from planner.case import Case
    from planner.request import Resolved

ALL_SUBSETS = 3
"""Pools up to which every two or more of them are planned together; beyond, all of them."""
EQUAL = 0.005
"""Relative: steps nearer than this are called equal."""


def together(
    resolved: Resolved,
    frameworks: Sequence[Framework],
    single: Plan | None,
    *,
    deadline: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Mixed:
    """Return the best plan of each kind and framework over several pools, best first, and what it wins over `single`, the best plan of
    one pool. Raises TimeoutError past the deadline."""  # fmt: skip
    pools = resolved.cluster.pools
    link = Link.of(resolved.cluster)
    refusals: dict[str, None] = dict.fromkeys(_limits(resolved))
    plans: list[MixedPlan] = []
    proof: list[str] = []
    if resolved.training.method != "inference":
        for chosen in _subsets(pools):
            for framework in frameworks:
                if progress is not None:
                    progress(f"{framework} over {_names(chosen)}")
                cases = [resolved.case(pool, framework) for pool in chosen]
                said = list(_refused(cases))
                refusals.update(dict.fromkeys(said))
                if not said:
                    known = [p.step_seconds for p in plans] + ([] if single is None else [float(num(single.cost.time.step_seconds))])
                    made, sentence = _of_framework(cases, link, deadline, min(known, default=float("inf")), refusals)
                    plans += made
                    proof += sentence
    plans.sort(key=lambda p: (p.step_seconds, p.kind, p.framework))
    kept = tuple(plans)
    return Mixed(
        plans=kept,
        comparison=_comparison(pools, kept[0] if kept else None, single),
        single=single,
        links=link.sentences(pools),
        refusals=tuple(refusals),
        proof="; ".join(dict.fromkeys(proof)),
    )


def _limits(resolved: Resolved) -> Iterator[str]:
    """What mixed plans do not do of the request."""
    if resolved.training.method == "inference":
        yield "inference is planned on each pool alone: requests can be shared out between servers that know nothing of each other"
    if resolved.objective != "time":
        yield f"plans over several pools are ranked by time, not by {resolved.objective}"
    unmet = [w.spelled for w in resolved.wishes if w.needs_results and w.most("memory") is None]
    if unmet:
        yield f"plans over several pools are not held to wishes about results: {', '.join(unmet)}"
    if len(resolved.cluster.pools) > ALL_SUBSETS:
        yield f"of more than {ALL_SUBSETS} pools only all together are planned, not some of them"


def _subsets(pools: Sequence[Pool]) -> Iterator[tuple[Pool, ...]]:
    yield tuple(pools)
    if len(pools) <= ALL_SUBSETS:
        for size in range(len(pools) - 1, 1, -1):
            yield from combinations(pools, size)


def _refused(cases: Sequence[Case]) -> Iterator[str]:
    """Laws about the task itself that a pool breaks: a type that one card lacks holds for the whole plan."""
    layout = Layout(degrees=Degrees(), choices=Choices(sequence_parallel=False))
    for case in cases:
        for rule in laws(case):
            if not rule.reads and not rule.holds(case, layout):
                yield rule.given(case, layout)


def _of_framework(
    cases: Sequence[Case], link: Link, deadline: float | None, target: float, refusals: dict[str, None]
) -> tuple[list[MixedPlan], list[str]]:
    """Return the best plan of each kind, and what was looked at."""
    framework, plans, proof = cases[0].framework, [], []
    try:
        replicas = Replicas(cases, link, deadline)
        best = replicas.best()
        if best is not None:
            plans.append(best)
            claim = f"no share of the batch and no lawful layout of a pool is faster by more than {GAP:.1%}".replace("%", " %")
            proof.append(f"replicas: {claim}" if replicas.proved else f"replicas in {framework}: stopped early, better shares may exist")
        else:
            refusals[f"replicas in {framework}: no shares of the global batch {cases[0].training.global_batch:,} are lawful"] = None
    except LookupError as error:
        refusals[f"replicas: {error}"] = None
    if framework not in UNEVEN:
        return plans, proof
    if str(cases[0].given.get("schedule", "1f1b")) != "1f1b":
        refusals["stages of unequal pools run under the 1f1b schedule alone"] = None
        return plans, proof
    pipeline, looked = best_stages(cases, link, deadline, min([target, *(p.step_seconds for p in plans)]))
    if pipeline is not None:
        plans.append(pipeline)
    else:
        refusals[f"stages in {framework}: none of {looked.candidates:,} pipelines over the pools fits without offload"] = None
    return plans, [*proof, _looked(framework, looked)]


def _looked(framework: str, looked: Looked) -> str:
    if not looked.candidates:
        return f"stages in {framework}: no pipeline over the pools is lawful and has room for the model"
    said = f"stages in {framework}: {looked.candidates:,} pipelines, none faster than {significant(looked.bound_seconds)} s by its bound,"
    said += f" {looked.solved:,} with their layers chosen" + (" (not over all splits)" if looked.windowed else "")
    stopped = looked.stopped_seconds
    return said + ("" if stopped is None else f"; those of a bound of {significant(stopped)} s and more were not")


def _names(pools: Sequence[Pool]) -> str:
    return " + ".join(f"{pool.count} × {pool.gpu.name}" for pool in pools)


def _comparison(pools: Sequence[Pool], best: MixedPlan | None, single: Plan | None) -> str:
    """Return what is won or lost, with numbers."""
    alone = "" if single is None else f"{_names((single.pool,))} alone"
    step = float("inf") if single is None else float(num(single.cost.time.step_seconds))
    if best is None:
        return f"no plan spans the pools; best: {alone}, {significant(step)} s a step" if single is not None else "no plan spans the pools"
    mixed = f"{_names([part.plan.pool for part in best.parts])} as {best.kind}: {significant(best.step_seconds)} s a step"
    if single is None:
        return f"{mixed}; no pool alone holds a plan"
    beside = f"{significant(step)} s on {alone}"
    if best.step_seconds < step * (1.0 - EQUAL):
        return f"{mixed} against {beside}: {step / best.step_seconds - 1.0:.1%} more tokens/s".replace("%", " %")
    others = [part.plan.pool for part in best.parts if part.plan.pool.gpu.id != single.pool.gpu.id] or [p.plan.pool for p in best.parts]
    verb = "does" if len(others) == 1 and others[0].count == 1 else "do"
    ratio = step / best.step_seconds
    lost = f"{1.0 - ratio:.1%} fewer tokens/s" if ratio < 1.0 else f"{ratio - 1.0:.1%} more"
    return (
        f"{_names(others)} {verb} not help: best is {beside}; the fastest plan found over the pools, as {best.kind}, takes"
        f" {significant(best.step_seconds)} s, {lost}"
    ).replace("%", " %")
