"""Exact descent on the pieces of Phi: a trust-region SQP that knows the kinks.

At an exact lower-level point a row is *strongly active* (positive multiplier), *biactive* (slack and multiplier both
zero: x lies on a kink) or inactive. A step d of x and a change theta of the biactive rows' multipliers predict the
value of every row and the multiplier of every strongly active one, by linear functions. The step minimises a quadratic
model of f under those predictions: rows stay feasible, multipliers nonnegative. A biactive row may have slack and a
multiplier at once in this model, which relaxes complementarity; where it does, it is put on one side and the model
solved again. The exact value of Phi decides whether a step is taken.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from bilevax.solvers.default.cholesky import factorise, lifted, refined_solver
from bilevax.solvers.default.complementarity import independent_rows
from bilevax.solvers.default.lower import LowerModel, LowerPoint
from bilevax.solvers.default.quadratic_program import UpperSet, solve_qp


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """An exact point with Phi there."""

    lower: LowerPoint
    value: float


@dataclasses.dataclass(frozen=True)
class Reduction:
    """Rows and objective as functions of a step d of x and a change theta of the biactive rows' multipliers.

    other rows:          value + value_x d - value_theta theta
    active multipliers:  multiplier + multiplier_x d - multiplier_theta theta
    """

    active: np.ndarray
    biactive: np.ndarray
    value_x: np.ndarray
    value_theta: np.ndarray
    multiplier_x: np.ndarray
    multiplier_theta: np.ndarray
    gradient_x: np.ndarray
    gradient_theta: np.ndarray
    hessian: np.ndarray


def evaluate_exactly(model: LowerModel, x: np.ndarray, y: np.ndarray, active: np.ndarray | None) -> Evaluated | None:
    """Return Phi at x, or None where the lower level is infeasible."""
    try:
        lower = model.solve(x, y, active)
    except (FloatingPointError, np.linalg.LinAlgError):
        return None
    if lower is None or lower.violation > 1e-8 * (1 + np.abs(lower.y).max(initial=0.0)):
        return None
    value = model.flat.value("upper", x, lower.y)
    return Evaluated(lower, value) if np.isfinite(value) else None


def reduce(model: LowerModel, lower: LowerPoint, active: np.ndarray, biactive: np.ndarray) -> Reduction:
    """Eliminate y and the multipliers of the active rows, which are kept as equations."""
    expansion, flat = lower.expansion, model.flat
    compliance, slope = expansion.compliance, expansion.slope
    f_x, f_y = flat.gradients("upper", lower.x, lower.y)
    adjoint = expansion.solve(f_y)
    pull = expansion.rows @ adjoint
    inner = compliance[np.ix_(active, active)]
    # Refined, since in a gradient of large numbers what keeps a factor definite would be seen.
    solve = refined_solver(inner) if len(active) else lambda right: right
    multiplier_x = solve(slope[active])
    multiplier_theta = solve(compliance[np.ix_(active, biactive)])
    others = compliance[:, active]
    price = -solve(pull[active])  # of the active rows: H weight + rows' price = -f_y
    weight = -adjoint - expansion.inverse_rows[:, active] @ price
    hessian = _hessian(model, lower, weight, price, active, biactive, multiplier_x, multiplier_theta)
    return Reduction(
        active=active,
        biactive=biactive,
        value_x=slope - others @ multiplier_x,
        value_theta=compliance[:, biactive] - others @ multiplier_theta,
        multiplier_x=multiplier_x,
        multiplier_theta=multiplier_theta,
        gradient_x=f_x - expansion.mixed.T @ adjoint - multiplier_x.T @ pull[active],
        gradient_theta=multiplier_theta.T @ pull[active] - pull[biactive],
        hessian=0.5 * (hessian + hessian.T),
    )


def _hessian(
    model: LowerModel,
    lower: LowerPoint,
    weight: np.ndarray,
    price: np.ndarray,
    active: np.ndarray,
    biactive: np.ndarray,
    multiplier_x: np.ndarray,
    multiplier_theta: np.ndarray,
) -> np.ndarray:
    """Return the second derivative of f in (d, theta), y and the active rows' multipliers following."""
    flat, expansion = model.flat, lower.expansion
    n_x, size = flat.n_x, flat.n_x + flat.n_y
    simple = model.lift == 0.0 and not model.rows.balls and not flat.lagrangian_varies
    if size > _FEW_VARIABLES and model.rows.count <= flat.n_y and simple:
        # In the space of x and all multipliers it is computed once: an elimination then costs a sixth.
        whole = model.in_rows(expansion, flat.lagrangian_hessian(lower.x, lower.y, weight))
        free, bound = np.concatenate([np.arange(n_x), n_x + biactive]), n_x + active
        follow = np.hstack([multiplier_x, -multiplier_theta])
        cross = whole[np.ix_(free, bound)] @ follow
        return whole[np.ix_(free, free)] + cross + cross.T + follow.T @ (whole[np.ix_(bound, bound)] @ follow)
    # The derivative of y in a step of x and in the multiplier of a biactive row.
    rows = expansion.inverse_rows
    y_x = -expansion.inverse_mixed - rows[:, active] @ multiplier_x
    y_theta = -(rows[:, biactive] - rows[:, active] @ multiplier_theta)
    directions = np.block([[np.eye(n_x), y_x.T], [np.zeros((len(biactive), n_x)), y_theta.T]])
    hessian = directions @ flat.curvature(lower.x, lower.y, weight, directions).T
    # A ball's normal turns with y while its multiplier changes; an active ball has curvature of its own.
    multipliers = np.zeros((len(directions), model.rows.count))
    multipliers[:, active] = np.hstack([multiplier_x, -multiplier_theta]).T
    multipliers[n_x:, biactive] = np.eye(len(biactive))
    prices = np.zeros(model.rows.count)
    prices[active] = price
    for row, ball in enumerate(model.rows.balls, model.rows.count - len(model.rows.balls)):
        along = directions[:, n_x + ball.index] / ball.radius
        turned = np.outer(along @ weight[ball.index], multipliers[:, row])
        hessian += turned + turned.T + prices[row] * ball.radius * (along @ along.T)
    return hessian


