"""The web address's read model: what it costs the resource manager, and how old its state is.

Each measurement is a process of its own. The life cycles alternate with the model and without, and count by processor
time, so that what other processes take of the one core counts less. It still counts: publications are paced by wall
time, and take a larger share of a thread that gets less than a core.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import Final

from measure import Figures, Settings
from ops.processes import measured_by

WORKER = Path(__file__).with_name("model_worker.py")
REPEATS: Final = 5
CASES = ((200, "fifo"), (2_000, "fifo"), (2_000, "capacity"))
CONTAINERS = 100_000
LOAD: Final = {"nodes": 10_000, "applications": 8_000, "per_s": 100}
"""Nodes that report each second; ended applications at the start, beside the 2,000 or so that then are on their way;
applications that come per second."""
WARM_S: Final = 20.0
MEASURED_S: Final = 30.0


def model(settings: Settings) -> Figures:
    return _life_cycles(settings) | _load(settings)


def _life_cycles(settings: Settings) -> Figures:
    repeats = min(settings.repeats, REPEATS)
    print(
        f"\nContainer life cycles per second of processor time, medians of {repeats} (lowest-highest), and the model's"
    )
    print(
        f"{'':20} {'without':>22} {'with the model':>22} {'kept':>7} {'share':>7} {'mail at most':>13} "
        f"{'age p50, p99':>16}"
    )
    figures: Figures = {}
    for nodes, scheduler in CASES:
        options = {"nodes": nodes, "containers": settings.count(CONTAINERS), "scheduler": scheduler}
        without, followed = [], []
        for _ in range(repeats):
            without.append(measured_by(WORKER, "life_cycles", {**options, "followed": False}, cores=1))
            followed.append(measured_by(WORKER, "life_cycles", {**options, "followed": True}, cores=1))
        rates = [[each["containers"] / each["took_cpu_s"] for each in runs] for runs in (without, followed)]
        kept = statistics.median(rates[1]) / statistics.median(rates[0])
        share = statistics.median(each["cpu_s"] / each["took_cpu_s"] for each in followed)
        longest = max(each["longest_mail_ms"] for each in followed)
        ages = [statistics.median(each[key] for each in followed) for key in ("age_p50_ms", "age_p99_ms")]
        cells = [f"{statistics.median(each):,.0f} ({min(each):,.0f}-{max(each):,.0f})" for each in rates]
        print(
            f"{f'{scheduler}, {nodes:,} nodes':20} {cells[0]:>22} {cells[1]:>22} {kept:>7.3f} {share:>7.1%} "
            f"{longest:>10.1f} ms {f'{ages[0]:,.0f}, {ages[1]:,.0f} ms':>16}"
        )
        figures[f"rm.model.kept.{scheduler}.{nodes}"] = kept
    return figures


def _load(settings: Settings) -> Figures:
    seconds = max(5.0, MEASURED_S * settings.scale)
    options = {**LOAD, "warm_s": WARM_S, "seconds": seconds}
    without, followed = (measured_by(WORKER, "load", {**options, "followed": each}) for each in (False, True))
    print(
        f"\n{LOAD['nodes']:,} nodes report each second, {LOAD['per_s']} applications come and go per second, for "
        f"{seconds:.0f} s; load average {os.getloadavg()[0]:.1f} at the end"
    )
    print(f"{'':16} {'events/s':>10} {'cores':>7} {'a mail waits, p99':>18} {'longest collection':>19}")
    for name, run in (("without", without), ("with the model", followed)):
        print(
            f"{name:16} {run['events_per_s']:>10,.0f} {run['cores']:>7.2f} {run['mailbox_p99_ms']:>15.1f} ms "
            f"{run['longest_collection_ms']:>16.1f} ms"
        )
    print(
        f"{followed['publications']:.0f} publications, {followed['share']:.1%} of the handler thread's time; "
        f"longest mail {followed['longest_mail_ms']:.1f} ms of processor time; "
        f"age of the state p50 {followed['age_p50_ms']:,.0f} ms, p99 {followed['age_p99_ms']:,.0f} ms"
    )
    kept = followed["events_per_s"] / without["events_per_s"]
    return {
        "rm.model.load-kept": kept,
        "rm.model.longest-mail": followed["longest_mail_ms"],
        "rm.model.age-p50": followed["age_p50_ms"],
        "rm.model.age-p99": followed["age_p99_ms"],
    }
