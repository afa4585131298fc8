"""Constants of hardware/measured that the run table had a say in, each with what is known of it without the run table.

`prior` is what timings of single kernels and collectives (gemm.csv, collectives.csv), datasheets or the code's own count of bytes and
launches give; `low` and `high` are what is physically possible. Between them a refit may move, at a price that grows with the distance.
"""

from __future__ import annotations

from typing import NamedTuple


class Free(NamedTuple):
    """One constant that a refit may move."""

    file: str
    name: str
    prior: float
    low: float
    high: float
    gpu: str = ""
    """Accelerator id where it is narrowed to one."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What hardware.calibration.changed takes."""
        return self.file, self.name, self.gpu


def _host(kind: str, prior: float) -> tuple[Free, Free]:
    """Launch time of a layer: 10 µs for each of its 15 to 150 kernels, and the Python around them."""
    return (
        Free("software", f"host_forward_{kind}", prior, prior / 3.0, prior * 3.0),
        Free("software", f"host_backward_{kind}", 1.5 * prior, 0.5 * prior, 4.5 * prior),
    )


FREE = (
    # GEMM: steady large shapes of gemm.csv (fp8: less a cast of the input, 3 bytes an element); from the best of a search down to training
    # layouts; the 500 W part by the power of 0.63 between the 350 W and the 700 W one
    Free("hopper", "gemm_fraction", 0.78, 0.70, 0.84),
    Free("hopper", "gemm_fraction_fp8", 0.72, 0.60, 0.82),
    Free("hopper", "gemm_weight_gradient", 0.95, 0.85, 1.0),
    Free("hopper", "gemm_fraction", 0.63, 0.50, 0.75, "h100-96g"),
    Free("blackwell", "gemm_fraction", 0.60, 0.49, 0.75, "b200-sxm"),
    Free("blackwell", "gemm_fraction", 0.66, 0.55, 0.76, "gb200"),
    Free("blackwell", "gemm_fraction", 0.75, 0.62, 0.80, "gb300"),
    Free("blackwell", "gemm_fraction_fp8", 0.58, 0.47, 0.75),
    Free("blackwell", "gemm_fraction_fp4", 0.46, 0.40, 0.56),
    Free("ampere", "gemm_fraction", 0.83, 0.78, 0.87),
    Free("volta", "gemm_fraction", 0.78, 0.64, 0.86),
    Free("default", "launch_seconds", 3e-6, 1.5e-6, 8e-6),
    # attention kernels
    Free("hopper", "attention_forward_flash3", 0.60, 0.45, 0.66),
    Free("hopper", "attention_forward_flash2", 0.35, 0.28, 0.40),
    Free("hopper", "attention_forward_flash2", 0.29, 0.22, 0.37, "h100-96g"),
    Free("blackwell", "attention_forward_flash3", 0.50, 0.40, 0.62),
    Free("ampere", "attention_forward_flash2", 0.62, 0.55, 0.66),
    Free("default", "attention_triton", 0.70, 0.50, 0.85),
    Free("default", "attention_eager_fraction", 0.60, 0.35, 0.80),
    Free("default", "attention_eager_unaligned", 0.10, 0.04, 0.25),
    # HBM: copies and fused norms of the hardware notes (A100); SimuMax's memory ops (A100 0.91, B200 0.67); compiled norm kernels on
    # Hopper reached half of the best ones until 2026 (PyTorch blog, state-of-the-art normalisation with torch.compile)
    Free("hopper", "hbm_fraction", 0.60, 0.45, 0.90),
    Free("blackwell", "hbm_fraction", 0.67, 0.50, 0.90),
    Free("ampere", "hbm_fraction", 0.80, 0.70, 0.90),
    Free("volta", "hbm_fraction", 0.80, 0.70, 0.90),
    # host
    *_host("megatron_local", 5e-4),
    *_host("megatron_te", 3e-4),
    *_host("megatron_deepspeed", 8e-4),
    *_host("compiled", 2e-4),
    *_host("eager", 8e-4),
    *_host("hf", 1.0e-3),
    Free("software", "host_zero3_fsdp", 4e-4, 1e-4, 1.5e-3),
    Free("software", "host_zero3_deepspeed", 1e-3, 3e-4, 3e-3),
    Free("software", "host_zero2_deepspeed", 3e-3, 1e-3, 1e-2),
    Free("software", "host_adapter", 7e-5, 3e-5, 1.5e-4),
    Free("software", "host_step_seconds", 0.02, 0.005, 0.08),
    # element-wise work that is not fused
    Free("software", "memory_factor_compiled", 1.2, 0.9, 1.7),
    Free("software", "memory_factor_eager", 1.2, 1.0, 1.7),
    Free("software", "memory_factor_xla", 1.0, 0.8, 1.6),
    Free("software", "adapter_factor_hf", 2.0, 1.2, 3.5),
    Free("software", "quantise_bytes", 5.0, 3.0, 8.0),
    Free("software", "quantise_bytes_2024", 6.0, 3.0, 9.0),
    Free("software", "optimizer_extra_bytes", 16.0, 6.0, 30.0),
    Free("software", "dequantise_bytes_gptq", 16.5, 10.0, 25.0),
    Free("software", "ring_passes", 5.0, 2.0, 10.0),
    # overlap and network
    Free("software", "tp_hidden_te", 0.5, 0.25, 0.8),
    Free("software", "fsdp_hidden_fsdp", 0.5, 0.1, 0.95),
    Free("software", "fsdp_hidden_torchtitan", 0.8, 0.5, 0.97),
    Free("software", "fsdp_hidden_deepspeed", 0.5, 0.1, 0.95),
    Free("software", "grad_hidden", 0.85, 0.6, 0.97),
    Free("software", "overlap_slowdown", 0.15, 0.05, 0.30),
    Free("software", "straggler_per_doubling", 0.005, 0.001, 0.02),
    Free("collectives", "link_ring_fraction", 0.80, 0.65, 0.85),
    Free("collectives", "network_fraction", 0.85, 0.65, 0.96),
    Free("collectives", "board_fraction", 0.55, 0.42, 0.83),
    Free("collectives", "send_fraction", 0.90, 0.70, 0.96),
)
