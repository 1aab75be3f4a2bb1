"""`BilevelProblem`: what the user writes, and the one place where it is validated."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PyTree

from bilevax._support import trees
from bilevax._support.hints import names_arguments, of_tracing
from bilevax._support.memory import Frozen, remembered
from bilevax._support.precision import float64
from bilevax.model.coupling import Coupling, Respond, RowForm, as_couplings
from bilevax.model.sets import ConvexSet, Free

Placed = TypeVar("Placed")
Choice = Literal["optimistic", "pessimistic"]
Level = Literal["upper", "lower"]  # which objective: f or g
Variable = Literal["x", "y"]


class BilevelProblem(eqx.Module):
    """Minimise ``upper(x, y*(x))`` over x in X, with ``y*(x)`` the minimiser of ``lower(x, .)`` over Y and the rows.

    Parameters
    ----------
    upper, lower
        JAX functions ``fn(x, y)``, or ``fn(x, y, data)`` when ``data`` is given, that return a scalar. ``lower`` has to
        be convex in y.
    coupling
        The rows ``lower <= B x + A y <= upper``: a `LinearCoupling`, an `AffineCoupling`, a `ConvexCoupling` (rows that
        are not affine, but convex in y), a sequence of them, a dictionary of them by name, or None. Multipliers come
        back in the same form.
    x_set, y_set
        The sets X and Y.
    data
        Numbers the objectives need. They are traced: new ones of the same shape do not recompile.
    y_like
        An example of y, or its shapes, where neither a start y0 nor a matrix A tells them.
    choice
        Which minimiser counts where the lower level has several: ``"optimistic"``, the one with the least f (the
        leader's best), or ``"pessimistic"``, the one with the largest. Phi(x) is f there.
    upper_rows
        What the leader has to satisfy at (x, y*(x)), beside x in X: rows of the same classes as ``coupling``, which the
        lower level knows nothing of. A `ConvexCoupling` there need only be smooth.
    multipliers_in_upper
        Whether f knows the multipliers of the lower level's rows, such as market prices: ``upper`` is then called as
        ``fn(x, y, multipliers)``, or ``fn(x, y, multipliers, data)``, with the multipliers as they come back in a
        `Solution`. Where they are not unique, ``choice`` decides among them, too. For a linear or quadratic ``lower``,
        affine rows and a set Y without balls.
    """

    upper: Callable[..., Float[Array, ""]]
    lower: Callable[..., Float[Array, ""]]
    coupling: tuple[Coupling, ...]
    x_set: ConvexSet
    y_set: ConvexSet
    data: PyTree
    y_like: PyTree
    upper_rows: tuple[Coupling, ...]
    multipliers_in_upper: bool = eqx.field(static=True)
    coupling_form: RowForm = eqx.field(static=True)
    upper_rows_form: RowForm = eqx.field(static=True)
    choice: Choice = eqx.field(static=True)

    @names_arguments
    def __init__(
        self,
        upper: Callable[..., Float[Array, ""]],
        lower: Callable[..., Float[Array, ""]],
        coupling: Any = None,
        x_set: ConvexSet | None = None,
        y_set: ConvexSet | None = None,
        data: PyTree = None,
        y_like: PyTree = None,
        choice: Choice = "optimistic",
        upper_rows: Any = None,
        multipliers_in_upper: bool = False,
    ):
        self.upper = upper
        self.lower = lower
        self.coupling, self.coupling_form = as_couplings(coupling)
        self.x_set = Free() if x_set is None else x_set
        self.y_set = Free() if y_set is None else y_set
        self.data = jax.tree.map(_host_data, data)
        self.y_like = None if y_like is None else trees.map_arrays(_as_shape, y_like)
        self.choice = choice
        self.upper_rows, self.upper_rows_form = as_couplings(upper_rows, "upper_rows")
        self.multipliers_in_upper = multipliers_in_upper

    def __check_init__(self):
        for name in ("upper", "lower"):
            if not callable(getattr(self, name)):
                raise ValueError(f"{name}: expected a function of (x, y), got {type(getattr(self, name)).__name__}.")
        for name in ("x_set", "y_set"):
            if not isinstance(getattr(self, name), ConvexSet):
                came = getattr(self, name)
                bounds = "; bounds are Box(lower, upper)" if isinstance(came, list | tuple | np.ndarray) else ""
                raise ValueError(
                    f"{name}: expected a set such as Box or NonNegative, got {type(came).__name__}{bounds}."
                )
        if self.choice not in get_args(Choice):
            raise ValueError(f"choice: expected one of {', '.join(get_args(Choice))}, got {self.choice!r}.")
        if not isinstance(self.multipliers_in_upper, bool):
            raise ValueError(f"multipliers_in_upper: expected True or False, got {self.multipliers_in_upper!r}.")
        if self.multipliers_in_upper and not self.coupling:
            raise ValueError("multipliers_in_upper: expected a problem with rows, got one without a coupling.")
        for leaf in jax.tree.leaves(self.data):
            if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f" and np.isnan(leaf).any():
                raise ValueError(f"data: expected numbers, got NaN in an array of shape {leaf.shape}.")

    def upper_value(self, x: PyTree, y: PyTree) -> Float[Array, ""]:
        """Return f(x, y) as a scalar."""
        if self.multipliers_in_upper:
            raise ValueError("multipliers_in_upper: expected a problem whose f depends on x and y alone.")
        return _scalar(self.upper(x, y) if self.data is None else self.upper(x, y, self.data))

    def lower_value(self, x: PyTree, y: PyTree) -> Float[Array, ""]:
        """Return g(x, y) as a scalar."""
        return _scalar(self.lower(x, y) if self.data is None else self.lower(x, y, self.data))

    def rows(self, x: PyTree, y: PyTree) -> tuple[PyTree, ...]:
        """Return the values of all rows, one entry a coupling."""
        return tuple(part.value(x, y, self.data) for part in self.coupling)

    def row_bounds(self, rows: tuple[PyTree, ...]) -> tuple[PyTree, PyTree]:
        """Return (lower, upper) in the structure of ``rows``."""
        bounds = [part.bounds(values) for part, values in zip(self.coupling, rows, strict=True)]
        return tuple(low for low, _ in bounds), tuple(high for _, high in bounds)

    def adjoint_x(self, x: PyTree, y: PyTree, multipliers: tuple[PyTree, ...]) -> PyTree:
        """Return B' multipliers."""
        return self._adjoint(x, [part.adjoint_x for part in self.coupling], x, y, multipliers)

    def adjoint_y(self, x: PyTree, y: PyTree, multipliers: tuple[PyTree, ...]) -> PyTree:
        """Return A' multipliers."""
        return self._adjoint(y, [part.adjoint_y for part in self.coupling], x, y, multipliers)

    def there_and_back(
        self, x: PyTree, points: tuple[PyTree, ...], respond: Respond, rows: tuple[tuple[PyTree, ...], ...]
    ) -> tuple[list[PyTree], list[tuple[PyTree, ...]]]:
        """Return A' of each force with which the rows respond to the points y, and the new rows, one entry a coupling.

        The rows are tuples with one entry a coupling, as from `rows`; how they respond is as in
        `Coupling.there_and_back`, which passes over a large matrix once.
        """
        passes = [
            part.there_and_back(x, points, self.data, respond, old)
            for part, old in zip(self.coupling, zip(*rows, strict=True), strict=True)
        ]
        pulls = [_total(y, [pulls[index] for pulls, _ in passes]) for index, y in enumerate(points)]
        return pulls, [new for _, new in passes]

    def _adjoint(self, like: PyTree, maps: list[Callable], x: PyTree, y: PyTree, multipliers: tuple[PyTree, ...]):
        images = [adjoint(x, y, self.data, part) for adjoint, part in zip(maps, multipliers, strict=True)]
        return _total(like, images)

    @property
    def curved(self) -> bool:
        """Whether some row of the lower level is not affine."""
        return not all(part.affine for part in self.coupling)

    def unwrap_rows(self, rows: tuple[PyTree, ...]) -> PyTree:
        """Return rows (or multipliers) as the user wrote the coupling: alone, one entry a coupling, or by name."""
        return self.coupling_form.restore(rows)

    def row_parts(self, rows: PyTree) -> tuple[PyTree, ...]:
        """Return rows (or multipliers) that are in the user's form one entry a coupling: undoes `unwrap_rows`."""
        return self.coupling_form.parts(rows)


def _total(like: PyTree, parts: list[PyTree]) -> PyTree:
    """Return the sum of trees like ``like``; zero where there are none."""
    if not parts:
        return jax.tree.map(jnp.zeros_like, like)
    return jax.tree.map(lambda *leaves: sum(leaves[1:], start=leaves[0]), *parts)


def place(tree: Placed, dtype: Any) -> Placed:
    """Return a problem, or a part of one, with its numbers on the device in ``dtype``."""
    numbers, others = eqx.partition(jax.tree.map(lambda leaf: _cast(leaf, dtype), tree), _is_host_number)
    return eqx.combine(jax.device_put(numbers), others)  # all at once: the first of them costs most


@remembered
def placed_objectives(problem: BilevelProblem) -> tuple[Any, Any, PyTree]:
    """Return f, g and the data of a problem with their numbers on the device in float64, where they are only once."""
    with float64():
        return place((problem.upper, problem.lower, problem.data), np.float64)


def validate(
    problem: BilevelProblem, x0: PyTree, y0: PyTree = None, dtype: Any = np.float64, traced: bool = False
) -> tuple[PyTree, PyTree, PyTree | None]:
    """Check a problem with its start, before anything is compiled.

    Parameters
    ----------
    problem, x0, y0
        What a user gave.
    dtype
        Of the start that is returned.
    traced
        Whether numbers may be tracers, unknown as yet, or on devices and not looked at: of all there is, only `run`
        can do with them.

    Returns
    -------
    x0, y_like, y0
        The start and the shapes of y in ``dtype``; y0 stays None where none was given.

    Raises
    ------
    ValueError
        Saying what came and what was expected.
    """
    if not isinstance(problem, BilevelProblem):
        raise ValueError(f"problem: expected a BilevelProblem, got {type(problem).__name__}.")
    if not traced:
        refuse_tracers(problem=problem, x0=x0, y0=y0)
    x0 = _start(x0, "x0", dtype, traced)
    if trees.size(x0) == 0:
        raise ValueError("x0: expected at least one number, got none: a problem without x has nothing to choose.")
    if y0 is not None:
        y0 = _start(y0, "y0", dtype, traced)
    y_like = _y_shapes(problem, x0, y0, dtype)
    if trees.size(y_like) == 0:
        raise ValueError("y: expected at least one number, got none: the lower level is empty.")
    problem.x_set.check(x0, "x_set")
    problem.y_set.check(y_like, "y_set")
    shapes = Frozen(trees.shapes(x0)), Frozen(y_like)
    (_check_functions if traced else _check_functions_once)(problem, *shapes, np.dtype(dtype))
    return x0, y_like, y0


def _check_functions(problem: BilevelProblem, x_like: Frozen, y_like: Frozen, dtype: Any) -> None:
    """Check the rows and the objectives of a problem for variables of these shapes."""
    with jax.ensure_compile_time_eval():  # inside jit, too, what is known is looked at now
        parts = (problem.coupling, problem.upper_rows, (problem.upper, problem.lower), problem.data)
        coupling, upper_rows, objectives, data = place(parts, dtype)
        for name, rows, form in (
            ("coupling", coupling, problem.coupling_form),
            ("upper_rows", upper_rows, problem.upper_rows_form),
        ):
            for index, part in enumerate(rows):
                part.check(x_like.tree, y_like.tree, data, form.label(name, index))
        shapes = tuple(part.shapes(x_like.tree, y_like.tree, data) for part in coupling)
    arguments = {"x": x_like.tree, "y": y_like.tree}
    prices = {"multipliers": problem.unwrap_rows(shapes)} if problem.multipliers_in_upper else {}
    numbers = {} if data is None else {"data": data}
    _check_objective("upper", objectives[0], arguments | prices | numbers)
    _check_objective("lower", objectives[1], arguments | numbers)


_check_functions_once = remembered(_check_functions)


def refuse_tracers(**points: PyTree) -> None:
    """Raise a `ValueError` that names the first of these that holds numbers which are not known yet."""
    for name, tree in points.items():
        unknown = [leaf for leaf in jax.tree.leaves(tree) if not trees.is_concrete(leaf)]
        if unknown:
            kind = "a tracer" if isinstance(unknown[0], Tracer) else "an array that is spread over several processes"
            raise ValueError(
                f"{name}: expected numbers, got {kind}. Exact solves and certificates run on one host, not inside "
                "jit, vmap or grad; of bilevax's functions run(...), with a compiled solver, may be transformed and "
                "takes such arrays."
            )


def _y_shapes(problem: BilevelProblem, x0: PyTree, y0: PyTree, dtype: Any) -> PyTree:
    """Return the shapes of y from whoever tells them: y0, y_like, a matrix A, the set Y, or the objectives."""
    told = [trees.shapes(y0)] if y0 is not None else []
    told += [problem.y_like] if problem.y_like is not None else []
    if y0 is not None and problem.y_like is not None and _shape_key(told[0]) != _shape_key(told[1]):
        raise ValueError(f"y0: expected {trees.describe(problem.y_like)} as in y_like, got {trees.describe(y0)}.")
    told += [shape for part in (*problem.coupling, *problem.upper_rows) if (shape := part.y_like()) is not None]
    told += [shape] if (shape := problem.y_set.like()) is not None else []
    found = told[0] if told else _smallest_y(problem, x0)
    if found is None:
        raise ValueError("y0: the shape of y is unknown; give y0, or y_like=... to the problem.")
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), found)


