"""Checkpoints: a run's state in one file, written atomically and read without running code from it."""

import functools
import hashlib
import json
import os
import re
import tempfile
import types
import warnings
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from bilevax.problem import BilevelProblem

_FORMAT = 1
# Where a function is printed with its place in memory, which differs from process to process.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def save(path: Any, state: Any, problem: BilevelProblem, solver: Any) -> None:
    """Write ``state``; a kill at any moment leaves the old file or the new one, never half of one.

    A disk that is full or a folder that is gone is a warning, not the end of the run.
    """
    target = Path(path)
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=target.name, delete=False) as file:
            temporary = file.name
            file.write((json.dumps(_header(state, problem, solver)) + "\n").encode())
            eqx.tree_serialise_leaves(file, state)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        temporary = None
    except OSError as error:
        warnings.warn(f"checkpoint: could not write {target}: {error}. The run goes on.", stacklevel=2)
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def load(path: Any, like: Any, problem: BilevelProblem, solver: Any) -> Any:
    """Return the state stored at ``path``, refusing a file of another problem, solver or format."""
    wanted = _header(like, problem, solver)
    try:
        with open(path, "rb") as file:
            found = json.loads(file.readline())
            for key, value in wanted.items():
                if found.get(key) != value:
                    raise ValueError(
                        f"resume: {path} was written for another {key}: expected {value}, got {found.get(key)}."
                    )
            return eqx.tree_deserialise_leaves(file, like)
    except OSError as error:
        raise ValueError(f"resume: cannot read {path}: {error}.") from error
    except (AttributeError, UnicodeDecodeError, json.JSONDecodeError, EOFError, RuntimeError) as error:
        raise ValueError(f"resume: {path} is no complete checkpoint of bilevax.") from error


def _header(state: Any, problem: BilevelProblem, solver: Any) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "solver": type(solver).__name__,
        "settings": _digest(solver),
        "problem": _digest(problem),
        "state": [[list(np.shape(leaf)), str(leaf.dtype)] for leaf in jax.tree.leaves(state)],
    }


def _digest(tree: Any) -> str:
    """Return a fingerprint of all numbers in a tree and of the code of its functions."""
    digest = hashlib.sha256()
    _feed(digest, tree, set())
    return digest.hexdigest()[:16]


def _feed(digest: Any, tree: Any, seen: set[int]) -> None:
    structure = str(jax.tree.structure(jax.tree.map(lambda _: 0, tree)))
    digest.update(_ADDRESS.sub("", structure).encode())
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, functools.partial):
            _feed(digest, [leaf.func, leaf.args, leaf.keywords], seen)
        elif isinstance(leaf, types.CodeType):
            digest.update(leaf.co_code)
            _feed(digest, [leaf.co_names, leaf.co_consts], seen)
        elif hasattr(leaf, "__code__"):
            # Numbers live in the constants and in what a function closes over (itself, perhaps), not in its byte code.
            if id(leaf) not in seen:
                seen.add(id(leaf))
                cells = [cell.cell_contents for cell in leaf.__closure__ or ()]
                _feed(digest, [leaf.__code__, leaf.__defaults__, leaf.__kwdefaults__, cells], seen)
        elif eqx.is_array_like(leaf):
            digest.update(np.asarray(leaf).astype(np.float64, copy=False).tobytes())
        elif isinstance(leaf, str | bytes):
            digest.update(repr(leaf).encode())
        else:
            digest.update(type(leaf).__name__.encode())
