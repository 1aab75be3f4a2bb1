"""`Pairs`: of each, the row is active or its multiplier is zero."""

import numpy as np

from bilevax.proof.least_distance import LeastDistance
from bilevax.proof.program import ComplementarityProgram
from bilevax.proof.settings import PROOF

FREE, ACTIVE, OPEN = 0, 1, 2


class Pairs:
    """The pairs of a program by the rows of its reduced form."""

    def __init__(self, program: ComplementarityProgram, reduced: LeastDistance):
        self.row, self.force = reduced.of_row[program.pair_row], reduced.of_row[program.pair_force]
        self.at_upper = program.pair_side > 0
        self._reduced, self._program = reduced, program
        self.count = len(self.row)
        partner = {}
        for index, row in enumerate(program.pair_row):
            partner.setdefault(int(row), []).append(index)
        self.partner = np.full(self.count, -1)
        for both in partner.values():
            if len(both) == 2:
                self.partner[both[0]], self.partner[both[1]] = both[1], both[0]

    def first_sides(self) -> np.ndarray:
        """Return the sides that are decided from the start: rows, or multipliers, that are constants."""
        program, reduced, sides = self._program, self._reduced, np.full(self.count, FREE, np.int8)
        value = program.matrix @ reduced.origin
        bound = np.where(self.at_upper, program.upper[program.pair_row], program.lower[program.pair_row])
        slack = np.abs(value[program.pair_row] - bound)
        sides[self.force < 0] = ACTIVE
        sides[(self.force < 0) & (value[program.pair_force] <= PROOF.feasible)] = OPEN
        constant = self.row < 0
        sides[constant] = OPEN
        sides[constant & (slack <= PROOF.feasible * (1 + np.abs(bound)))] = ACTIVE
        return sides

    def bounds(self, sides: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the bounds of all rows where these sides are decided."""
        lower, upper = self._reduced.lower.copy(), self._reduced.upper.copy()
        active, is_open = (sides == ACTIVE) & (self.row >= 0), (sides == OPEN) & (self.force >= 0)
        at_upper, at_lower = self.row[active & self.at_upper], self.row[active & ~self.at_upper]
        lower[at_upper], upper[at_lower] = upper[at_upper], lower[at_lower]
        upper[self.force[is_open]] = lower[self.force[is_open]]
        return lower, upper

    def distances(self, s: np.ndarray, sides: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how far each free pair is from its row being active, and from its multiplier being zero."""
        reduced, free = self._reduced, sides == FREE
        if not free.any():
            return np.zeros(self.count), np.zeros(self.count)
        value = reduced.rows @ s
        slack = np.where(
            self.at_upper, reduced.upper[self.row] - value[self.row], value[self.row] - reduced.lower[self.row]
        )
        force = value[self.force] - reduced.lower[self.force]
        return np.where(free, np.maximum(slack, 0.0), 0.0), np.where(free, np.maximum(force, 0.0), 0.0)

    def decide(self, sides: np.ndarray, pair: int, side: int) -> np.ndarray:
        """Return sides with one more decided; a row that is active at one side is open at the other."""
        decided = sides.copy()
        decided[pair] = side
        if side == ACTIVE and self.partner[pair] >= 0:
            decided[self.partner[pair]] = OPEN
        return decided
