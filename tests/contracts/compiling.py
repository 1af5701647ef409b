"""Hears what JAX compiles, from the import on."""

import jax

EVENTS: list[str] = []


def heard(name: str, *_, **__) -> None:
    if "/compile/" in name:
        EVENTS.append(name)


jax.monitoring.register_event_duration_secs_listener(heard)
