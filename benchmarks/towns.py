"""A made-up town with existing roads, of the size of Anaheim or a sketch of Chicago: time, memory and certificate.

``python benchmarks/towns.py [--side 16] [--pairs 1500] [--detour 1.05] [--limit 900]`` prints one line.
"""

import argparse
import resource
import time

import numpy as np

from bilevax.problems import NetworkDesign


def town(side: int = 16, pairs: int = 1500, detour: float | None = 1.05, seed: int = 0) -> NetworkDesign:
    """Return a town whose streets are a grid with some diagonals, all of them there already.

    Numbers are of the order of one, as `NetworkDesign.from_tntp` derives them: times in units of the mean trip,
    capacity at a cost of its time, a fare of 1.5, and a tenth of the mean start as existing capacity.
    """
    random = np.random.default_rng(seed)
    place = np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1).reshape(-1, 2) + random.uniform(
        -0.3, 0.3, (side**2, 2)
    )
    node = np.arange(side**2).reshape(side, side)
    ends = [(node[:, :-1], node[:, 1:]), (node[:-1], node[1:])]
    streets = np.concatenate([np.stack([a.ravel(), b.ravel()], axis=1) for a, b in ends])
    diagonal = np.stack([node[:-1, :-1].ravel(), node[1:, 1:].ravel()], axis=1)
    chosen = random.choice(len(diagonal), max(1, side**2 // 12), replace=False)
    streets = np.concatenate([streets, diagonal[chosen]])
    tail, head = np.concatenate([streets, streets[:, ::-1]]).T
    duration = np.linalg.norm(place[tail] - place[head], axis=1)
    possible = random.choice(side**4, 2 * pairs, replace=False)
    origin, destination = (
        part[possible // side**2 != possible % side**2][:pairs] for part in divmod(possible, side**2)
    )
    demand = random.exponential(1.0, pairs)
    arrays = tail, head, duration, duration, origin, destination, demand
    free = NetworkDesign.from_arrays(*arrays, outside=0.0, revenue=0.0)
    shortest = free.shortest_times
    unit = np.average(shortest, weights=demand)
    arrays = tail, head, duration / unit, duration / unit, origin, destination, demand
    outside, revenue = 1.5 * shortest / unit + 0.5, 1.5 * demand
    design = NetworkDesign.from_arrays(*arrays, outside=outside, revenue=revenue, detour=detour)
    existing = 0.1 * design.start().mean()
    return NetworkDesign.from_arrays(*arrays, outside=outside, revenue=revenue, existing=existing, detour=detour)


def main() -> None:
    """Solve the town and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=1500)
    parser.add_argument("--detour", type=float, default=1.05)
    parser.add_argument("--limit", type=float, default=None)
    asked = parser.parse_args()
    design = town(asked.side, asked.pairs, asked.detour)
    began = time.process_time()
    solution = design.solve(progress=False, time_limit=asked.limit)
    seconds, peak = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{len(design.tail)} links, {len(design.origin)} pairs, {len(design.flows[0])} flows: utility "
        f"{-solution.value:.5f}, {solution.status}, stationarity {solution.certificate.stationarity:.1e} "
        f"({solution.certificate.stationarity_test}), {seconds:.0f} CPU s, {peak:.0f} MB"
    )


if __name__ == "__main__":
    main()
