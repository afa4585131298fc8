"""Named choices: state regimes, ZeRO stages, recompute modes, offload, pipeline schedules."""
