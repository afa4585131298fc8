"""Memory: states, activations, buffers, overheads and their peak, per rank, stage and phase."""
