"""The same benchmark on the sources and compiled, in turns: compiled.py PYTHON TREE WHAT... [--repeats N] [OPTIONS].

Each turn is a process of its own that runs one round. Ratios are taken turn by turn, so that a slow minute of the
machine, which hits both turns of a pair, does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import Figures, Settings, Spread

ROOT = Path(__file__).parents[2]


def turn(python: str, tree: Path, arguments: list[str]) -> Figures:
    """One round of the benchmark with the packages in `tree`."""
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder, "figures.json")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tree), str(tree / "scripts" / "bench.d")]),
            "BENCH_FIGURES": str(figures),
        }
        script = str(tree / "scripts" / "bench.d" / "bench.py")
        done = subprocess.run(
            [python, script, *arguments, "--repeats", "1"], cwd=tree, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{script}: {done.stderr[-3000:]}")
        found: Figures = {}
        for line in figures.read_text(encoding="utf-8").splitlines():
            found |= json.loads(line)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench --compiled")
    parser.add_argument("python", help="of the environment with the compiled wheel")
    parser.add_argument("tree", type=Path, help="a copy of the checkout with the compiled modules in it")
    parser.add_argument("--repeats", type=int, default=Settings.repeats, help="rounds (%(default)s)")
    options, arguments = parser.parse_known_args()
    builds = {"pure": (sys.executable, ROOT), "compiled": (options.python, options.tree)}
    rounds: list[dict[str, Figures]] = []
    for number in range(options.repeats):
        order = sorted(builds, reverse=number % 2 == 0)
        rounds.append({name: turn(*builds[name], arguments) for name in order})
    print(f"Medians of {options.repeats} turns each; the last three columns are compiled : pure, turn by turn")
    print(f"{'':40} {'pure':>14} {'compiled':>14} {'median':>9} {'lowest':>9} {'highest':>9}")
    for key in rounds[0]["pure"]:
        if key.endswith("-highest") or not all(each[build].get(key) for each in rounds for build in builds):
            continue
        pure, compiled = (Spread.of([each[build][key] for each in rounds]).median for build in builds)
        ratio = Spread.of([each["compiled"][key] / each["pure"][key] for each in rounds])
        ratios = " ".join(f"{value:7.2f} x" for value in ratio)
        print(f"{key:40} {pure:14,.1f} {compiled:14,.1f} {ratios}")


if __name__ == "__main__":
    main()
