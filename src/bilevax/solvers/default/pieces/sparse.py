"""Pieces of Phi by sparse linear algebra: a step of x, y and the multipliers together is one sparse program.

No strong convexity and no unique multipliers are needed: a point that satisfies the conditions of a piece proves
itself. The end of a step is brought back to its piece by Newton's method (`restoration`). Where nothing descends any
more, `other_multipliers` of the same point are tried.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp

from bilevax._support.division import positive
from bilevax.model.flat import FlatProblem
from bilevax.solvers.default.lower.central import CentralLower
from bilevax.solvers.default.pieces.conditions import conditions, point_at
from bilevax.solvers.default.pieces.descent import Promises, Step
from bilevax.solvers.default.pieces.other_multipliers import other_multipliers
from bilevax.solvers.default.pieces.point import BIACTIVE, ExactPoint, Units, classify
from bilevax.solvers.default.pieces.restoration import restore
from bilevax.solvers.default.programs.convexify import convexified
from bilevax.solvers.default.programs.quadratic import solve_sparse_qp
from bilevax.solvers.default.programs.upper_set import UpperSet
from bilevax.solvers.default.settings import EXACT, RESTORATION


@dataclasses.dataclass(frozen=True)
class SparseTrust:
    """A trust region around x, a proximal weight on the whole step, and whether the model has g's third derivative.

    The programs are nearly linear: the weight, the ``drag``, keeps them from being too flat to be solved well. Far from
    the end g's third derivative, the curvature of the conditions, does more harm than good.
    """

    radius: float
    rtol: float
    drag: float = EXACT.first_drag
    curved: bool = False
    failed: bool = False
    least_drag: float = EXACT.least_drag

    @property
    def exhausted(self) -> bool:
        """Whether no more drag is worth trying."""
        return self.drag >= EXACT.most_drag

    @property
    def crawling(self) -> bool:
        """Whether a step that gains next to nothing is no fault of the drag."""
        return self.failed or self.drag <= self.least_drag

    def after_success(self, length: float, gain: float, share: float) -> "SparseTrust":
        """Return less drag where the model told the truth; a larger region where its size was what limited the step."""
        less = 0.1 if share >= EXACT.honest or gain <= EXACT.worth * self.rtol else 1.0
        return SparseTrust(
            rtol=self.rtol,
            radius=2 * self.radius if length >= 0.9 * self.radius else self.radius,
            drag=max(less * self.drag, self.least_drag),
            least_drag=self.least_drag,
            # Close to the end only second derivatives tell how far to go.
            curved=self.curved or gain <= self.rtol,
        )

    def after_failure(self, length: float) -> "SparseTrust":
        """Return more drag; a change of the curvature, or a smaller region."""
        radius = 0.5 * min(self.radius, length) if self.curved else self.radius
        return SparseTrust(radius, self.rtol, 10 * self.drag, not self.curved, failed=True, least_drag=self.least_drag)


class SparsePieces:
    """The pieces of Phi of one problem, for `exact_descent`."""

    resolution = EXACT.sparse_resolution
    lands_anywhere = False
    large = False  # there is one descent
    lifted = False
    descends = True
    first_drag, least_drag = EXACT.first_drag, EXACT.least_drag

    def __init__(self, flat: FlatProblem, upper: UpperSet, central: CentralLower):
        self.flat, self.upper, self.central, self.rows = flat, upper, central, central.rows
        self.inset = RESTORATION.inset * central.slack_scale

    def evaluate(self, x: np.ndarray, y: np.ndarray) -> ExactPoint | None:
        """Return an exact point at x, or next to it where the lower level is only just feasible; None where it fails.

        The end of the central path tells which constraints are active.
        """
        central = self.central
        point = central.start(x, np.zeros(self.flat.n_y))
        units = self.units()
        for part in (1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1e-12, 1e-14):
            softness = max(1e-5 * part, 1e-13) * units.slack / units.multiplier
            nearer = central.solve(x, part * units.multiplier * units.slack, softness, point)
            if nearer is None:
                break
            point = nearer
        if point.barrier > RESTORATION.rough * units.multiplier * units.slack:
            return None
        found = ExactPoint(x, point.y, point.multiplier, point.slack, np.inf)
        return restore(self, found, classify(found, units, self.rows.inequality, 0.0))

    def resume(self, x: np.ndarray, y: np.ndarray, coupled: np.ndarray) -> ExactPoint | None:
        """Return an exact point next to an earlier answer, on its piece; None where that piece has none near."""
        return self.near(x, y, self.rows.multipliers(coupled)[: self.rows.general])

    def near(self, x: np.ndarray, y: np.ndarray, general: np.ndarray) -> ExactPoint | None:
        """Return an exact point next to x and y, on the piece that the general rows' multipliers tell."""
        self.central.start(x, y)
        guess, _ = point_at(self, x, y, general)
        return restore(self, guess, classify(guess, self.units(), self.rows.inequality, 0.0))

    def units(self, point: ExactPoint | None = None) -> Units:
        """Return what multipliers and slacks are measured in: their typical sizes."""
        return Units(self.central.multiplier_scale, self.central.slack_scale)

    def trust(self, point: ExactPoint, rtol: float) -> SparseTrust:
        """Return the trust to begin with."""
        radius = 0.1 * (1 + np.abs(point.x).max(initial=0.0))
        return SparseTrust(radius, rtol, self.first_drag, least_drag=self.least_drag)

    def readings(self, point: ExactPoint) -> Iterator[tuple[ExactPoint, np.ndarray]]:
        """Yield the point with the sides of its constraints, with and without a margin for biactive ones."""
        for margin in (EXACT.biactive, 0.0):
            yield point, classify(point, self.units(), self.rows.inequality, margin)

    def other_readings(self, point: ExactPoint, promises: Promises) -> Iterator[tuple[ExactPoint, np.ndarray]]:
        """Yield the same x and y with other multipliers, where they are not unique.

        What is biactive with some of them is first taken to be with all: if not even that promises descent, none does.
        """
        read = lambda point: classify(point, self.units(), self.rows.inequality, EXACT.biactive)
        others = [(other, read(other)) for other in other_multipliers(self, point)]
        if len(others) > 1:
            sides = read(point)
            for _, seen in others:
                sides = np.where(seen == BIACTIVE, seen, sides)
            if promises(point, sides) is False:
                return
        yield from others

    def model(self, point: ExactPoint, trust: SparseTrust) -> "_Model":
        """Return the model of f around a point."""
        return _Model(self, point, trust)

    def arrive(self, step: Step) -> ExactPoint | None:
        """Return an exact point of the step's piece next to its end; None where there is none."""
        now = classify(step.end, self.units(), self.rows.inequality, 0.0)
        found = restore(self, step.end, np.where(step.sides == BIACTIVE, now, step.sides))
        return None if found is None else dataclasses.replace(found, adjoint=step.end.adjoint)

    def polished(self, point: ExactPoint, trust: SparseTrust) -> ExactPoint | None:
        """Return where the model's last step leads, if f is the same there: its slope tells digits that f cannot."""
        last = dataclasses.replace(trust, drag=EXACT.least_drag, curved=True)
        rounding = self.resolution * (1 + abs(point.value))
        sides = classify(point, self.units(), self.rows.inequality, EXACT.biactive)
        step = self.model(point, last).solve(sides, sharp=True)
        if step is None or abs(step.predicted) > rounding:
            return None
        trial = self.arrive(step)
        return trial if trial is not None and trial.value <= point.value + rounding else None


