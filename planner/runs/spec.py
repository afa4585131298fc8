"""A row becomes a Spec: everything that an evaluation takes, what was measured, and what had to be assumed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cost_models.architecture import Architecture
from cost_models.layout import Layout
from cost_models.training import Training
from hardware.spec import Pool
from hardware.units import GIB
from planner.runs.assumed import Assumptions, Unfit
from planner.runs.frameworks import Habits, Setting, framework_names, habits, recipe_batch, recipe_devices
from planner.runs.layout import data_parallel, layout
from planner.runs.notes import Stated, stated
from planner.runs.place import gpu, pool
from planner.runs.row import Run
from planner.runs.shape import architecture
from planner.runs.table import read
from planner.runs.training import iso_date, training

if TYPE_CHECKING:
    from pathlib import Path

NEEDED = ("layers", "hidden", "heads", "seq_len", "gpu", "num_gpus", "tp", "pp", "micro_batch")
"""Columns without which a row cannot be predicted."""
RELEASE_TEST_GPUS, FUNCTIONAL_TEST_GPUS = 64, 8
"""GPUs of Megatron-LM's release tests and of its other functional tests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a row measured, in base units; None: not measured."""

    step_seconds: float | None
    peak_bytes: float | None
    peak_kind: str
    """allocated, reserved, nvidia-smi or unknown; empty without a peak."""
    oom: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """A row ready to be evaluated as stated."""

    run: Run
    architecture: Architecture
    training: Training
    layout: Layout
    pool: Pool
    assumed: dict[str, str]
    """Field -> value and why, for what the row does not state."""
    measured: Measured
    timed: bool
    """The row states a global batch, so that its step time means something."""
    typical_seq: int | None
    """Tokens of the mean sample where `training.seq` is the longest one; None: all samples are of that length."""
    time_representative: bool
    """False where the measured time is of a test mode that nobody trains in (Megatron's golden rows)."""


@dataclass(frozen=True, slots=True)
class Skip:
    """A row that is not evaluated."""

    run: Run
    reason: str
    """In a few words: what is missing, unknown or contradictory."""
    kind: str
    """The part of the reason that rows share: `missing micro_batch`, `unsupported architecture`, …"""


def specs(path: str | Path) -> list[Spec | Skip]:
    """Return every row of the run table `path` as a Spec, or as a Skip with its reason. Raises TableError for other files."""
    return all_specs(read(path).runs)


def all_specs(runs: Iterable[Run]) -> list[Spec | Skip]:
    """Return Spec or Skip for each run; equal architectures, trainings and pools are one object each."""
    same: dict[object, object] = {}

    def shared(made: Spec | Skip) -> Spec | Skip:
        if isinstance(made, Skip):
            return made
        shape = same.setdefault(("architecture", made.architecture), made.architecture)
        place = same.setdefault(("pool", made.pool.model_dump_json()), made.pool)
        assert isinstance(shape, Architecture) and isinstance(place, Pool)
        return replace(made, architecture=shape, pool=place)

    return [shared(spec(run)) for run in runs]


def spec(run: Run) -> Spec | Skip:
    """Return what `run` states, or why it cannot be predicted."""
    if run.bad:
        return Skip(run, run.bad[0], "unreadable cell")
    assumed = Assumptions()
    said = stated(run)
    run = _deduce(run, said, assumed)
    try:
        card = gpu(run) if run.gpu else None
        known = _habits(run)
        timed = run.global_batch is not None
        run = _recipe(_alone(run, known, assumed), said, assumed)
        missing = [name for name in NEEDED if getattr(run, name) in (None, "")]
        if missing:
            return Skip(run, f"does not state {', '.join(missing)}", f"missing {', '.join(missing)}")
        shape = architecture(run, said, assumed, untied=known.untied)
        spread = layout(run, said, known, assumed)
        assert card is not None
        place = pool(run, said, card, assumed)
        trained = training(run, said, known, card, shape, assumed)
    except Unfit as error:
        return Skip(run, str(error), str(error).split(":", 1)[0] if str(error).startswith(("contra", "unknown")) else str(error))
    batch = run.global_batch or _least_batch(run, assumed)
    if timed and run.step_time_s is None and run.tokens_per_s_per_gpu is not None and known.tokens_counted == "trained":
        assumed.note("step_time_s", "from tokens/s", "its tokens per second leave out padding and prompts; none are assumed")
    return Spec(
        run=run,
        architecture=shape,
        training=trained.model_copy(update={"global_batch": batch}),
        layout=spread,
        pool=place,
        assumed=assumed.made,
        measured=measured(run, known.memory_kind),
        timed=timed,
        typical_seq=known.mean_tokens if known.mean_tokens is not None and known.mean_tokens < (run.seq_len or 0) else None,
        time_representative="golden" not in run.source.lower() and not said.says("deterministic"),
    )