def exact_descent(
    model: LowerModel, upper: UpperSet, point: Evaluated, rtol: float, iterations: int = 60
) -> Iterator[tuple[Evaluated, bool]]:
    """Yield exact points that descend on Phi; the flag is true at the end, once no model sees descent left."""
    size = lambda: 1 + np.abs(point.lower.x).max(initial=0.0)
    radius, margin, slope = size(), 1e-7, np.inf
    for _ in range(iterations):
        step = _best_step(model, upper, point, radius, margin, rtol)
        rounding = _EPSILON * (1 + abs(point.value))
        # Steps that f is too coarse to tell are worth taking while the slope falls; then it is rounding, too.
        if step is None or (step.predicted <= rounding and step.slope > 0.5 * slope):
            yield point, True
            return
        slope = step.slope if step.predicted <= rounding else np.inf
        if step.trial is not None and point.value - step.trial.value >= 1e-3 * step.predicted - rounding:
            if step.length >= 0.9 * radius:
                radius *= 3
            small = step.predicted <= 1e-2 * rtol**2 * (1 + abs(point.value)) and step.length <= rtol * size()
            done = small and step.slope <= 0.1 * rtol
            point = step.trial
            yield point, done
        else:
            radius = 0.25 * min(radius, step.length)
            unseen = step.predicted <= rounding
            done = unseen or radius <= 1e-12 * size()
            yield point, unseen
        if done:
            return


@dataclasses.dataclass(frozen=True)
class _Step:
    """Where a step leads, what decrease was predicted, its length, and the slope: relative, and on average."""

    trial: Evaluated | None
    predicted: float
    length: float
    slope: float


def _best_step(
    model: LowerModel, upper: UpperSet, point: Evaluated, radius: float, margin: float, rtol: float
) -> _Step | None:
    """Return a step that some piece promises to be worth taking, or None when no piece promises any descent.

    The model lets biactive rows have slack and multiplier at once, so it promises too much. Where it uses that, its
    children put all such rows on the sides they lean to, or the worst of them on the other side.
    """
    lower, rows = point.lower, model.rows
    size = 1 + np.abs(lower.y).max(initial=0.0)
    press = 1 + np.abs(lower.multiplier).max(initial=0.0)
    inequality = rows.inequality
    biactive = inequality & (lower.value >= -margin * size) & (lower.multiplier <= margin * press)
    active = ~inequality | (inequality & (lower.multiplier > margin * press))
    # Of dependent active rows a basis is kept as equations; the rest count as biactive.
    basis = independent_rows(lower.expansion.compliance, np.flatnonzero(active))
    biactive |= active & inequality & ~np.isin(np.arange(rows.count), basis)
    size_of_value = 1 + abs(point.value)
    disappointed = None
    queue, seen = [np.zeros(rows.count, np.int8)], set()
    limit = _MAX_NODES if biactive.sum() <= _FEW_BIACTIVE else _MAX_NODES // 5
    while queue and len(seen) < limit:
        side = queue.pop()
        if side.tobytes() in seen:
            continue
        seen.add(side.tobytes())
        active_now = independent_rows(lower.expansion.compliance, np.union1d(basis, np.flatnonzero(side > 0)))
        biactive_now = np.flatnonzero(biactive & (side == 0))
        reduction = reduce(model, lower, active_now, biactive_now)
        solved = _solve_model(model, upper, lower, reduction, radius)
        if solved is None:
            continue
        d, theta, predicted = solved
        # Where Phi bends much, a slope may be left to see although the decrease along it is not.
        steepest = 1 + float(np.linalg.norm(reduction.gradient_x))
        slope = predicted / max(float(np.linalg.norm(d)), 1e-300) / steepest
        if predicted <= _EPSILON * size_of_value and slope <= 1e-3 * rtol:
            continue
        value = lower.value + reduction.value_x @ d - reduction.value_theta @ theta
        multiplier = lower.multiplier[biactive_now] + theta
        guess = np.zeros(rows.count, bool)
        guess[active_now] = True
        guess[biactive_now] = multiplier > -value[biactive_now]
        y = lower.y + _y_step(lower, reduction, d, theta)
        trial = evaluate_exactly(model, upper.project(lower.x + d), y, guess)
        step = _Step(trial, predicted, float(np.abs(d).max(initial=0.0)), slope)
        if trial is not None and point.value - trial.value >= 0.1 * predicted - _EPSILON * size_of_value:
            return step
        torn = np.minimum(multiplier / press, -value[biactive_now] / size)
        used = torn > 1e-8
        if not used.any():
            disappointed = disappointed or step
            continue
        leaning = np.where(multiplier / press > -value[biactive_now] / size, 1, -1).astype(np.int8)
        worst = np.argmax(torn)
        against = side.copy()
        against[biactive_now[worst]] = -leaning[worst]
        along = side.copy()
        along[biactive_now[used]] = leaning[used]
        queue += [against, along]
    return disappointed


