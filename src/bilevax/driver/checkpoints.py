"""Checkpoints: a run's state in one file, written atomically and read without running code from it.

One line of JSON tells for what run the file was written, the next one the state, all but its arrays; those follow, each
as NumPy saves it, and last a fingerprint of all that: half a file is known for what it is.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import re
import tempfile
import types
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import equinox as eqx
import jax
import numpy as np
import scipy.sparse as sp

from bilevax._support import records
from bilevax.model.problem import BilevelProblem
from bilevax.solvers.base import ProblemRefused

Step = TypeVar("Step")

_FORMAT = 4  # records are stored by the module and the name of their class
_FINGERPRINT = hashlib.sha256().digest_size
# Where a function is printed with its place in memory, which differs from process to process.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Checkpoint:
    """A file for the states of runs of one problem by one solver; ``settings`` are what else must not change."""

    def __init__(self, path: Any, problem: BilevelProblem, solver: Any, **settings: Any):
        self.path = Path(path)
        self._run = {
            "format": _FORMAT,
            "version": importlib.metadata.version("bilevax"),
            "solver": type(solver).__name__,
            "settings": _digest(solver),
            "problem": _digest(problem),
            **settings,
        }

    def save(self, state: Any) -> None:
        """Write a state; a kill at any moment leaves the old file or the new one, never half of one.

        A disk that is full or a folder that is gone is a warning, not the end of the run.
        """
        temporary = None
        try:
            with tempfile.NamedTemporaryFile(dir=self.path.parent, prefix=self.path.name, delete=False) as file:
                temporary = file.name
                self._write(_Fingerprinted(file), state)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
            temporary = None
        except OSError as error:
            warnings.warn(
                f"checkpoint: could not write {self.path}: {error.strerror or error}. The run goes on.", stacklevel=2
            )
        finally:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)

    def _write(self, file: "_Fingerprinted", state: Any) -> None:
        arrays: list[np.ndarray] = []
        code = records.encode(state, arrays)
        for line in (self._run, {"arrays": len(arrays), "state": code}):
            file.write(json.dumps(line).encode() + b"\n")
        for array in arrays:
            np.save(file, array, allow_pickle=False)  # pyright: ignore[reportArgumentType]
        file.file.write(file.digest.digest())

    def load(self) -> Any:
        """Return the stored state, refusing a file of another problem, solver, setting or version."""
        try:
            with open(self.path, "rb") as file, self.trusted():
                if not _is_complete(file):
                    raise _Refused(f"resume: {self.path} is no complete checkpoint of bilevax.")
                found = json.loads(file.readline())
                for key, value in self._run.items():
                    if found.get(key) != value:
                        self.refuse(key, value, found.get(key))
                stored = json.loads(file.readline())
                return records.decode(
                    stored["state"], [np.load(file, allow_pickle=False) for _ in range(stored["arrays"])]
                )
        except OSError as error:
            raise ValueError(f"resume: cannot read {self.path}: {error}.") from error

    def load_like(self, like: Any) -> Any:
        """Return the stored state in the structure of ``like``, the leaves of which were saved."""
        leaves, structure = jax.tree.flatten(like)
        found = self.load()
        shapes = lambda leaves: [(leaf.shape, str(leaf.dtype)) for leaf in leaves]
        with self.trusted():
            if shapes(found) != shapes(leaves):
                self.refuse("state", shapes(leaves), shapes(found))
            return jax.tree.unflatten(structure, found)

    def refuse(self, what: str, expected: Any, found: Any) -> None:
        """Raise the error that tells for what other run the file was written."""
        raise _Refused(f"resume: {self.path} was written for another {what}: expected {expected}, got {found}.")

    @contextlib.contextmanager
    def trusted(self) -> Iterator[None]:
        """Say of what goes wrong inside, where what the file holds is believed, that the file is to blame.

        A file with a fingerprint that fits may still hold what no run has written.
        """
        try:
            yield
        except (OSError, _Refused, ProblemRefused):
            raise
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise _Refused(
                f"resume: {self.path} is no checkpoint from which this run can go on: {type(error).__name__}: {error}"
            ) from error

    def going_on(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yield the steps of a run that goes on from the file; see `trusted`."""
        with self.trusted():
            yield from steps


class Files(NamedTuple):
    """The checkpoints of a run: to which it writes its state, and from which it goes on; None where there is none."""

    checkpoint: Checkpoint | None = None
    resume: Checkpoint | None = None

    @classmethod
    def open(cls, checkpoint: Any, resume: Any, problem: BilevelProblem, solver: Any, **settings: Any) -> "Files":
        """Return the checkpoints at two paths; see `Checkpoint`."""
        return cls(
            *(None if path is None else Checkpoint(path, problem, solver, **settings) for path in (checkpoint, resume))
        )


class _Refused(ValueError):
    """Raised for a file that no run can go on from; it says why."""


class _Fingerprinted:
    """A file that remembers a fingerprint of what was written to it."""

    def __init__(self, file: Any):
        self.file, self.digest = file, hashlib.sha256()

    def write(self, data: Any) -> None:
        self.digest.update(data)
        self.file.write(data)


def _is_complete(file: BinaryIO) -> bool:
    """Return whether a file ends with the fingerprint of what comes before, and go back to its beginning."""
    left, digest = os.fstat(file.fileno()).st_size - _FINGERPRINT, hashlib.sha256()
    while left > 0:
        block = file.read(min(left, 2**20))
        digest.update(block)
        left -= len(block) or left  # a file that shrinks meanwhile
    complete = left == 0 and file.read() == digest.digest()
    file.seek(0)
    return complete


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
        elif isinstance(leaf, types.MethodType):
            _feed(digest, [leaf.__func__, leaf.__self__], seen)
        elif isinstance(leaf, types.CodeType):
            digest.update(leaf.co_code)
            _feed(digest, [leaf.co_names, leaf.co_consts], seen)
        elif hasattr(leaf, "__code__"):
            # Numbers live in the constants, in what a function closes over (itself, perhaps) and beside it in its
            # module, not in its byte code.
            if id(leaf) not in seen:
                seen.add(id(leaf))
                cells = [cell.cell_contents for cell in leaf.__closure__ or ()]
                beside = [leaf.__globals__.get(name) for name in leaf.__code__.co_names]
                numbers = [value for value in beside if eqx.is_array_like(value)]
                _feed(digest, [leaf.__code__, leaf.__defaults__, leaf.__kwdefaults__, cells, numbers], seen)
        elif eqx.is_array_like(leaf):
            digest.update(np.asarray(leaf).astype(np.float64, copy=False).tobytes())
        elif isinstance(leaf, str | bytes):
            digest.update(repr(leaf).encode())
        elif sp.issparse(leaf):
            _feed(digest, [leaf.shape, *sp.coo_array(leaf).coords, sp.coo_array(leaf).data], seen)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type) and id(leaf) not in seen:
            seen.add(id(leaf))
            fields = {field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf)}
            _feed(digest, [type(leaf).__name__, fields], seen)
        else:
            digest.update(type(leaf).__name__.encode())
