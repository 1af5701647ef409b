"""The step, the loop, checkpoints and sharding."""