# With many biactive rows the branches cannot be exhausted: a shorter step is the better answer.
_MAX_NODES = 40
_FEW_BIACTIVE = 12
_EPSILON = 1e-14
_FEW_VARIABLES = 400  # up to so many the directions of y are the cheaper way to second derivatives


def _y_step(lower: LowerPoint, reduction: Reduction, d: np.ndarray, theta: np.ndarray) -> np.ndarray:
    expansion = lower.expansion
    multiplier = reduction.multiplier_x @ d - reduction.multiplier_theta @ theta
    moved = expansion.solve(expansion.mixed @ d) + expansion.inverse_rows[:, reduction.active] @ multiplier
    return -(moved + expansion.inverse_rows[:, reduction.biactive] @ theta)


def _solve_model(
    model: LowerModel, upper: UpperSet, lower: LowerPoint, reduction: Reduction, radius: float
) -> tuple[np.ndarray, np.ndarray, float] | None:
    n_x, count = len(lower.x), len(reduction.biactive)
    inequality = model.rows.inequality
    not_active = np.ones(len(inequality), bool)
    not_active[reduction.active] = False
    active_inequality = inequality[reduction.active]
    multiplier_now = lower.multiplier[reduction.active]
    fading = active_inequality & (multiplier_now <= radius * np.abs(reduction.multiplier_x).sum(axis=1) + 1e-6)
    steps = upper.rows.around(lower.x)
    blocks = [
        (
            np.hstack([reduction.value_x[not_active], -reduction.value_theta[not_active]]),
            -np.inf,
            np.maximum(-lower.value[not_active], 0.0),
        ),
        (
            np.hstack([reduction.multiplier_x[fading], -reduction.multiplier_theta[fading]]),
            -np.maximum(multiplier_now[fading], 0.0),
            np.inf,
        ),
        (np.hstack([np.zeros((count, n_x)), np.eye(count)]), -lower.multiplier[reduction.biactive], np.inf),
        (np.hstack([np.eye(n_x), np.zeros((n_x, count))]), -radius, radius),
        (np.hstack([steps.matrix.toarray(), np.zeros((len(steps.lower), count))]), steps.lower, steps.upper),
    ]
    matrix = np.vstack([block[0] for block in blocks])
    low = np.concatenate([np.broadcast_to(block[1], (len(block[0]),)) for block in blocks])
    high = np.concatenate([np.broadcast_to(block[2], (len(block[0]),)) for block in blocks])
    gradient = np.concatenate([reduction.gradient_x, reduction.gradient_theta])
    hessian = _convex(reduction.hessian, n_x)
    # Balanced units: steps and multipliers in multiples of what the model makes of them.
    steepness = max(np.abs(gradient).max(initial=0.0), 1e-300)
    unit = 1 / np.sqrt(np.maximum(np.diag(hessian) / steepness, 1 / radius))
    if steps.balls:
        unit[:] = 1.0
    solved = solve_qp(
        hessian * np.outer(unit, unit) / steepness, gradient * unit / steepness, matrix * unit, low, high, steps.balls
    )
    if solved is None:
        return None
    v = solved * unit
    predicted = -float(gradient @ v + 0.5 * v @ hessian @ v)
    return v[:n_x], np.maximum(v[n_x:], -lower.multiplier[reduction.biactive]), predicted


def _convex(hessian: np.ndarray, n_x: int) -> np.ndarray:
    """Return a convex model: negative curvature reversed, and none left that is zero."""
    if len(hessian) <= 400:
        try:
            factorise(lifted(hessian, -1e-9 * max(1e-8, np.abs(hessian).sum(axis=1).max())))
            return hessian
        except np.linalg.LinAlgError:
            values, vectors = np.linalg.eigh(hessian)
        floor = 1e-9 * max(1e-8, np.abs(values).max(initial=0.0))
        return (vectors * np.maximum(np.abs(values), floor)) @ vectors.T if values.min() < floor else hessian
    shift = 1e-10 * max(1e-8, np.abs(np.diag(hessian)).max())
    while True:
        try:
            convex = lifted(hessian, shift)
            factorise(convex)
            return convex
        except np.linalg.LinAlgError:
            shift *= 10
