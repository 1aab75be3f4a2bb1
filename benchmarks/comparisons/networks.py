"""Network design: the best certified utility of the paper's networks and of towns with roads, and what it takes."""

import argparse

import bilevax as bx
from bilevax.app.experiments.roads import TOWNS
from comparisons.report import Report, clocked

# Of each: random starts, the utility and the seconds that are wanted.
_PAPER = {"paper3": (16, 1.76159, None), "paper9": (16, 5.42744, 60.0), "seville": (1, 20.34, 120.0)}
_ROADS = {"SiouxFalls": (180.9, 2.6), "Eastern-Massachusetts": (373.0, 74.0), "Berlin-Friedrichshain": (164.0, 83.0)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = [*_PAPER, *_ROADS]
    parser.add_argument("--networks", nargs="+", choices=names, default=names)


def run(arguments: argparse.Namespace) -> Report:
    columns = ("network", "starts", "links", "pairs", "certified", "utility", "stationarity", "s")
    report = Report(columns, arguments.json)
    for name in arguments.networks:
        if name in _PAPER:
            design, (starts, least, most) = bx.datasets.network(name), _PAPER[name]
        else:
            design, starts, (least, most) = bx.datasets.roads(name, detour=TOWNS[name]), 1, _ROADS[name]
        solution, seconds = clocked(lambda design=design, starts=starts: design.solve(starts=starts, progress=False))
        report.add(
            network=name,
            starts=starts,
            links=len(design.tail),
            pairs=len(design.origin),
            certified=solution.success,
            utility=-solution.value,
            stationarity=solution.certificate.stationarity,
            s=seconds,
        )
        report.target(f"{name}, certified utility", -solution.value if solution.success else 0.0, ">=", least)
        report.target(f"{name}, seconds", seconds, "<=", most)
    return report
