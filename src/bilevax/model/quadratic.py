"""An objective that is a quadratic in x and y together: a few matrices say all about it, and NumPy suffices."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from bilevax._support import clock
from bilevax._support.full import as_array
from bilevax.convex.problem import Objective
from bilevax.model.analysis import Program, jets, trace
from bilevax.model.analysis.host import HostFunction
from bilevax.model.analysis.quadratic_form import quadratic_form
from bilevax.model.compressed_rows import by_columns, compressed, scaled
from bilevax.model.patterns import DENSE_COLUMNS
from bilevax.model.scales import Scales

#: Matrices with up to this many entries are arrays here: a product costs a tenth of that with a sparse matrix.
_FEW_ENTRIES = 10_000
#: So are larger ones with more than this share of entries.
_FULL = 0.2
#: Unit vectors along which a gradient of many variables is differentiated at a time.
_AT_A_TIME = 1024


class LowerDerivatives(NamedTuple):
    """Derivatives of g at a point: in y, twice in y, and in y then x."""

    gradient: np.ndarray
    hessian: sp.csc_matrix
    mixed: sp.csc_matrix


@dataclasses.dataclass(frozen=True)
class Quadratic:
    """A lower objective ``gradient' y + y' H y / 2 + y' M x``, up to what depends on x alone; by NumPy, without JAX."""

    gradient: np.ndarray
    hessian: sp.csc_matrix
    mixed: sp.csc_matrix

    def in_units(self, scales: Scales) -> "Quadratic":
        """Return the numbers in other units than the user's, in which these are."""
        of_y = scales.lower * scales.y
        return Quadratic(of_y * self.gradient, scaled(self.hessian, of_y, scales.y), scaled(self.mixed, of_y, scales.x))

    @functools.cached_property
    def operators(self) -> tuple[Any, Any]:
        """H and M in the form in which they multiply fastest."""
        return _fast(self.hessian), _fast(self.mixed)

    @functools.cached_property
    def at_origin(self) -> LowerDerivatives:
        """The derivatives at the origin: second ones are the same everywhere."""
        return LowerDerivatives(self.gradient, self.hessian, self.mixed)

    def gradient_at(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the gradient in y."""
        hessian, mixed = self.operators
        return self.gradient + mixed @ x + hessian @ y

    def at(self, x: np.ndarray) -> Objective:
        """Return g at x."""
        hessian, mixed = self.operators
        linear = self.gradient + mixed @ x
        return Objective(
            value=lambda y: float(linear @ y + 0.5 * y @ (hessian @ y)),
            gradient=lambda y: linear + hessian @ y,
            hessian=lambda y: self.hessian,
            terms=np.abs(self.gradient) + abs(mixed) @ np.abs(x),
        )


def _fast(matrix: sp.csc_matrix) -> Any:
    entries = matrix.shape[0] * matrix.shape[1]
    if entries <= _FEW_ENTRIES:
        return matrix.toarray()
    return as_array(matrix) if matrix.nnz > _FULL * entries else matrix


@dataclasses.dataclass(frozen=True)
class JointQuadratic:
    """An objective with its gradient ``linear + curvature z`` at ``z = (x, y)``.

    ``function`` evaluates it as the user wrote it: an expanded square would lose the digits of small values.
    ``numbers`` are the second derivatives in the user's units, ``units`` what their rows and columns are multiplied by.
    """

    n_x: int
    function: Callable[[np.ndarray, np.ndarray], Any]
    linear: np.ndarray
    numbers: np.ndarray
    units: tuple[np.ndarray, np.ndarray] | None = None

    def in_units(self, scales: Scales, unit: float) -> "JointQuadratic":
        """Return the same in other units than the user's, in which this is; ``unit`` is that of the objective."""
        of_x, of_y, user = scales.x, scales.y, self.function
        both = np.concatenate([of_x, of_y])
        if unit == 1.0 and np.all(both == 1.0):
            return self
        return JointQuadratic(
            self.n_x,
            lambda x, y: unit * user(x * of_x, y * of_y),
            unit * both * self.linear,
            self.numbers,
            (unit * both, both),
        )

    @functools.cached_property
    def curvature(self) -> np.ndarray:
        """The second derivative in (x, y)."""
        return self._in_units(slice(None), slice(None))

    def _in_units(self, rows: slice, columns: slice) -> np.ndarray:
        if self.units is None:
            return self.numbers[rows, columns]
        part = self.numbers[rows, columns] * self.units[0][rows, None]
        return np.multiply(part, self.units[1][columns], out=part)

    def gradients(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients in x and in y."""
        both = self.linear + self.times(np.concatenate([x, y]))
        return both[: self.n_x], both[self.n_x :]

    def times(self, vector: np.ndarray) -> np.ndarray:
        """Return the second derivative in (x, y) times a vector."""
        if self.units is None or len(vector) <= DENSE_COLUMNS or "curvature" in vars(self):
            return self.curvature @ vector
        # The same number for number, since units are powers of two, and no other large matrix.
        return self.units[0] * (self.numbers @ (self.units[1] * vector))

    def own_curvature(self) -> np.ndarray:
        """Return the second derivative in (x, y) as an array that may be overwritten."""
        return self.numbers.copy() if self.units is None else self._in_units(slice(None), slice(None))

    def own_block(self, of: str, by: str) -> np.ndarray:
        """Return `block` without making the whole, for once; not to be written to."""
        return self._in_units(self._place(of), self._place(by))

    def block(self, of: str, by: str) -> np.ndarray:
        """Return the second derivative, rows for one variable and columns for the other."""
        return self.curvature[self._place(of), self._place(by)]

    def _place(self, variable: str) -> slice:
        return slice(self.n_x) if variable == "x" else slice(self.n_x, None)

    @functools.cached_property
    def hessian(self) -> sp.csc_matrix:
        """The second derivative in (x, y), as sparse."""
        return _transposed(self.curvature)

    def part(self, of: str, by: str) -> sp.csc_matrix:
        """Return `block` as sparse, the same matrix whenever it is asked for."""
        if (of, by) not in self._parts:
            # Not by way of the whole, which of a large lower objective nobody else asks for.
            self._parts[of, by] = _transposed(self._in_units(self._place(by), self._place(of)))
        return self._parts[of, by]

    @functools.cached_property
    def _parts(self) -> dict[tuple[str, str], sp.csc_matrix]:
        return {}


def _transposed(array: np.ndarray) -> sp.csc_matrix:
    """Return the transpose of an array, compressed by columns: of symmetric ones nothing has to be turned around."""
    return compressed(array).T if array.size > _FEW_ENTRIES else by_columns(array.T)


def joint_quadratic(objective: Callable[[], Callable], program: Program, n_x: int, n_y: int) -> JointQuadratic | None:
    """Return a function of degree two at most in its own units, without compiling anything.

    Its ``program`` gives values, and the derivatives where there are many variables; else, and where operations are not
    known, these are those of its traced gradient along the unit vectors, for which the ``objective`` itself is asked.
    None where an operation is not known to NumPy, or a number is not finite.
    """
    value = HostFunction(program)
    try:
        finite = np.isfinite(value(np.zeros(n_x), np.zeros(n_y)))
    except jets.Unsupported:
        return None
    numbers = _read_off(program) if n_x + n_y > DENSE_COLUMNS else None
    if numbers is None:
        fn = objective()
        numbers = gradient_numbers(lambda x, y: jnp.concatenate(jax.grad(fn, argnums=(0, 1))(x, y)), n_x, n_y)
        if numbers is not None:
            curvature = numbers[1] + numbers[1].T
            curvature *= 0.5
            numbers = numbers[0], curvature
    return JointQuadratic(n_x, value, *numbers) if numbers is not None and finite else None


def _read_off(program: Program) -> tuple[np.ndarray, np.ndarray] | None:
    """Return gradient at zero and Hessian of a quadratic by its operations; None where that is not possible."""
    try:
        linear, curvature = quadratic_form(program)
    except jets.Unsupported:
        return None
    return (linear, curvature) if np.isfinite(linear).all() and np.isfinite(curvature).all() else None


def holds_full_matrices(program: Program) -> bool:
    """Return whether the constants of a function fill a good part of a matrix of all its variables."""
    size = program.shapes[program.x][0] + program.shapes[program.y][0]
    return sum(constant.size for constant in program.constants.values()) > _FULL * size**2


def gradient_numbers(gradient: Callable, n_x: int, n_y: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return an affine gradient at zero, and its change along each unit vector of (x, y), one a row; or None."""
    if n_x + n_y > DENSE_COLUMNS:
        return _many_gradient_numbers(gradient, n_x, n_y)
    program = Program(trace(gradient, n_x, n_y))
    origin, units = np.zeros((n_x + n_y, n_x + n_y)), np.eye(n_x + n_y)
    of_x, of_y = (jets.line_jet(origin[:, part], units[:, part]) for part in (slice(n_x), slice(n_x, None)))
    try:
        (along,) = program.evaluate(of_x, of_y, [program.result])
    except jets.Unsupported:
        return None
    shape = n_x + n_y, program.shapes[program.result][0]
    constant = np.array(np.broadcast_to(along[0], shape)[0])
    slopes = along[1] if len(along) > 1 else np.zeros(shape)  # one component: it does not depend on the point
    return (constant, slopes) if np.isfinite(along).all() else None


def _many_gradient_numbers(gradient: Callable, n_x: int, n_y: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return what `gradient_numbers` does, by products with some unit vectors at a time."""
    zeros = np.zeros(n_x), np.zeros(n_y)
    program = Program(trace(lambda *along: jax.jvp(gradient, zeros, along)[1], n_x, n_y))
    slopes = np.zeros((n_x + n_y, program.shapes[program.result][0]))
    try:
        constant = HostFunction(Program(trace(gradient, n_x, n_y)))(*zeros)
        for first in range(0, len(slopes), _AT_A_TIME):
            clock.check()
            part = slopes[first : first + _AT_A_TIME]
            units = np.eye(len(part), len(slopes), first)[None]
            part[:] = program.evaluate(units[..., :n_x], units[..., n_x:], [program.result])[0][0]
    except jets.Unsupported:
        return None
    return (constant, slopes) if np.isfinite(constant).all() and np.isfinite(slopes).all() else None