def _smallest_y(problem: BilevelProblem, x0: PyTree, largest: int = 64) -> PyTree | None:
    """Return the shape of the smallest y that both objectives accept, or None where more than one would do.

    NumPy, unlike JAX, refuses an index out of bounds, so ``y[0] + y[1]`` tells its shape. A sum over y does not.
    """
    random = np.random.default_rng(0)
    x = jax.tree.map(lambda leaf: random.uniform(0.1, 0.9, leaf.shape), x0)
    objectives = (problem.lower_value,) if problem.multipliers_in_upper else (problem.upper_value, problem.lower_value)

    def values(y: np.ndarray) -> list[float] | None:
        try:
            with np.errstate(all="ignore"):
                return [float(fn(x, y)) for fn in objectives]
        except Exception:
            return None

    if values(np.zeros(())) is not None:
        sizes = {2, 3, *(np.size(leaf) for leaf in jax.tree.leaves(x))} - {1}
        broadcasts = any(values(np.zeros(size)) is not None for size in sizes)
        return None if broadcasts else jax.ShapeDtypeStruct((), np.float64)
    for size in range(1, largest + 1):
        if values(np.zeros(size)) is not None:
            longer = random.uniform(0.1, 0.9, size + 1)
            before, after = values(longer), values(np.r_[longer[:-1], 1.7])
            ignored = before is None or (after is not None and np.array_equal(before, after, equal_nan=True))
            return jax.ShapeDtypeStruct((size,), np.float64) if ignored else None
    return None


