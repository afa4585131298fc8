"""Mixed: one plan over several pools of unlike GPUs.

Two ways are planned. `stages`: the pools hold stages of one pipeline, more layers on the faster pool. `replicas`: each pool holds
data-parallel replicas with a layout of its own and takes its share of the global batch, and gradients are averaged between pools.
The cost of every part comes from planner.evaluate on the pool's own hardware; only how parts join is said here (join.py).

Uneven shares by speed, for replicas and for stages: Jia et al. 2022 (Whale, arXiv 2011.09208); Um et al. 2024 (Metis, USENIX
ATC 2024).
"""
