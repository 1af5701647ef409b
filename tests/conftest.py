"""The whole suite runs with 8 forced CPU devices, raising rank promotion and strict
dtype promotion, and shares compiled programs between its processes."""

import os
import pathlib
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
flags = os.environ.get("XLA_FLAGS", "")
if "host_platform_device_count" not in flags:
    os.environ["XLA_FLAGS"] = (
        f"{flags} --xla_force_host_platform_device_count=8".strip()
    )

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
cache = pathlib.Path(tempfile.gettempdir()) / "gpo-test-compilation-cache"
jax.config.update("jax_compilation_cache_dir", str(cache))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
