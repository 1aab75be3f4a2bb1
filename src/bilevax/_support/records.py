"""Nested records as JSON and arrays, and back: every bit is kept, and reading them runs no code of the file's choosing.

Records are instances of bilevax's own classes, which are stored by name. They may hold each other, numbers, strings,
None, tuples, lists, dictionaries, arrays of NumPy and JAX, sparse matrices and random generators.
"""

import dataclasses
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

_SPARSE_KINDS = {kind.__name__: kind for kind in (sp.csc_matrix, sp.csr_matrix, sp.csc_array, sp.csr_array)}


def encode(value: Any, arrays: list[np.ndarray]) -> Any:
    """Return a value in the types of JSON; its arrays are appended to ``arrays`` and referred to by their places."""
    inside = lambda parts: [encode(part, arrays) for part in parts]
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        arrays.append(np.asarray(value))
        return {"jax" if isinstance(value, jax.Array) else "numpy": len(arrays) - 1, "scalar": kind is not np.ndarray}
    if kind in (tuple, list):
        return {kind.__name__: inside(value)}
    if kind is dict:
        return {"dict": [inside(pair) for pair in value.items()]}
    if kind.__name__ in _SPARSE_KINDS:
        return {
            "sparse": kind.__name__,
            "shape": value.shape,
            "parts": inside([value.data, value.indices, value.indptr]),
        }
    if isinstance(value, np.random.Generator):
        return {"random": value.bit_generator.state}
    if kind.__module__.split(".")[0] == "bilevax":
        fields = value._asdict() if hasattr(value, "_asdict") else vars(value)
        return {"record": [kind.__module__, kind.__qualname__], "fields": encode(dict(fields), arrays)}
    raise TypeError(f"no record can hold a {kind.__module__}.{kind.__qualname__}")


def decode(code: Any, arrays: list[np.ndarray]) -> Any:
    """Return the value that `encode` was given."""
    inside = lambda parts: [decode(part, arrays) for part in parts]
    match code:
        case {"jax": place}:
            return jnp.asarray(arrays[place])
        case {"numpy": place, "scalar": scalar}:
            return arrays[place][()] if scalar else arrays[place]
        case {"tuple": parts}:
            return tuple(inside(parts))
        case {"list": parts}:
            return inside(parts)
        case {"dict": pairs}:
            return dict(inside(pair) for pair in pairs)
        case {"sparse": kind, "shape": shape, "parts": parts}:
            return _SPARSE_KINDS[kind](tuple(inside(parts)), shape=tuple(shape))
        case {"random": state}:
            random = np.random.default_rng(0)
            random.bit_generator.state = state
            return random
        case {"record": [module, name], "fields": fields}:
            return _record(module, name, decode(fields, arrays))
    return code


def _record(module: str, name: str, fields: dict[str, Any]) -> Any:
    kind = getattr(sys.modules.get(module), name, None) if module.split(".")[0] == "bilevax" else None
    if not isinstance(kind, type) or kind.__module__ != module:  # one that is merely imported there is not ours
        raise ValueError(f"expected a record of bilevax, got {module}.{name}.")
    if issubclass(kind, tuple):
        return kind(**fields)
    if dataclasses.is_dataclass(kind) and fields.keys() != {field.name for field in dataclasses.fields(kind)}:
        raise ValueError(f"expected the fields of {module}.{name}, got {', '.join(map(str, fields))}.")
    made = object.__new__(kind)  # as it was, not as its constructor would make it
    vars(made).update(fields)
    return made