class _Model:
    """The quadratic model of f around an exact point, and the conditions of the pieces there."""

    def __init__(self, pieces: SparsePieces, point: ExactPoint, trust: SparseTrust):
        flat = pieces.flat
        self.pieces, self.point, self.trust = pieces, point, trust
        adjoint = point.adjoint if trust.curved and point.adjoint is not None else np.zeros(flat.n_y)
        self.gradient = np.concatenate(flat.gradients("upper", point.x, point.y))
        # The trust region and the drag limit steps along negative curvature; reversed, it would make them too short.
        bent, _ = convexified(flat.lagrangian_hessian(point.x, point.y, adjoint), reverse=False)
        sizes = _sizes(self.gradient, bent.diagonal(), flat.n_x) / pieces.central.slack_scale
        self.hessian = bent + sp.diags(trust.drag * sizes)

    def solve(self, sides: np.ndarray, sharp: bool = False) -> Step | None:
        """Return the model's best step on the piece with these sides, or on those that meet where sides are open.

        It minimises ``gradient d + d hessian d / 2`` over d = (dx, dy) and the multipliers, the latter proximal. An
        interior point knows the decrease to 1e-11, and so the step to 1e-6 of what bends least; ``sharp`` is exact.
        """
        pieces, point, flat = self.pieces, self.point, self.pieces.flat
        piece, drag = conditions(pieces, point, sides, self.trust.radius), EXACT.drag_on_multipliers * self.trust.drag
        general = pieces.rows.general
        whole = sp.block_diag([self.hessian, drag * sp.eye(general)], format="csc")[piece.moving][:, piece.moving]
        proximal = -drag * point.multiplier[:general] / pieces.central.multiplier_scale
        linear = np.concatenate([self.gradient, proximal])[piece.moving]
        solved = solve_sparse_qp(whole, linear, piece.matrix, piece.low, piece.high, sharp)
        if solved is None:
            return None
        every = np.zeros(len(piece.used))
        every[piece.used] = solved[1]
        end = dataclasses.replace(piece.end(solved[0]), adjoint=every[: flat.n_y])
        dx = end.x - point.x
        along = np.concatenate([dx, end.y - point.y])
        predicted = -float(self.gradient @ along + 0.5 * along @ (self.hessian @ along))
        steepest = 1 + float(np.linalg.norm(self.gradient[: flat.n_x]))
        slope = predicted / positive(float(np.linalg.norm(dx))) / steepest
        return Step(end, sides, predicted, float(np.abs(dx).max(initial=0.0)), slope)


def _sizes(gradient: np.ndarray, curvature: np.ndarray, n_x: int) -> np.ndarray:
    """Return the size of the derivatives of f in x and in y, one for all entries of each: many of y may be small."""
    steep = np.maximum(np.abs(gradient), np.abs(curvature))
    parts = steep[:n_x].max(initial=0.0), steep[n_x:].max(initial=0.0)
    least = EXACT.smallest_share * (1 + max(parts))
    return np.repeat([max(part, least) for part in parts], [n_x, len(gradient) - n_x])
