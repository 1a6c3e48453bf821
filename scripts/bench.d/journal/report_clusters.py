"""The report on a standalone cluster of this machine: with one worker of one core, and with two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from measure import Figures
from spark_cluster import environment, standalone_cluster

_WORKER = Path(__file__).with_name("report_worker.py")


def speed_up(journal: Path, events: int, folder: Path) -> Figures:
    """`report.cluster-1` and `report.cluster-2`: events/s by the number of workers."""
    figures: Figures = {}
    print(f"\n{events:,} events on a standalone cluster, warm {'':10} {'seconds':>10} {'events/s':>12}")
    for workers in (1, 2):
        with standalone_cluster(folder / f"cluster-{workers}", workers) as url:
            command = [sys.executable, str(_WORKER), url, str(journal), str(folder / "clustered"), str(workers)]
            answer = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
        took_s = json.loads(answer.stdout.splitlines()[-1])
        figures[f"report.cluster-{workers}"] = events / took_s
        print(f"{f'  workers of one core: {workers}':56} {took_s:10.1f} {events / took_s:12,.0f}")
    return figures
