"""The same benchmark on two revisions, in turns: scripts/bench WHAT... --against REVISION.

Each turn is a process of its own that runs one round. Ratios are taken turn by turn, so that a slow minute of the
machine, which hits both turns of a pair, does not count. Both trees run their own benchmarks; the figures that only one
of them has are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from measure import Figures, Settings, Spread
from ops.processes import source_of

ROOT = Path(__file__).parents[2]

# Every revision hands its figures to print_targets, one area after the other.
_TELL = """
import json, runpy, sys
import targets
path = sys.argv.pop(1)
def tell(figures, *_, **__):
    with open(path, "a", encoding="utf-8") as file:
        print(json.dumps(figures), file=file)
targets.print_targets = tell
sys.argv[0] = "scripts/bench.d/bench.py"
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Side:
    """`tree`: a checkout whose packages come first."""

    name: str
    tree: Path

    def turn(self, arguments: list[str]) -> Figures:
        """The figures of one round of the tree's own benchmark."""
        with tempfile.TemporaryDirectory() as folder:
            figures = Path(folder, "figures.json")
            paths = os.pathsep.join([str(self.tree), str(self.tree / "scripts" / "bench.d")])
            done = subprocess.run(
                [sys.executable, "-c", _TELL, figures, *arguments, "--repeats", "1"],
                cwd=self.tree,
                env={**os.environ, "PYTHONPATH": paths},
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise SystemExit(f"scripts/bench, {self.name}: {done.stderr[-3000:]}")
            found: Figures = {}
            for line in figures.read_text(encoding="utf-8").splitlines():
                found |= json.loads(line)
            return found


@contextmanager
def _sides(revision: str) -> Iterator[tuple[Side, Side]]:
    """What is measured, and what it is compared with."""
    with source_of(revision, ".") as tree:
        assert tree is not None
        yield Side("now", ROOT), Side(revision, tree)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench")
    parser.add_argument("--against", metavar="REVISION", required=True, help="a revision of the repository")
    parser.add_argument("--repeats", type=int, default=Settings.repeats, help="rounds (%(default)s)")
    options, arguments = parser.parse_known_args()
    with _sides(options.against) as (one, other):
        rounds: list[tuple[Figures, Figures]] = []
        for number in range(options.repeats):
            if number % 2:
                rounds.append((one.turn(arguments), other.turn(arguments)))
            else:
                rounds.append((other.turn(arguments), one.turn(arguments))[::-1])
    print(f"Medians of {options.repeats} turns each; last three columns: {one.name} : {other.name}, turn by turn")
    print(f"{'':40} {other.name[:14]:>14} {one.name:>14} {'median':>9} {'lowest':>9} {'highest':>9}")
    for key in rounds[0][0]:
        if key.endswith("-highest") or not all(figures.get(key) for pair in rounds for figures in pair):
            continue
        after, before = (Spread.of([pair[place][key] for pair in rounds]).median for place in (0, 1))
        ratios = " ".join(f"{value:7.2f} x" for value in Spread.of([a[key] / b[key] for a, b in rounds]))
        digits = 1 if max(after, before) >= 10 else 3
        print(f"{key:40} {before:14,.{digits}f} {after:14,.{digits}f} {ratios}")


if __name__ == "__main__":
    main()
