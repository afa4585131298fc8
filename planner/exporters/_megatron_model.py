"""The model's share of a Megatron-LM argument list, and the models that it cannot state."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from planner.plan import Plan

ACTIVATIONS: dict[tuple[bool, str], tuple[str, ...]] = {
    (True, "silu"): ("--swiglu",),
    (False, "relu2"): ("--squared-relu",),
    (False, "gelu"): (),
    (False, "gelu_new"): (),
    (False, "gelu_pytorch_tanh"): (),
}
"""(gated, activation) -> arguments."""


def model_arguments(plan: Plan) -> list[str]:
    """Return the arguments that describe architecture, lengths, batch and types."""
    a, t = plan.architecture, plan.training
    given = ["--num-layers", a.layers, "--hidden-size", a.hidden, "--ffn-hidden-size", a.ffn_hidden, "--num-attention-heads", a.heads]
    given += [*_attention(a), "--seq-length", t.seq, "--max-position-embeddings", max(t.seq, a.learned_positions or a.max_positions or 0)]
    given += ["--position-embedding-type", {"rope": "rope", "learned": "learned_absolute"}.get(a.positional, "none")]
    given += ["--vocab-size", a.vocab, "--make-vocab-size-divisible-by", t.vocab_multiple or 128]
    given += ["--normalization", "RMSNorm" if a.norm == "rms" else "LayerNorm", *_mlp_arguments(a)]
    if not a.tied_embeddings:
        given.append("--untie-embeddings-and-output-weights")
    given += _bias_arguments(a)
    if a.moe is not None:
        given += _moe(a, balanced=t.balanced_routing)
    if t.mtp and a.mtp_layers:
        given += ["--mtp-num-layers", a.mtp_layers]
    given += ["--attention-dropout", f"{t.dropout:g}", "--hidden-dropout", f"{t.dropout:g}"]
    return [f"{word}" for word in given]


def model_broken(plan: Plan) -> list[str]:
    """Return what about the model no argument can say; one line each."""
    a = plan.architecture
    checks = (
        (a.positional == "alibi", "ALiBi positions"),
        (a.parallel_block, "attention and MLP side by side (parallel block)"),
        (a.norms_per_layer not in (2,) and not a.parallel_block, f"{a.norms_per_layer} norms per layer"),
        (a.qk_norm == "full", "query and key norms over all heads together"),
        (a.embedding_norm, "a norm after the embedding"),
        (not a.final_norm, "a model without final norm"),
        (a.embed_proj_dim is not None, f"a token embedding of width {a.embed_proj_dim} (model width {a.hidden})"),
        (a.lm_head_bias, "a bias of the output layer"),
        (_biases(a) is None, "linear biases in some layers only (other than query, key and value)"),
        (a.mla is not None and a.mla.q_lora_rank is None and a.heads != a.kv_heads, "MLA with grouped queries"),
    )
    return [f"{a.id} has {what}, for which Megatron-LM has no argument" for broken, what in checks if broken]


def model_notes(plan: Plan) -> tuple[str, ...]:
    """Return where the arguments describe a model of equal size and cost, but not the same function."""
    a = plan.architecture
    said = []
    if (a.gated_mlp, a.activation) not in ACTIVATIONS:
        other = "SwiGLU" if a.gated_mlp else "GELU"
        gated = "gated " if a.gated_mlp else ""
        said.append(f"Megatron-LM has no argument for {gated}{a.activation}: {other} is written, of equal shape and cost")
    if a.norm == "layer" and not a.norm_bias:
        said.append("Megatron-LM's LayerNorm has biases, which this model lacks: they are added (under 0.01 % of the parameters)")
    if a.attn_softcap or a.final_softcap:
        said.append("Megatron-LM has no argument for logit soft-capping: it is left out")
    if a.positional == "rope":
        said.append("the rotary base is the model's own: --rotary-base (default 10000)")
    return tuple(said)


def _attention(a: Architecture) -> list[str | int]:
    given: list[str | int] = []
    if a.mla is not None:
        m = a.mla
        given += ["--multi-latent-attention", "--kv-lora-rank", m.kv_lora_rank, "--qk-head-dim", m.qk_nope_head_dim]
        given += ["--qk-pos-emb-head-dim", m.qk_rope_head_dim, "--v-head-dim", m.v_head_dim]
        if m.q_lora_rank is not None:
            given += ["--q-lora-rank", m.q_lora_rank]
    else:
        given += ["--kv-channels", a.head_dim]
        if a.kv_heads != a.heads:
            given += ["--group-query-attention", "--num-query-groups", a.kv_heads]
    if a.qk_norm != "none":
        given.append("--qk-l2-norm" if a.qk_norm == "l2" else "--qk-layernorm")
    if a.sliding_window is not None:
        given += ["--window-size", f"{a.sliding_window - 1},0"]
        if a.full_attention_every:
            given += ["--window-attn-skip-freq", a.full_attention_every]
    if a.attn_sinks:
        given += ["--softmax-type", "learnable"]
    return given


def _mlp_arguments(a: Architecture) -> tuple[str, ...]:
    return ACTIVATIONS.get((a.gated_mlp, a.activation), ("--swiglu",) if a.gated_mlp else ())


def _biases(a: Architecture) -> tuple[str, ...] | None:
    """Arguments for the linear biases; None where no combination says it."""
    mlp = a.moe.expert_bias if a.moe is not None else a.mlp_bias
    held = (a.qkv_bias, a.attn_out_bias, mlp)
    if held == (True, True, True):
        return ()
    if held == (False, False, False):
        return ("--disable-bias-linear",)
    return ("--disable-bias-linear", "--add-qkv-bias") if held == (True, False, False) else None


def _bias_arguments(a: Architecture) -> tuple[str, ...]:
    return _biases(a) or ()


def _moe(a: Architecture, *, balanced: bool) -> list[str | int]:
    m = a.moe
    if m is None:
        return []
    given: list[str | int] = ["--num-experts", m.num_experts, "--moe-router-topk", m.topk, "--moe-ffn-hidden-size", m.moe_ffn_hidden]
    given += ["--moe-token-dispatcher-type", "alltoall", "--moe-grouped-gemm"]
    if m.topk == 1:
        given.append("--moe-router-pre-softmax")
    if m.shared_ffn_hidden:
        given += ["--moe-shared-expert-intermediate-size", m.shared_ffn_hidden]
    if m.shared_gate:
        given.append("--moe-shared-expert-gate")
    if m.first_k_dense or m.layer_freq > 1:
        given += ["--moe-layer-freq", _moe_pattern(a)]
    if m.score_correction_bias:
        given += ["--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias"]
    if balanced:
        given.append("--moe-router-force-load-balancing")
    return given


def _moe_pattern(a: Architecture) -> str:
    """Layers as Megatron's list expression: `([0]*3+[1]*58)`, 1 for layers with experts."""
    kinds = [int(a.is_moe_layer(i)) for i in range(a.layers)]
    runs: list[list[int]] = []
    for kind in kinds:
        if runs and runs[-1][0] == kind:
            runs[-1][1] += 1
        else:
            runs.append([kind, 1])
    return "(" + "+".join(f"[{kind}]*{count}" for kind, count in runs) + ")"
