"""Compiled programs are kept from one start of a command to the next."""

import os
import sys
from pathlib import Path

import jax


def keep_compiled() -> None:
    """Turns on JAX's persistent compilation cache, in this user's cache folder.

    ``JAX_COMPILATION_CACHE_DIR`` and ``JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS`` win. Without them every program is
    kept: the small ones are many, and together they take seconds. JAX knows each by its text, its options, its version
    and the kind of processor. Where nothing can be written, nothing is kept.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = _cache_home() / "dpaudit"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return
        if not os.access(folder, os.W_OK):
            return
        jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _cache_home() -> Path:
    """Where this platform keeps a user's caches."""
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    return Path.home() / ".cache"
