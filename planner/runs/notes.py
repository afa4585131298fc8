"""What the free text of a row states: one small regular expression per fact, first match wins."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.runs.row import Run


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact and how it is written."""

    name: str
    pattern: re.Pattern[str]
    value: str = ""
    """What the fact is when the pattern has no group; empty: the first group that matched."""
    everywhere: bool = False
    """Look into `framework_detail` and `inferred` too."""


def _fact(name: str, pattern: str, value: str = "", *, everywhere: bool = False) -> Fact:
    return Fact(name, re.compile(pattern), value, everywhere)


FINE_GRAINED_TEST = "expert_fc1,moe_act,attn_norm,mlp_norm,qkv_linear,core_attn,attn_proj"
"""--offload-modules of the tests that are named so (Megatron-LM tests/functional_tests/test_cases/moe/*_fine_grained_offloading)."""
FACTS: tuple[Fact, ...] = (
    # architecture
    _fact("head_dim", r"\bhead_dim (\d+)\b"),
    _fact("moe_ffn", r"(?:\bmoe_ffn|\bMoE ffn|\bper-expert ffn) (\d+)"),
    _fact("ffn_is_expert", r"\bffn_hidden (?:is )?per (?:routed )?expert\b", "yes"),
    _fact("ffn_is_dense", r"\bffn_hidden is the dense layer\b", "yes"),
    _fact("dense_ffn", r"\bdense (?:layers? )?ffn (\d+)"),
    _fact("dense_layers", r"\b(\d+) dense layers?\b"),
    _fact("layer_freq", r"\bMoE on every other layer\b", "2"),
    _fact("shared_width", r"\b(?:one shared expert of|moe_ffn \d+, shared) (\d+)"),
    _fact("shared_experts", r"\b(\d+) shared experts?\b"),
    _fact("shared_experts", r"\bone shared expert\b|\+ shared expert\b", "1"),
    _fact("mla", r"\bMLA\b", "yes"),
    _fact("q_lora", r"\bq_lora (\d+)"),
    _fact("kv_lora", r"\bkv_lora (\d+)"),
    _fact("vocab", r"\bV=(\d+)"),
    _fact("tied_below_b", r"\btied below (\d+)B", everywhere=True),
    _fact("hybrid", r"\bhybrid (Mamba\S*)", everywhere=True),
    _fact("cut", r"\bPROXY: (\d+ of \d+) layers|\bsource cut (\d+ -> \d+) layers"),
    _fact("mtp", r"\bwith MTP layer\b|\bw/ MTP\b", "yes"),
    _fact("sliding", r"\balternating sliding-window\b", "yes"),
    _fact("squared_relu", r"\bsquared-ReLU\b", "yes"),
    # adapters
    _fact("lora_rank", r"(?:^|; )r=(\d+)"),
    _fact("lora_targets", r"\btargets=\[([^\]]*)\]"),
    _fact("trainable", r"\btrainable ([\d,]+)"),
    _fact("quantization", r"\bquantization (None|bnb\.nf4-dq|bnb\.nf4)"),
    _fact("train_embeddings", r"\bembedding and lm_head also trained\b", "yes"),
    _fact("recipe", r"(?:^|; )([\w.-]+/(?:lora|qlora|full)\.yaml)"),
    _fact(
        "optimizer_in_backward",
        r"\boptimizer[_ -]in[_ -](?:bwd|backward)\b|\b[Ff]used? optimizer step into (?:the )?backward\b",
        "yes",
        everywhere=True,
    ),
    _fact("other_adapter", r"(?:^|; )(Adapter V2|Adapter)(?=;)"),
    _fact("pure_bf16", r"\bfull finetune is pure bf16\b", "yes"),
    _fact("adapter_fp32", r"\badapter weights fp32\b", "yes"),
    # recompute
    _fact("recompute_modules", r"\brecompute_modules[= ]\[?\"?([\w+,]+)\"?\]?"),
    _fact("recompute_modules", r"(?:^|; )recompute=((?:norm|act|mlp|up_proj|mla_up_proj|moe_act|layernorm|moe|core_attn)[\w,]*)"),
    _fact("recompute_layers", r"\brecompute_layers (\d+)"),
    _fact("recompute_every", r"\bevery (\d+)(?:nd|rd|th) layer\b"),
    _fact("recompute_every", r"\bcheckpointing mode: selective layer\b", "2"),
    _fact(
        "recompute_fraction",
        r"\b(?:recompute[_ ]ratio|(?:activation[_ ])?(?:checkpoint(?:ing)?|ckpt))(?: (?:ratio|fraction))?[ =:]+(0?\.\d+|1\.0)(?![\d.])",
        everywhere=True,
    ),
    _fact("context_mib", r"\bCUDA context (\d+) ?MiB"),
    _fact("offload_modules", r"fine_grained_offloading", FINE_GRAINED_TEST, everywhere=True),
    _fact("recompute_policy", r"\bper-op\b|\bselective op\b", "op"),
    _fact("recompute_policy", r"\b(SAVE_DOT_ONLY|SAVE_DOT_WITH_NO_BATCH_DIM|save_qkv_proj)\b"),
    _fact("recompute_policy", r"\bckpt=ours\b", "kwai"),
    _fact("recompute_policy", r"\bgraph memory_policy=full\b", "graph"),
    # mixture of experts
    _fact("routing", r"\b(?:routing )?force-balanced\b", "balanced"),
    _fact("routing", r"\bnatural routing\b", "natural"),
    _fact("capacity_factor", r"\bcapacity factor (\d+(?:\.\d+)?)"),
    _fact("capacity_factor", r"(?:^|; )tokendrop\b", "1"),
    _fact("capacity_padded", r"\bcapacity factor \S+ padded\b|(?:^|; )tokendrop\b", "yes"),
    _fact("moe_dispatcher", r"\bdispatcher=(\w+)"),
    _fact("moe_dispatcher", r"(?:^|; )(DeepEP|MinimalAsyncEP)\b"),
    _fact("moe_dispatcher", r"\+ (MinimalAsyncEP)\b"),
    _fact("moe_dispatcher", r"(?:^|; )tokendrop\b", "alltoall"),
    _fact("moe_a2a_overlap", r"\bmoe_a2a_overlap\b|\+1f1b overlap\b", "yes"),
    # kernels and launch
    _fact("cuda_graphs", r"\bcuda_graph=(?:local|none|transformer_engine|\"transformer_engine\"):(?:full_iteration)", "full"),
    _fact("cuda_graphs", r"\bcuda_graph=full_iteration\b", "full"),
    _fact("cuda_graphs", r"\bcuda_graph=\"?transformer_engine\"?:\[([^\]]+)\]"),
    _fact("cuda_graphs", r"\bcuda_graph=\"?transformer_engine\"?:(mlp)\b"),
    _fact("cuda_graphs", r"\bcuda_graph=\"transformer_engine\":None", "layers"),
    _fact("cuda_graphs", r"\bforced cudagraph\b", "full"),
    _fact("compile", r"\btorch\.compile=(yes|no)"),
    _fact("compile", r"\btorch\.compile\b|\binductor\b", "yes"),
    _fact("async_tp", r"\b[Aa]sync ?TP\b", "yes"),
    _fact("loss_chunks", r"\bChunkedCELoss (\d+) chunks"),
    _fact("loss_chunks", r"\bChunkedCELoss\b|\bserialized loss chunks\b", "8"),
    _fact("full_cross_entropy", r"\bfull CrossEntropy \(not chunked\)", "yes"),
    _fact("fused_cross_entropy", r"\bfused [\w, -]*(?:cross entropy|loss)\b", "yes"),
    _fact("cross_entropy_fusion", r"\bCE fusion on\b", "te"),
    _fact("float8_gather", r"\bfloat8 FSDP all-gather\b", "yes"),
    _fact("grad_accumulation_fp32", r"\bfp32 (?:unsharded )?grad accumulation\b", "yes"),
    _fact("norm_kernel", r"\bfused RMSNorm\b|\bRMS kernel\b", "fused"),
    _fact("flash_attention", r"\bflash-attention (\d)"),
    _fact("attention", r"\bflash attention\b", "flash"),
    _fact("states", r"\bfp32 master\b", "fp32"),
    _fact("states", r"\bbf16 master \+ bf16 optimizer states\b", "bf16"),
    _fact("autocast", r"\btorch\.autocast\b", "yes"),
    _fact("reduce_dtype", r"\bMP mode PURE\b", "16bit"),
    # overlap
    _fact("overlap_grad_reduce", r"\bno gradient bucketing overlap\b|\bwithout overlap of the gradient all-reduce\b", "no"),
    _fact("overlap_grad_reduce", r"\bTP/DP/PP comm overlap enabled\b", "yes"),
    _fact("overlap_tp", r"\bTP/DP/PP comm overlap enabled\b", "yes"),
    _fact("overlap_p2p", r"\bTP/DP/PP comm overlap enabled\b", "yes"),
    _fact("overlap_all", r"\bnon-overlap comm config\b", "no"),
    # pipeline
    _fact("embedding_is_layer", r"\bembedding counted as a layer\b", "yes"),
    _fact("pp_layout", r"\bpp_layout=(\S+)"),
    _fact("chunks", r"\bPP Chunks=(\d+)"),
    _fact("schedule", r"\b(Interleaved 1F1B)\b"),
    # machine
    _fact("node_network_gbps", r"\b(\d+x\d+)Gbps RDMA per node", everywhere=True),
    _fact("node_network_gbps", r"(?:^|; )\d+ nodes, (\d+) Gb/s IB"),
    _fact("node_network_gbps", r"\bsame hardware and formula as the OneFlow rows\b", "100"),
    _fact("gpu_network_gbps", r"\b(\d+)Gb/s CX-7 per GPU"),
    # what was logged
    _fact("deterministic", r"\bdeterministic/unfused\b", "yes"),
    _fact("older_stack", r"\bolder LTS software stack\b", "yes"),
    _fact("rank_stated", r"\brank that is reported not stated\b", "no"),
    _fact("not_logged", r"\bnot a logged run\b", "yes"),
    _fact("packed", r"\binputs packed to \d+", "yes"),
    _fact("longest_sample", r"\bseq_len is the (?:LONGEST|MAX)\b|\bsamples shorter\b", "yes"),
    _fact("regression", r"\bknown regression for this row\b", "yes"),
    _fact("suspect", r"\b(SUSPECT|CONFLICT|INCONSISTENT|SOURCE CONFLICT)\b"),
)