def measured(run: Run, printed: str = "unknown") -> Measured:
    """Return the measurements of `run`; a step time that is only given as tokens per second is derived from it.

    `printed`: the kind of peak that its code base prints, for rows that do not say.
    """
    step = run.step_time_s
    if step is None and run.tokens_per_s_per_gpu is not None and run.global_batch and run.seq_len and run.num_gpus:
        step = run.global_batch * run.seq_len / (run.tokens_per_s_per_gpu * run.num_gpus)
    peak = None if run.peak_memory_gib is None else run.peak_memory_gib * GIB
    kind = run.peak_memory_kind if run.peak_memory_kind not in ("", "unknown") else printed
    return Measured(step_seconds=step, peak_bytes=peak, peak_kind=kind if peak else "", oom=run.oom)


def _habits(run: Run) -> Habits:
    parallel = max(run.tp or 1, run.pp or 1, run.ep or 1) > 1
    setting = Setting(
        detail=run.framework_detail,
        date=iso_date(run.date),
        one_gpu=run.num_gpus == 1,
        model_parallel=parallel,
        method=run.method,
        sharding=run.sharding.partition(":")[0],
        model=run.model,
        gpu=run.gpu,
        precision=run.precision,
    )
    known = habits(run.framework, setting)
    if known is None:
        raise Unfit(f"unknown framework: {run.framework[:40]}; known: {', '.join(framework_names())}")
    return known


def _alone(run: Run, known: Habits, assumed: Assumptions) -> Run:
    """Fill the degrees that a code base does not have."""
    changes: dict[str, int] = {}
    if run.num_gpus is None and known.one_gpu_only:
        changes["num_gpus"] = 1
        assumed.note("num_gpus", 1, "the framework's default")
    if known.data_parallel_only or (changes.get("num_gpus") or run.num_gpus) == 1:
        for name in ("tp", "pp"):
            if getattr(run, name) is None:
                changes[name] = 1
                assumed.note(name, 1, "the framework has none")
    if known.tensor_is_sequence and (run.tp or 1) > 1 and run.cp in (None, 1):
        changes |= {"tp": 1, "cp": run.tp or 1}
        assumed.note("cp", run.tp or 1, "its tensor parallel ranks share a sequence and hold whole weights")
    return replace(run, **changes) if changes else run  # type: ignore[arg-type]


def _recipe(run: Run, said: Stated, assumed: Assumptions) -> Run:
    """Fill what the named recipe file sets: its global batch, and its GPUs where the row's machine has more of them."""
    name = said.facts.get("recipe")
    if name is None:
        return run
    changes: dict[str, int] = {}
    batch, devices = recipe_batch(name), recipe_devices(name)
    if run.global_batch is None and batch is not None:
        changes["global_batch"] = batch
        assumed.note("global_batch", batch, name)
    if devices is not None and run.num_gpus is not None and devices < run.num_gpus and run.dp in (None, run.num_gpus):
        changes["num_gpus"] = devices
        assumed.note("num_gpus", devices, f"of {run.num_gpus}: {name}")
    return replace(run, dp=None if "num_gpus" in changes else run.dp, **changes)  # type: ignore[arg-type]


def _deduce(run: Run, said: Stated, assumed: Assumptions) -> Run:
    """Fill what follows from the rest of the row: degrees on one GPU, GPUs from the degrees, GPUs of Megatron's tests."""
    changes: dict[str, int] = {}
    if run.num_gpus is None and run.tp and run.pp and run.dp:
        changes["num_gpus"] = run.tp * run.pp * (run.cp or 1) * run.dp
        assumed.note("num_gpus", changes["num_gpus"], "tp · pp · cp · dp")
    elif run.num_gpus is None and said.arguments:
        changes["num_gpus"] = RELEASE_TEST_GPUS if "release" in run.model else FUNCTIONAL_TEST_GPUS
        assumed.note("num_gpus", changes["num_gpus"], "Megatron-LM's release tests use 64 GPUs, its other functional tests 8")
    if run.num_gpus == 1:
        for name in ("tp", "pp"):
            if getattr(run, name) is None:
                changes[name] = 1
                assumed.note(name, 1, "one GPU")
    if run.global_batch is None and "step-batch-size-schedule" in said.arguments:
        first = said.arguments["step-batch-size-schedule"].split(" ")[0].partition(":")[2]
        if first.isdigit():
            changes["global_batch"] = int(first)
            assumed.note("global_batch", first, "first step of step-batch-size-schedule")
    return replace(run, **changes) if changes else run  # type: ignore[arg-type]


def _least_batch(run: Run, assumed: Assumptions) -> int:
    """A global batch for rows without one: as many micro-batches as stages, so that the pipeline fills."""
    assert run.micro_batch is not None and run.pp is not None
    batch = run.micro_batch * data_parallel(run, assumed) * run.pp
    assumed.note("global_batch", batch, "micro_batch · dp · pp, for memory alone")
    return batch
