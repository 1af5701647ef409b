"""What a golden number is."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

NAN, INF = float("nan"), float("inf")


class Golden(NamedTuple):
    """An input with a known answer, checked in float64.

    ========  ======================================================================
    source    where the answer comes from: T.. is a row of the table of public bug
              reports, [..] a published check of an entry, else a derivation
    part      a Transform (its output), an optax transformation (its updates) or a
              Recipe (its loss; with ``value`` None, its advantages)
    value     what its slot takes
    expected  the answer
    columns   of the batch
    grad      of the summed output, or of the loss, with respect to the value
    atol      absolute tolerance: half a unit of the last published digit
    ========  ======================================================================
    """

    source: str
    part: Any
    value: Any
    expected: Any
    columns: Mapping[str, Any] = MappingProxyType({})
    grad: Any = None
    atol: float = 1e-9
