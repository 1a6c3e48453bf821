"""How many small mistakes the tests catch: changes one random line of the source at a time, and runs the tests.

    python scripts/mutations.py dispatcher/journal tests/dispatcher/journal --count 60

Lines are drawn at random from the functions under SOURCE, each gets one mistake (another comparison, a condition turned
around, a statement left out, a number off by one), and TESTS run on a copy of the tree until the first one fails. What
survives is printed: a mistake that no test sees, or one that changes nothing.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("dispatcher", "statemachines", "pipeline", "tests", "scripts", "config", "docs", "examples")
OTHER: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add,
}  # fmt: skip
"""The operator in place of each."""


@dataclass(frozen=True)
class Mutation:
    path: Path
    line: int
    start: int
    """Offsets of the replaced text in the file, in characters."""
    end: int
    text: str

    def apply(self, root: Path) -> None:
        file = root / self.path
        source = file.read_text()
        file.write_text(source[: self.start] + self.text + source[self.end :])


def mutations_of(path: Path) -> Iterator[Mutation]:
    source = (ROOT / path).read_text()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    encoded = source.encode()

    def mutation(node: ast.expr | ast.stmt, text: str) -> Mutation:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        return Mutation(path, node.lineno, len(encoded[:start].decode()), len(encoded[:end].decode()), text)

    # A function within another one is a part of both: each node counts once.
    nodes: dict[ast.AST, None] = {}
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes.update(dict.fromkeys(node for statement in function.body for node in ast.walk(statement)))
    for node in nodes:
        text = _mistake(node)
        if text is not None:
            yield mutation(node, text)  # type: ignore[arg-type]


def _mistake(node: ast.AST) -> str | None:
    """The text in place of a node, which stays as it is."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=right) if type(operator) in OTHER:
            return f"({ast.unparse(ast.Compare(left, [OTHER[type(operator)]()], right))})"
        case ast.BoolOp(op=operator, values=values):
            return f"({ast.unparse(ast.BoolOp(OTHER[type(operator)](), values))})"
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in OTHER:
            return f"({ast.unparse(ast.BinOp(left, OTHER[type(operator)](), right))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"({ast.unparse(operand)})"
        case ast.Constant(value=bool() as value):
            return repr(not value)
        case ast.Constant(value=int() as value):
            return repr(value + 1)
        case ast.Expr(value=ast.Call()) | ast.Expr(value=ast.Await()) | ast.AugAssign():
            return "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return "pass"
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            return "return None"
    return None


def drawn(source: list[str], count: int, seed: int) -> list[Mutation]:
    """One mutation each of `count` random lines."""
    files = [path for each in source for path in ([Path(each)] if each.endswith(".py") else Path(each).rglob("*.py"))]
    by_line: dict[tuple[Path, int], list[Mutation]] = {}
    for path in sorted(files):
        for mutation in mutations_of(path):
            by_line.setdefault((mutation.path, mutation.line), []).append(mutation)
    dice = random.Random(seed)
    lines = dice.sample(sorted(by_line), min(count, len(by_line)))
    return [dice.choice(by_line[line]) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="folders and files of the source, with commas between them")
    parser.add_argument("tests", nargs="+", help="arguments of pytest: the tests of that source, the fastest first")
    parser.add_argument("--count", type=int, default=60, help="mistakes to make (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="of the random lines (default: 0)")
    parser.add_argument(
        "--timeout", type=float, default=300.0, help="seconds for a run; a mistake that hangs is caught"
    )
    options = parser.parse_args()
    os.chdir(ROOT)
    caught = 0
    mutations = drawn(options.source.split(","), options.count, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        for name in (*PACKAGES, "pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tree / name)
        environment = {**os.environ, "PYTHONPATH": str(tree), "TESTS_DERANDOMIZED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=60", *options.tests]

        def passes() -> bool:
            try:
                run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=options.timeout)
            except subprocess.TimeoutExpired:
                return False
            return run.returncode == 0

        if not passes():
            sys.exit("the tests fail without a mistake")
        for number, mutation in enumerate(mutations, 1):
            mutation.apply(tree)
            if passes():
                line = (ROOT / mutation.path).read_text().splitlines()[mutation.line - 1].strip()
                print(f"survived: {mutation.path}:{mutation.line}: {line}  ->  {mutation.text}", flush=True)
            else:
                caught += 1
            shutil.copy(ROOT / mutation.path, tree / mutation.path)
            print(f"{caught} of {number} caught", file=sys.stderr, flush=True)
    print(f"{options.source}: {caught} of {len(mutations)} caught")


if __name__ == "__main__":
    main()
