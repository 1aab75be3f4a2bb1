"""`Certificate`: what is proven about a point, and what keeps it from being an answer."""

import dataclasses

import numpy as np
from jaxtyping import PyTree

from bilevax._support import html
from bilevax._support.trees import summarise
from bilevax.certificate.challenge import Descent
from bilevax.certificate.convexity import Evidence
from bilevax.certificate.status import Status
from bilevax.certificate.tolerances import TOLERANCES


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What is proven about a point x.

    Attributes
    ----------
    value
        Phi(x) = f(x, y*(x)); inf where the lower level is infeasible, NaN where it has no proven minimiser.
    y, multipliers
        The exact lower-level answer at x, and the multipliers of the rows (``grad_y g + A' multipliers + ... = 0``).
    lower_feasible
        Whether some y in Y satisfies the rows at x.
    lower_stationarity, lower_infeasibility, lower_complementarity
        KKT residuals of (y, multipliers), relative. Where the lower level is infeasible, ``lower_infeasibility`` is the
        smallest uniform relaxation of the rows that would make it feasible, in the rows' own units.
    lower_unique
        Whether y is known to be the only minimiser. If not, ``problem.choice`` says which one counts, and y is that.
        Where f knows the multipliers (``multipliers_in_upper``), whether y and they are the only ones.
    value_range
        The least and the largest f over the minimisers of the lower level at x (and over their multipliers, where f
        knows them), of which ``value`` is one.
    value_error
        A bound on how far ``value`` may be from Phi(x), as y is known to a limited accuracy only.
    value_unit
        f's natural unit: the size of an ordinary change of f (see `bilevax.model.scales`).
    x_infeasibility
        Distance of x from X.
    upper_infeasibility
        The largest violation of an upper row at (x, y), relative to the size of what is added up there.
    upper_multipliers
        Those of the upper rows, in the form in which they were given: ``grad f + upper_multipliers' grad c + ... = 0``,
        positive only on an active upper side, negative only on an active lower side. None without upper rows.
    hypergradient
        The gradient of Phi at x, or None where Phi has none (a kink, a border).
    stationarity, stationarity_test
        The slope of Phi that is left, relative to the slopes of its pieces, at kinks and borders too, and the test
        that gave it: smooth, strong or hull (see `bilevax.certificate.stationarity`).
    radius
        How far x would have to move, in natural units, for ``stationarity`` to hold: the rows that are active, and
        the multipliers that are zero, only within a margin are exactly so at a point that far away. 0 where no margin
        was used.
    descent
        A point next to x with a smaller Phi, which refutes x, or None.
    challenges
        At how many points around x Phi was evaluated in search of such a point.
    licq, smallest_singular_value
        Whether the active rows' gradients in y are independent, by their smallest singular value.
    strict_complementarity, complementarity_margin
        Whether every active row has a positive multiplier (in some multiplier vector, where they are not unique), and
        the smallest of max(slack, multiplier) over the rows.
    penalty_gap, delta
        Phi(x) - Phi_delta(x) for that delta; None where it was not asked for or g + delta f is not convex.
    y_error
        Largest distance, entry by entry, of the y that was given from the exact one; None when none was given.
    lower_convexity
        Whether g is convex in y: "proven" by its composition or its constant Hessian, "tested" at points across the
        feasible set at x, "refuted" there, or "unknown".
    failure
        Why nothing can be proven at x, or None.
    remark
        Details of the failure: the kink that makes an objective nonsmooth, the point where g is not convex.
    complete
        Whether there was time to measure everything.
    """

    value: float
    y: PyTree
    multipliers: PyTree
    lower_feasible: bool
    lower_stationarity: float
    lower_infeasibility: float
    lower_complementarity: float
    lower_unique: bool
    value_range: tuple[float, float]
    value_error: float
    value_unit: float
    x_infeasibility: float
    upper_infeasibility: float
    upper_multipliers: PyTree | None
    hypergradient: PyTree | None
    stationarity: float
    stationarity_test: str
    radius: float
    descent: Descent | None
    challenges: int
    licq: bool
    smallest_singular_value: float
    strict_complementarity: bool
    complementarity_margin: float
    penalty_gap: float | None
    delta: float | None
    y_error: float | None
    lower_convexity: Evidence
    failure: Status | None
    remark: str = ""
    complete: bool = True

    def confirms(self, rtol: float) -> bool:
        """Return whether x is proven feasible (1e-7), lower-level optimal (1e-7) and stationary (rtol).

        Stationary means that both ``stationarity`` and ``radius`` are at most ``rtol``, that Phi(x) is known to 1e-6 of
        its size and its unit, and that no point around x was found with a smaller Phi.
        """
        return self.objection(rtol) is None

    def objection(self, rtol: float) -> str | None:
        """Return what keeps `confirms` from holding, in words, or None."""
        accuracy = max(self.lower_stationarity, self.lower_infeasibility, self.lower_complementarity)
        needed = TOLERANCES.value * (self.value_unit + abs(self.value))
        low, high = self.value_range
        reasons = {
            self.remark or "nothing can be proven at x": self.failure is not None,
            "the lower level is infeasible at x": not self.lower_feasible,
            "Phi(x) is not a number": not np.isfinite(self.value),
            f"the lower level is solved to {accuracy:.2g} only": not accuracy <= TOLERANCES.lower,
            f"x is outside X by {self.x_infeasibility:.2g}": not self.x_infeasibility <= TOLERANCES.lower,
            f"an upper row is violated by {self.upper_infeasibility:.2g}": not self._satisfies_upper_rows,
            f"the lower level has several minimisers, over which f differs ({low:.6g} to {high:.6g}), and the one that "
            "counts was not found": not self.value_error <= needed and not self.lower_unique and high - low > needed,
            f"y*(x) is known so badly that Phi(x) may be off by {self.value_error:.2g}": not self.value_error <= needed,
            f"Phi has a slope of {self.stationarity:.2g} left": not self.stationarity <= rtol,
            f"x would have to move by {self.radius:.2g} of its natural unit": not self.radius <= rtol,
            "a point next to x has a smaller Phi": self.descent is not None,
            "there was no time to measure everything": not self.complete,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    @property
    def _satisfies_upper_rows(self) -> bool:
        return self.upper_infeasibility <= TOLERANCES.lower

    @property
    def proves_value(self) -> bool:
        """Whether x is proven feasible and y lower-level optimal (1e-7), whatever is known of stationarity."""
        accuracy = max(self.lower_stationarity, self.lower_infeasibility, self.lower_complementarity)
        return bool(
            self.failure is None
            and self.lower_feasible
            and np.isfinite(self.value)
            and accuracy <= TOLERANCES.lower
            and self.x_infeasibility <= TOLERANCES.lower
            and self._satisfies_upper_rows
            and self.value_error <= TOLERANCES.value * (self.value_unit + abs(self.value))
        )

    def _lines(self) -> list[tuple[str, str]]:
        gap = "not measured" if self.penalty_gap is None else f"{self.penalty_gap:.3g} at delta {self.delta:g}"
        residuals = (
            f"stationarity {self.lower_stationarity:.2g}, infeasibility {self.lower_infeasibility:.2g}, "
            f"complementarity {self.lower_complementarity:.2g}"
        )
        lines = [
            ("Phi(x)", f"{self.value:.10g}"),
            ("y*(x)", summarise(self.y)),
            ("lower level", ("feasible; " if self.lower_feasible else "INFEASIBLE; ") + residuals),
            *([] if self.upper_multipliers is None else [("upper rows", self._upper_rows())]),
            ("g convex in y", self.lower_convexity),
            (
                "y* unique",
                "yes" if self.lower_unique else "not proven; f in [{:.6g}, {:.6g}]".format(*self.value_range),
            ),
            ("known to", f"{self.value_error:.2g}"),
            (
                "stationarity",
                f"slope {self.stationarity:.3g} within a radius of {self.radius:.3g} (test: {self.stationarity_test})",
            ),
            (
                "challenged",
                f"at {self.challenges} points around, "
                + ("none lower" if self.descent is None else f"refuted: {self.descent.value:.10g}"),
            ),
            ("hypergradient", "none here" if self.hypergradient is None else summarise(self.hypergradient)),
            (
                "LICQ",
                f"{'yes' if self.licq else 'no'} (smallest singular value {self.smallest_singular_value:.2g})",
            ),
            (
                "strict compl.",
                f"{'yes' if self.strict_complementarity else 'no'} (margin {self.complementarity_margin:.2g})",
            ),
            ("penalty gap", gap),
        ]
        if self.failure is not None:
            lines.insert(0, ("failure", " ".join(filter(None, [self.failure.value, self.remark]))))
        return lines

    def _upper_rows(self) -> str:
        held = "satisfied" if self._satisfies_upper_rows else "VIOLATED"
        return f"{held} ({self.upper_infeasibility:.2g}); multipliers {summarise(self.upper_multipliers)}"

    def __str__(self) -> str:
        return "Certificate\n" + "\n".join(f"  {key:<13}  {value}" for key, value in self._lines())

    def _repr_html_(self) -> str:
        return html.facts("Certificate", self._lines())
