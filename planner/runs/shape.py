"""The architecture of a row: its own columns and notes first, then the catalogue where name and dimensions agree, then rules."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cost_models.architecture import Architecture
from cost_models.model_laws import size_problems
from hardware.units import GIGA
from planner.runs.assumed import Assumptions, Unfit
from planner.runs.experts import latent_attention, mixture
from planner.runs.frameworks import tokenizer_vocab
from planner.runs.known import known_model

if TYPE_CHECKING:
    from planner.runs.notes import Stated
    from planner.runs.row import Run

_HYBRID = re.compile(
    r"\bnemotron-?3(\.5)?[-_](nano|super|ultra|lightning)|\bnemotron-?h|mamba|jamba|zamba|granite-?4|falcon-?h1|rwkv|lfm2|qwen3-next",
    re.IGNORECASE,
)
_ENCODER = re.compile(r"\b(t5|flan|ul2|mt0|bart|bert|t0)\b|^t0|/t0|/mt0|bert:|t5:", re.IGNORECASE)
_QKV_BIAS = re.compile(r"^qwen-?(1|2|\d+(\.\d+)?b)", re.IGNORECASE)
LLAMA_MULTIPLE = 256
"""A gated MLP without a stated width has 8/3 × hidden, rounded up to this (Llama's multiple_of)."""
GPT2_VOCAB, LLAMA_VOCAB = 50257, 32000


def llama_ffn(hidden: int) -> int:
    """Return Llama's width of a gated MLP: two thirds of 4 × hidden, rounded up."""
    return -(-(8 * hidden // 3) // LLAMA_MULTIPLE) * LLAMA_MULTIPLE


def architecture(run: Run, said: Stated, assumed: Assumptions, *, untied: bool = False) -> Architecture:
    """Return what `run` trains; `untied`: its code base never shares head and embedding.

    Raises Unfit for models that are no dense or MoE decoder.
    """
    _refuse(run, said)
    _check_sizes(run)
    base = _agreeing(run, said)
    values: dict[str, Any] = _traits(run, said, base, assumed) if base is None else _inherited(base)
    assert run.layers is not None and run.hidden is not None and run.heads is not None
    gated = values["gated_mlp"]
    values |= {"id": run.model or "unnamed", "layers": run.layers, "hidden": run.hidden, "heads": run.heads}
    values["mla"] = latent_attention(run, said, base, assumed)
    values["head_dim"] = _head_dim(run, said, base, values, assumed)
    values["kv_heads"] = _kv_heads(run, base, values, assumed)
    values["vocab"] = _vocab(run, said, base, gated, assumed)
    values["ffn_hidden"] = run.ffn_hidden or (base.ffn_hidden if base is not None else None) or _default_ffn(run, gated, assumed)
    values["moe"] = mixture(run, said, base, values, assumed)
    if values["qk_norm"] == "head":
        values["qk_norm_weights"] = 2 * values["head_dim"]
    if untied:
        values["tied_embeddings"] = False
    if said.says("mtp") or said.argument("mtp-num-layers"):
        values["mtp_layers"] = max(1, values.get("mtp_layers", 0))
    return Architecture(**values)


def _refuse(run: Run, said: Stated) -> None:
    patterns = ("hybrid-layer-pattern", "hybrid-override-pattern")
    if said.says("hybrid") or any(flag in said.arguments for flag in patterns) or _HYBRID.search(run.model):
        raise Unfit("unsupported architecture: Mamba hybrid")
    if re.search(r"modelopt_distill", run.model):
        raise Unfit("unsupported architecture: a student with its teacher beside it (distillation)")
    if _ENCODER.search(run.model):
        raise Unfit("unsupported architecture: encoder-decoder or encoder")


def _check_sizes(run: Run) -> None:
    """Raises Unfit for sizes that no model has."""
    names = {"experts": "num_experts"}
    columns = ("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "head_dim", "vocab", "experts", "topk")
    problems = size_problems({names.get(c, c): getattr(run, c) for c in columns if getattr(run, c) is not None})
    if problems:
        raise Unfit(f"contradiction: {problems[0]}")


def _agreeing(run: Run, said: Stated) -> Architecture | None:
    """The catalogue's model of that name, where hidden, heads, layers (unless cut) and experts agree."""
    model = known_model(run.model)
    if model is None or (model.hidden, model.heads) != (run.hidden, run.heads):
        return None
    cut = said.says("cut") or re.search(r"\bcut to \d+ layers\b", run.model)
    if model.layers != run.layers and not cut:
        return None
    if run.experts is not None and run.experts != (model.moe.num_experts if model.moe else 1):
        return None
    if run.gated_mlp is not None and run.gated_mlp != model.gated_mlp:
        return None
    return model


def _inherited(base: Architecture) -> dict[str, Any]:
    """The catalogue's fields, to be overridden by what the row states."""
    return {name: getattr(base, name) for name in type(base).model_fields}


def _traits(run: Run, said: Stated, base: Architecture | None, assumed: Assumptions) -> dict[str, Any]:
    """Norms, biases, positions and tying of a model that the catalogue does not know: Llama's where the MLP is gated, else GPT's."""
    gated = run.gated_mlp if run.gated_mlp is not None else _gated(run, assumed)
    arguments = said.arguments
    squared = said.says("squared_relu") or "squared-relu" in arguments
    neox = re.search(r"stablelm-base|pythia|neox", run.model, re.IGNORECASE) is not None
    mpt = re.search(r"\bmpt\b", run.model, re.IGNORECASE) is not None
    plain = not gated and not squared and not mpt
    position = arguments.get("position-embedding-type") or ("learned" if plain and not neox else "rope")
    bloom = "bloom" in run.model.lower()
    if bloom or mpt:
        position = "alibi"
    position = position if position in ("rope", "learned", "alibi", "none") else "learned"
    layer_norm = not gated and arguments.get("normalization") != "RMSNorm"
    return {
        "family": "llama" if gated else "bloom" if bloom else "mpt" if mpt else "gpt_neox" if neox else "gpt2",
        "gated_mlp": gated,
        "activation": "silu" if gated else "relu2" if squared else "gelu",
        "norm": "layer" if layer_norm else "rms",
        "norm_bias": layer_norm and not mpt,
        "parallel_block": neox,
        "qkv_bias": plain or bool(_QKV_BIAS.match(run.model)),
        "attn_out_bias": plain,
        "mlp_bias": plain,
        "embedding_norm": bloom,
        "positional": position,
        "learned_positions": run.seq_len if position == "learned" else 0,
        "max_positions": run.seq_len,
        "tied_embeddings": _tied(run, said, gated, assumed),
        "qk_norm": "head" if "qk-layernorm" in arguments else "none",
        "source": run.source,
    }


def _gated(run: Run, assumed: Assumptions) -> bool:
    """Whether the MLP is gated, from its width, the parameter count or the model's name, in this order."""
    assert run.layers is not None and run.hidden is not None and run.heads is not None
    h = run.hidden
    if run.ffn_hidden is not None:
        gated, why = run.ffn_hidden != 4 * h, "from ffn_hidden / hidden"
    elif run.params_b is not None:
        plain_b = (12.0 * h * h * run.layers + 2.0 * GPT2_VOCAB * h) / GIGA
        llama_b = ((4.0 * h + 3.0 * llama_ffn(h)) * h * run.layers + 2.0 * LLAMA_VOCAB * h) / GIGA
        gated, why = abs(llama_b - run.params_b) < abs(plain_b - run.params_b), "from the parameter count"
    else:
        plain = re.search(r"gpt|opt|bloom|mpt|falcon|pythia|neox|starcoder|phi-?[12]", run.model, re.IGNORECASE)
        gated, why = plain is None, "from the model's name"
    assumed.note("gated_mlp", "yes" if gated else "no", why)
    return gated


def _tied(run: Run, said: Stated, gated: bool, assumed: Assumptions) -> bool:
    """Whether head and embedding share a matrix: Megatron-type GPTs tie them, gated models do not."""
    if said.arguments:
        return "untie-embeddings-and-output-weights" not in said.arguments
    limit = said.integer("tied_below_b")
    if limit is not None and run.params_b is not None:
        return run.params_b < limit
    tied = not gated and not re.search(r"stablelm-base|pythia|neox", run.model, re.IGNORECASE)
    why = "GPT models tie them, gated ones do not"
    if run.params_b is not None and run.layers and run.hidden and run.ffn_hidden is None and not gated:
        block_b = 12.0 * run.hidden * run.hidden * run.layers / GIGA
        matrix_b = (run.vocab or GPT2_VOCAB) * run.hidden / GIGA
        tied, why = abs(block_b + matrix_b - run.params_b) < abs(block_b + 2.0 * matrix_b - run.params_b), "from the parameter count"
    assumed.note("tied_embeddings", "yes" if tied else "no", why)
    return tied


def _head_dim(run: Run, said: Stated, base: Architecture | None, values: dict[str, Any], assumed: Assumptions) -> int:
    mla = values["mla"]
    if mla is not None:
        return int(mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    stated = run.head_dim or said.integer("head_dim") or said.argument("kv-channels")
    if stated is not None:
        return stated
    if base is not None:
        return base.head_dim
    assert run.hidden is not None and run.heads is not None
    if run.hidden % run.heads:
        raise Unfit(f"contradiction: hidden {run.hidden} is no multiple of heads {run.heads} and head_dim is not stated")
    assumed.note("head_dim", run.hidden // run.heads, "hidden / heads")
    return run.hidden // run.heads


def _kv_heads(run: Run, base: Architecture | None, values: dict[str, Any], assumed: Assumptions) -> int:
    assert run.heads is not None
    if values["mla"] is not None:
        return run.heads
    if run.kv_heads is not None:
        if run.heads % run.kv_heads:
            raise Unfit(f"contradiction: heads {run.heads} is no multiple of kv_heads {run.kv_heads}")
        return run.kv_heads
    if base is not None:
        return base.kv_heads
    assumed.note("kv_heads", run.heads, "as heads")
    return run.heads


def _vocab(run: Run, said: Stated, base: Architecture | None, gated: bool, assumed: Assumptions) -> int:
    if run.vocab is not None:
        return run.vocab
    stated = said.integer("vocab") or said.argument("vocab-size")
    if stated is not None:
        return stated
    if base is not None:
        assumed.note("vocab", base.vocab, f"as {base.id}")
        return base.vocab
    if said.arguments:
        tokenizer = said.arguments.get("tokenizer-type", "GPT2BPETokenizer")
        vocab = tokenizer_vocab(tokenizer)
        if vocab is not None:
            assumed.note("vocab", vocab, f"of {tokenizer}")
            return vocab
    vocab = LLAMA_VOCAB if gated else GPT2_VOCAB
    assumed.note("vocab", vocab, "Llama 2's" if gated else "GPT-2's")
    return vocab


def _default_ffn(run: Run, gated: bool, assumed: Assumptions) -> int:
    assert run.hidden is not None
    width = llama_ffn(run.hidden) if gated else 4 * run.hidden
    assumed.note("ffn_hidden", width, "8/3 × hidden, Llama's rule" if gated else "4 × hidden")
    return width
