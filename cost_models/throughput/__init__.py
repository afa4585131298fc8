"""Seconds of a step: kernels by roofline, collectives by tier, overlap, pipeline, optimizer, offload, host."""
