"""Formulas for the memory and the time of training a language model. Imports `hardware` only.

Words (one meaning each):

- architecture: the shape of the model; training: what is trained and how; layout: degrees and choices, no costs.
- degree: size of an axis (tp, pp, vpp, cp, ep, etp, dp).
- choice: a named discrete option (ZeRO stage, recompute, schedule, offload, regime).
- regime: which copies of a parameter exist, in which type, and who shards them.
- implementation: whose module code runs a layer, which decides what is saved for backward.
- block: attention, MLA, MLP, MoE, embedding, head; op: one row of a block; stage: pipeline position.
- term: one named summand; ledger: ordered terms in one unit.
"""
