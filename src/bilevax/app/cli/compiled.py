"""Compiled programs that outlive the command: the next one of the same problem does not compile them again."""

import os
import sys
from pathlib import Path

import jax


def keep_compiled() -> None:
    """Let JAX keep compiled programs in the user's cache folder, unless it was told where to keep them, or not to.

    ``JAX_COMPILATION_CACHE_DIR`` names another folder, ``JAX_ENABLE_COMPILATION_CACHE=false`` turns it off.
    """
    values = jax.config.values
    if values["jax_enable_compilation_cache"] and values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def cache_folder() -> Path:
    """Return where this system keeps what can be computed again, for bilevax."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "bilevax" / "compiled"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "bilevax" / "compiled"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bilevax" / "compiled"
