"""200 random quadratic problems of 21 families with fresh seeds: certified answers, and whether Clarabel agrees."""

import argparse

import numpy as np

import bilevax as bx
from comparisons.judge import Judge
from comparisons.quadratics import draw, families
from comparisons.report import Report, clocked
from comparisons.variants import variants


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=200, help="how many problems, spread over the families")
    parser.add_argument("--seed", type=int, default=10_000, help="the first seed; give another one for fresh problems")
    parser.add_argument("--variants", nargs="+", help="direct, first-order; both where the library has them")
    parser.add_argument("--family", default="", help="only families whose name contains this text")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds a solve")


def run(arguments: argparse.Namespace) -> Report:
    report = Report(("family", "variant", "problems", "certified", "wrong", "median_s", "worst_s"), arguments.json)
    kinds = families()
    failures, everything = [], {name: [] for name in variants(arguments.variants)}
    for index, family in enumerate(kinds):
        seeds = [arguments.seed + turn for turn in range(-(-(arguments.count - index) // len(kinds)))]
        if not seeds or arguments.family not in family.name:
            continue
        for variant, solver in variants(arguments.variants).items():
            outcomes = []
            for seed in [arguments.seed - 1, *seeds]:  # the first one compiles, and does not count
                instance = draw(family, seed)
                problem = instance.to_bilevax()
                limits = {"solver": solver, "time_limit": arguments.time_limit}
                found, seconds = clocked(lambda p=problem, x=instance.x0, k=limits: bx.solve(p, x, **k))
                if seed < arguments.seed:
                    continue
                true = not found.success or Judge(instance).agrees(found.x, found.value, family.upper_unit)
                outcomes.append((found.success, not true, seconds))
                if not found.success or not true:
                    word = str(found.status) if not found.success else "WRONG"
                    failures.append({"family": family.name, "seed": seed, "variant": variant, "status": word})
            everything[variant] += outcomes
            certified, wrong, seconds = (np.array(column) for column in zip(*outcomes, strict=True))
            report.add(
                family=family.name,
                variant=variant,
                problems=len(outcomes),
                certified=int(certified.sum()),
                wrong=int(wrong.sum()),
                median_s=float(np.median(seconds)),
                worst_s=float(seconds.max()),
            )
    for variant, outcomes in everything.items():
        certified, wrong, seconds = (np.array(column) for column in zip(*outcomes, strict=True))
        report.remarks.append(
            f"{variant}: {certified.sum()} of {len(outcomes)} certified, {wrong.sum()} wrong; "
            f"median {np.median(seconds):.3g} s, worst {seconds.max():.3g} s"
        )
        report.target(f"certified, percent ({variant})", 100 * certified.mean(), ">=", 97)
        report.target(f"wrong successes ({variant})", wrong.sum(), "<=", 0)
    report.remarks += ["failed: " + ", ".join(f"{key} {value}" for key, value in row.items()) for row in failures]
    return report
