"""Cross entropies that do not hold every copy of every logit at once: flash kernels, chunks, heads fused with their loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.numeric import Num
    from cost_models.stack import Stack
    from cost_models.training import Loss, Training

LOGIT_BYTES: dict[Loss, float] = {"eager": 12.0, "compiled": 6.0, "chunked": 4.0, "fused": 1.0, "vocab-parallel": 6.0}
"""Bytes per logit alive at the loss's peak, 16-bit logits: eager torch 2 + 4 (fp32 copy or log-softmax gradient) + 4 + … = 12 (traced);
one compiled kernel 6; chunks 2 + 2 (logits and their gradient); fused linear and loss only a chunk; Megatron 2 + 4."""
NATIVE_FUSION_BYTES = 4.0
"""One more fp32 copy per logit where the loss does not work in place: Megatron's own cross_entropy_loss_fusion, Megatron-DeepSpeed."""
NARROW_LOSS_BYTES = 8.0
"""A cross entropy that stays in the logits' 16-bit type: logits, log-softmax and two gradients."""
OWN_LOOPS = ("deepspeed", "fsdp")
"""Frameworks whose training loops over transformers' models hold the output during backward; Hugging Face's Trainer lets it go."""
SINGLE_COPY_SINCE = "2024-11"
EARLY_COPIES_BYTES = 4.0
"""transformers before 4.46 (November 2024) turns the logits into fp32 in the output and copies them once more to shift them by a token."""
KERNEL_BYTES = {"in-place": 2.0, "flash": 4.0}
"""`loss_kernel` -> bytes per logit: 16-bit logits, whose gradient the kernel writes over them or beside them
(flash-attn losses/cross_entropy.py inplace_backward; unsloth kernels/cross_entropy_loss.py)."""
CHUNK_HIDDEN_BYTES = 6.0
"""torchtitan's chunks run head, loss and backward one by one (components/loss.py, ChunkedLossWrapper): no logits stay, but the hidden
states are copied chunk by chunk (2) and their gradient is gathered in fp32 (4)."""
EAGER_CHUNK = (4.0, 10.0)
"""torchtune's chunks (modules/loss/cross_entropy_loss.py) by single ops: the fp32 log-softmax of every chunk stays until backward; one
chunk has 16-bit logits, an fp32 copy and an fp32 log-softmax or gradient."""
KEPT_LOGITS_BYTES = 2.0
"""Where the head has run before the loss, all 16-bit logits are alive beside (torchtune until April 2025: CEWithChunkedOutputLoss)."""
COMPILED_CHUNK = (2.0, 6.0)
"""The same compiled: 16-bit logits stay; one chunk has an fp32 gradient and its cast."""
TRANSIENT_CHUNK_BYTES = 10.0
"""Chunks that backward runs again, so that only one is alive (TRL trainer/sft_trainer.py): 2 + 4 + 4 bytes per logit of a chunk."""
COMPILED_TRANSIENT_BYTES = 6.0
"""unsloth-zoo fused_losses/cross_entropy_loss.py: one compiled chunk of 16-bit logits and their fp32 gradient."""


FABRIC_LOGIT_BYTES = 8.0
"""Lightning Fabric returns a model's outputs in fp32 (fabric/plugins/precision/half.py, convert_output): fp32 logits, which the loop
holds, and their fp32 log-softmax or gradient."""
FABRIC_CHUNK = 128.0
"""Tokens of a chunk of litgpt's head and loss (finetune/lora.py, lm_head_chunk_size; utils.py, chunked_cross_entropy)."""
FABRIC_WHOLE_BYTES = 12.0
"""litgpt's full fine-tuning computes the head at once: backward joins the chunks' gradients to one more fp32 tensor."""


def fabric_loss_bytes(training: Training, d: Dims) -> Num:
    """Return the bytes of logits at the peak of litgpt's loss: all of them, and one chunk's log-softmax and gradient beside."""
    logits = d.tokens * d.vocab
    if training.method == "full":
        return logits * FABRIC_WHOLE_BYTES
    return logits * FABRIC_LOGIT_BYTES + np.minimum(FABRIC_CHUNK * d.batch, d.tokens) * d.vocab * FABRIC_LOGIT_BYTES


def loss_bytes(training: Training, stack: Stack, d: Dims) -> Num:
    """Return the bytes of logits alive at the peak of the loss, on the stage with the head.

    Switches of `training.extra`:
    `loss_kernel`: in-place or flash. `loss_chunks`: chunks of a chunked loss; `loss_logits` = kept: the head has made all before.
    `loss_chunk_tokens`, `loss_chunk_logits`: the one chunk that a fused loss has alive.
    """
    logits, named = d.tokens * d.vocab, training.extra
    kernel = named.get("loss_kernel")
    if kernel is not None:
        if kernel not in KERNEL_BYTES:
            raise ValueError(f"no loss kernel is called {kernel!r}; there are {', '.join(KERNEL_BYTES)}")
        return logits * KERNEL_BYTES[kernel]
    if stack.loss == "chunked" and training.framework == "litgpt":
        return fabric_loss_bytes(training, d)
    if stack.loss == "chunked" and training.framework == "torchtitan":
        chunk = LOGIT_BYTES["eager" if training.compile is False else "compiled"] / float(named.get("loss_chunks", "8"))
        return logits * chunk + d.tokens * d.hidden * CHUNK_HIDDEN_BYTES
    if stack.loss == "chunked" and "loss_chunks" in named:
        stay, one = COMPILED_CHUNK if stack.implementation == "compiled" else EAGER_CHUNK
        head_first = KEPT_LOGITS_BYTES if named.get("loss_logits") == "kept" and stack.implementation != "compiled" else 0.0
        return logits * (stay + head_first + one / float(named["loss_chunks"]))
    if stack.loss == "fused" and "loss_chunk_tokens" in named:
        return np.minimum(d.tokens, float(named["loss_chunk_tokens"])) * d.vocab * TRANSIENT_CHUNK_BYTES
    if stack.loss == "fused" and "loss_chunk_logits" in named:
        return np.minimum(logits, float(named["loss_chunk_logits"])) * COMPILED_TRANSIENT_BYTES
    return logits * per_logit(training, stack)


def per_logit(training: Training, stack: Stack) -> float:
    """Return the bytes per logit of a loss that holds all of them at once."""
    if stack.loss == "eager" and training.extra.get("loss_dtype") == "16bit":
        return NARROW_LOSS_BYTES
    early = stack.loss == "eager" and training.framework in OWN_LOOPS and "" < training.date < SINGLE_COPY_SINCE
    copied = training.framework == "megatron-deepspeed" or training.extra.get("cross_entropy_fusion") == "native"
    native = stack.loss == "vocab-parallel" and copied
    return LOGIT_BYTES[stack.loss] + (NATIVE_FUSION_BYTES if native else 0.0) + (EARLY_COPIES_BYTES if early else 0.0)