def _check_objective(name: str, objective: Callable, arguments: dict[str, PyTree]) -> None:
    try:
        out = jax.eval_shape(objective, *arguments.values())
    except Exception as error:
        if (advice := of_tracing(error)) is not None:
            raise ValueError(f"{name}: {advice}.") from error
        given = [f"{each} = {trees.describe(arguments[each])}" for each in arguments if each != "data"]
        raise ValueError(
            f"{name}: the objective failed when called as fn({', '.join(arguments)}) with {', '.join(given[:-1])} and "
            f"{given[-1]}: {type(error).__name__}: {error}"
        ) from error
    shape = getattr(out, "shape", None)
    if shape is None or int(np.prod(shape)) != 1:
        raise ValueError(f"{name}: expected an objective that returns a scalar, got {trees.describe(out)}.")
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise ValueError(f"{name}: expected a real objective, got dtype {out.dtype}.")


def _start(value: PyTree, name: str, dtype: Any, traced: bool) -> PyTree:
    def refuse_unless(finite: Any, leaf: Any) -> None:
        if not finite:
            raise ValueError(f"{name}: expected finite numbers, got NaN or infinity in an array of shape {leaf.shape}.")

    def convert(leaf: Any) -> Array:
        leaf = trees.spread(leaf) if trees.is_spread(leaf) else leaf
        if isinstance(leaf, jax.Array) and (traced or not trees.is_concrete(leaf)):
            # The host need not know the numbers, but whether they are numbers, if that can be known.
            refuse_unless(not trees.is_concrete(leaf) or jax.device_get(jnp.isfinite(leaf).all()), leaf)
            return leaf.astype(dtype)
        try:
            array = np.asarray(leaf, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: expected numbers, got {type(leaf).__name__}.") from error
        refuse_unless(np.isfinite(array).all(), array)
        return leaf.astype(dtype) if trees.is_spread(leaf) else jax.device_put(array.astype(dtype))

    return trees.map_arrays(convert, value)


def _shape_key(tree: PyTree) -> Any:
    return jax.tree.structure(tree), [tuple(leaf.shape) for leaf in jax.tree.leaves(tree)]


def _as_shape(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(leaf.shape) if hasattr(leaf, "shape") else np.shape(leaf), np.float64)


def _host_data(leaf: Any) -> Any:
    if trees.is_spread(leaf):
        return trees.spread(leaf)
    if not trees.is_concrete(leaf) or not isinstance(leaf, jax.Array | np.ndarray | float | int | np.generic):
        return leaf
    array = np.asarray(leaf)
    # A copy, which the user cannot change afterwards; nobody can change an array of JAX.
    return array.astype(np.float64, copy=not isinstance(leaf, jax.Array)) if array.dtype.kind == "f" else array


def _is_host_number(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | np.generic)


def _cast(leaf: Any, dtype: Any) -> Any:
    if _is_host_number(leaf):
        return leaf.astype(dtype, copy=False) if leaf.dtype.kind == "f" else leaf
    return leaf.astype(dtype) if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def _scalar(value: Any) -> Float[Array, ""]:
    return jnp.reshape(value, ())
