"""Experiments: one module a question; ``python -m experiments.<name> --help``."""
