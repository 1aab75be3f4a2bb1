"""All numbers that steer a proof, a line each; see `docs/proof.md`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class ProofSettings:
    """Tolerances and sizes of branch and bound, in the problem's natural units."""

    negative: float = 1e-9  # relative curvature of f below minus this is no rounding: f is not convex
    flat: float = 1e-10  # relative curvature up to which f counts as linear in a direction: that only lowers bounds
    dependent: float = 1e-11  # relative pivot below which an equality depends on others
    feasible: float = 1e-9  # violation of a row, relative to its terms, that is rounding
    on_x_set: float = 1e-8  # violation of X, relative, up to which an incumbent counts
    smallest_value: float = (
        1e-3  # of f's natural unit: values below it are as good as zero, and a gap is relative to this
    )
    active: float = 1e-7  # slack, relative, up to which a row is active at the minimiser of a relaxation
    rounding: float = 1e-12  # sums this small against their terms are zero
    noise: float = 1e-14  # entries of a row of length one up to this are zero
    complementary: float = 1e-9  # distance to the nearer side at which a pair counts as complementary
    margin: float = 1e-12  # part of its terms by which each bound is lowered, for rounding
    contradiction: float = (
        1e-9  # relative to its terms, by how much rows have to contradict each other for a node to be empty
    )
    balanced_parts: tuple[float, ...] = (
        1e-12,
        1e-8,
        1e-5,
        1e-3,
    )  # multipliers up to these parts of the largest are dropped in turn
    proximal_steps: int = 60  # steps of the proximal method where f is linear in some direction
    proximal: float = 1e-4  # its weight
    settled: float = 1e-6  # relative move at which it has arrived: what is left is balanced
    same_value: float = 1e-9  # relative difference up to which two values are one
    help_after: int = 200  # nodes after which the default is asked for an incumbent,
    help_share: float = 0.2  # and for which part of the time that is left
    hands: int = 16  # into which the open nodes are dealt for those who share the work: so many can,
    roots_in_hand: int = 8  # with at most so many in each,
    nodes_of_hand: int = 200  # and so many nodes for each round
    patience: float = 1.0  # seconds for which those are waited for that do not look at the clock
    most_variables: int = 1500  # variables and rows up to which programs are put together, as arrays
    most_by_scip: int = 400  # variables and rows up to which SCIP is asked
    scip_share: float = 0.9  # which part of the time that is left it gets,
    scip_points: int = 5  # and how many of its points are evaluated exactly
    looks_share: float = 0.2  # of the time, for points of its relaxations,
    same_point: float = 1e-6  # relative distance from one to the next that is worth a look
    most_at_once: int = 200  # variables and rows up to which `solve` tries a proof first,
    nodes_at_once: int = 100  # with so many nodes
    gap_at_once: float = 1e-6  # and to this gap
    candidates: int = 8  # pairs whose two sides are tried before one is branched on
    reliable: int = 4  # trials after which a pair's own record predicts its effect
    least_gain: float = 1e-6  # relative gain of a bound below which pairs are alike
    dives: int = 25  # nodes between two dives for a better incumbent


PROOF = ProofSettings()
