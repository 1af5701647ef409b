"""Sampling: rollouts from a model, in one program."""