@dataclass(frozen=True)
class Stated:
    """Facts of one row's free text, by name, and its Megatron arguments."""

    facts: dict[str, str]
    arguments: dict[str, str]
    """`args:` of the notes: Megatron-LM flags without dashes in front."""

    def integer(self, name: str) -> int | None:
        """Return a fact as a whole number, None where it is not stated."""
        text = self.facts.get(name)
        return None if text is None else int(text.replace(",", ""))

    def says(self, name: str) -> bool:
        """Tell whether a fact is stated (and is not "no")."""
        return self.facts.get(name, "no") not in ("no", "None")

    def argument(self, name: str) -> int | None:
        """Return a Megatron argument as a whole number, None where it is absent."""
        text = self.arguments.get(name, "")
        return int(text) if text.isdigit() else None

    def switch(self, name: str) -> bool:
        """Tell whether a Megatron argument is there and not turned off."""
        return self.arguments.get(name, "False").lower() not in ("false", "0", "no")

    @cached_property
    def targets(self) -> tuple[str, ...] | None:
        """Adapter targets in short names (q, k, v, o, gate, up, down); None: not stated."""
        text = self.facts.get("lora_targets")
        if text is None:
            return None
        words = re.findall(r"(\w+?)_proj", text)
        return tuple(w for w in ("q", "k", "v", "o", "gate", "up", "down") if w in words) or None


_ARGUMENT = re.compile(r"(?:^|\s)([a-z][a-z0-9-]*(?:_[a-z]+)*(?:-[a-z0-9]+)*)=(\[[^\]]*\]|\(\S*|\S*)")


@lru_cache(maxsize=4096)
def _arguments(notes: str) -> dict[str, str]:
    """Megatron arguments behind `args:`."""
    _, found, text = notes.partition("args: ")
    return {key: value.strip("[];") for key, value in _ARGUMENT.findall(text)} if found else {}


def stated(run: Run) -> Stated:
    """Return the facts that the free text of `run` states."""
    notes = run.notes
    all_text = "; ".join((run.notes, run.framework_detail, run.inferred, run.site, run.model))
    facts: dict[str, str] = {}
    for fact in FACTS:
        if fact.name in facts:
            continue
        match = fact.pattern.search(all_text if fact.everywhere else notes)
        if match:
            facts[fact.name] = fact.value or next(group for group in match.groups() if group)
    return Stated(facts, _arguments(notes))
