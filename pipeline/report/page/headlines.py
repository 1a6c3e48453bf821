"""The report's first screen: what happened and what was wrong, in at most ten sentences, the worst first.

Each sentence names the worst case, so that a reader need not search for it, and links to the table it comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from dispatcher.util.figures import count, counted, duration, percent
from pipeline.journal.damage import Problem, total_lost
from pipeline.report.page.columns import TableRow
from pipeline.report.page.page_data import PageData
from pipeline.report.page.page_views import ROWS_SHOWN, Figure, table_anchor
from pipeline.report.plots.plot_style import event_name, label
from pipeline.report.plots.plots import NODE_RESOURCES

MOST = 10
"""Maximum headlines."""

_MOODS = ("bad", "warn", "", "good")


def headlines(data: PageData) -> list[Figure]:
    """The sentences, worst first. For a journal without rows: that it is empty, after any damage."""
    checks = [(problem, check(data)) for problem, check in _CHECKS if data.compared_with or check is not _damage_before]
    found = [figure for _, figure in checks if figure is not None]
    if data.first_at is None:
        why = "nothing has run, or nothing is written yet."
        return [*found, Figure("Overview", "The journal is empty:", why, link="problems")]
    figures = [*found, *(figure for fact in _FACTS if (figure := fact(data)) is not None)]
    absent = [f"no {problem}" for problem, figure in checks if figure is None]
    if absent:
        of_rest = " with what can be read" if data.is_incomplete else ""
        value = f"Nothing {'else ' if any(figure.mood for figure in figures) else ''}is wrong{of_rest}:"
        figures.append(Figure("Problems", value, f"{', '.join(absent)}.", "good", "problems"))
    return sorted(figures, key=lambda figure: _MOODS.index(figure.mood))[:MOST]


def _damage(data: PageData) -> Figure | None:
    return _lost(data.damage, "Damage", "the journal", "the figures on this page")


def _damage_before(data: PageData) -> Figure | None:
    return _lost(data.damage_before, "Damage before", "the earlier run's journal", "its figures")


def _lost(damage: Sequence[Problem], title: str, journal: str, figures: str) -> Figure | None:
    if not damage:
        return None
    value = f"{counted(len(damage), 'part')} of {journal} cannot be read;"
    return Figure(title, value, f"missing from {figures}: {total_lost(damage)}.", "bad", "damage")


def _failures(data: PageData) -> Figure | None:
    ends = {row["final_state"]: row["applications"] for row in data.of("applications_by_final_state")}
    types = data.of("events_by_type")
    failed, unhandled = (sum(row[key] for row in types) for key in ("failed", "unregistered"))
    lost, killed = ends.get("FAILED", 0), ends.get("KILLED", 0)
    numbers = [
        (failed, f"{counted(failed, 'event')} failed"),
        (unhandled, f"{counted(unhandled, 'event')} had no handler"),
        (lost, f"{counted(lost, 'application')} failed"),
        (killed, f"{counted(killed, 'application')} {'was' if killed == 1 else 'were'} killed"),
    ]
    value = ", ".join(text for number, text in numbers if number)
    causes = data.of("failures")
    if not value and not causes:
        return None
    value = value or counted(sum(row["count"] for row in causes), "failure")
    detail = f"The most frequent cause, {_times(causes[0]['count'])}: {_cause(causes[0])}." if causes else ""
    mood = "bad" if failed or unhandled or lost else "warn"
    return Figure("Failures by cause", f"{value}.", detail, mood, table_anchor("failures"))


def _cause(row: TableRow) -> str:
    if row["subject"] == "event":
        error = f" with {row['error_class']}" if row["error_class"] else ""
        return f"{event_name(row)} {row['result']}{error}"
    reason = f" ({row['reason']})" if row["reason"] else ""
    return f"{row['subject']} {row['result']} by {row['event_type']} in {row['from_state']}{reason}"


def _stuck(data: PageData) -> Figure | None:
    stays = data.of("stuck_entities")
    still = [row for row in stays if row["is_open"]]
    if not still:
        return None
    worst = still[0]
    number = f"At least {count(len(still))} entities" if len(stays) >= ROWS_SHOWN else counted(len(still), "entity")
    return Figure(
        "Stuck and slow",
        f"{number} stayed in a state to the end, longer than usual;",
        f"the worst, {worst['entity']}, {duration(worst['stay_s'])} in {worst['state']}, which 99 % leave within "
        f"{duration(worst['p99_s'])}.",
        "warn",
        table_anchor("stuck_entities"),
    )


def _unknown_transitions(data: PageData) -> Figure | None:
    kinds = data.of("unknown_transitions")
    number = data.totals.get("unknown_transitions", sum(row["count"] for row in kinds))
    if not number or not kinds:
        return None
    worst = kinds[0]
    return Figure(
        "Unknown transitions",
        f"{counted(number, 'transition')} undeclared or rejected,",
        f"of {count(_totals(data).get('transitions', number))}. The most frequent: {worst['machine']} "
        f"from {worst['from_state']} to {worst['to_state']} on {worst['event_type']}, {_times(worst['count'])}.",
        "bad",
        table_anchor("unknown_transitions"),
    )


def _applications(data: PageData) -> Figure | None:
    states = data.of("applications_by_final_state")
    if not states:
        return None
    ended = ", ".join(f"{count(row['applications'])} {row['final_state']}" for row in states if row["is_final"])
    others = ", ".join(f"{count(row['applications'])} {row['final_state']}" for row in states if not row["is_final"])
    parts = [f"ended: {ended}" if ended else "", f"not ended: {others}" if others else ""]
    paths = data.of("critical_paths")
    longest = (
        f" The longest, {paths[0]['application']}, took {duration(paths[0]['total_s'])}, most of it {phase}."
        if paths and (phase := paths[0]["longest_phase"])
        else ""
    )
    number = counted(sum(row["applications"] for row in states), "application")
    return Figure(
        "Applications", f"{number};", f"{'; '.join(filter(None, parts))}.{longest}", "", table_anchor("critical_paths")
    )


def _waits(data: PageData) -> Figure | None:
    queues = data.of("waiting_by_queue")
    if not queues:
        return None
    never, earlier = (sum(row[key] for row in queues) for key in ("never_placed", "begun_earlier"))
    placed = [row for row in queues if row["max_s"] is not None]
    unknown = f" Waits of {counted(earlier, 'application')} are unknown: the journal begins later." if earlier else ""
    if not placed:
        longest = ""
    elif (slowest := max(placed, key=lambda row: (row["p95_s"], row["max_s"])))["max_s"]:
        longest = (
            f"in queue {label(slowest['queue'])}, the slowest, 95 % of the applications waited up to "
            f"{duration(slowest['p95_s'])} for their first container, and one waited {duration(slowest['max_s'])}."
        )
    else:
        longest = "every other application got its first container at once."
    if never:
        value, detail = f"{counted(never, 'application')} never got a container;", longest or "none got one."
        link = "applications"
    else:
        longest_s = max((row["max_s"] for row in placed), default=None)
        value = f"{duration(longest_s)} was the longest wait;" if longest_s else "No application waited:"
        detail, link = longest.replace("every other application", "each"), "waiting_by_queue"
    return Figure("Waits", value, detail + unknown, "bad" if never else "", table_anchor(link))


def _nodes(data: PageData) -> Figure | None:
    peaks = data.of("node_peaks")
    if not peaks:
        return None
    nodes = data.totals.get("nodes", len(peaks))
    over = data.totals.get("oversubscribed_nodes", sum(row["oversubscribed"] for row in peaks))
    most = count(max((row["containers"] for row in data.of("containers_over_time")), default=0))
    containers = data.totals.get("containers")
    ran = f"up to {most} containers at once" + (f", {count(containers)} in all" if containers is not None else "")
    fullest = f"{peaks[0]['node']}{_fullness(peaks[0])}"
    if over:
        value = f"{count(over)} of {counted(nodes, 'node')} oversubscribed,"
        return Figure("Nodes", value, f"the worst {fullest}; {ran}.", "bad", table_anchor("node_peaks"))
    value = f"{counted(nodes, 'node')}, none oversubscribed;"
    return Figure("Nodes", value, f"{ran}. The fullest: {fullest}.", "", table_anchor("node_peaks"))


def _fullness(row: TableRow) -> str:
    """The resource of the node that was used most."""
    uses = [(each.share(row), each.name, each.use(row)) for each in NODE_RESOURCES if row[each.capacity]]
    if not uses:
        return ""
    _, name, use = max(uses)
    return f" with {name} {use}"


def _run(data: PageData) -> Figure:
    totals = _totals(data)
    events, span_s = totals.get("events", 0), data.span_s
    least = "at least " if data.is_incomplete else ""
    rate = f", {events / span_s:,.3g} per second" if span_s else ""
    return Figure(
        "Events over time",
        f"{duration(span_s)} from the first event to the last:",
        f"{least}{counted(events, 'event')}{rate}, and {counted(totals.get('transitions', 0), 'state transition')}.",
        "",
        "plot-events-in-the-queue-over-time",
    )


def _event_types(data: PageData) -> Figure | None:
    types = data.of("events_by_type")
    if not types:
        return None
    busiest = max(types, key=lambda row: row["handling_total_ms"])
    slowest = max(types, key=lambda row: row["handling_mean_us"])
    total_ms = sum(row["handling_total_ms"] for row in types) or 1.0
    return Figure(
        "Events by type",
        f"{event_name(busiest)} took {percent(busiest['handling_total_ms'] / total_ms)} of the handlers' time",
        f"({duration(busiest['handling_total_ms'] / 1e3)} for {counted(busiest['count'], 'event')}); the slowest on "
        f"average was {event_name(slowest)}, at {duration(slowest['handling_mean_us'] / 1e6)}.",
        "",
        table_anchor("events_by_type"),
    )


def _slowest(data: PageData) -> Figure | None:
    handlings = data.of("slowest_handlers")
    if not handlings:
        return None
    longest = handlings[0]
    return Figure(
        "Slowest handlers",
        f"{duration(longest['handling_ms'] / 1e3)} was the longest call of a handler:",
        f"{event_name(longest)} of {label(longest['entity'])} (seq {count(longest['seq'])}).",
        "",
        table_anchor("slowest_handlers"),
    )


def _totals(data: PageData) -> TableRow:
    return data.of("run_totals")[0] if data.of("run_totals") else {}


def _times(number: int) -> str:
    return "once" if number == 1 else f"{count(number)} times"


_Headline: TypeAlias = Callable[[PageData], Figure | None]
_CHECKS: Final[Sequence[tuple[str, _Headline]]] = (
    ("damage in the journal", _damage),
    ("damage in the earlier journal", _damage_before),
    ("failure", _failures),
    ("stuck entity", _stuck),
    ("undeclared or rejected transition", _unknown_transitions),
)
"""Each kind of problem, and the sentence about it; None if there is none of the kind."""
_FACTS: Final[Sequence[_Headline]] = (_applications, _waits, _nodes, _run, _event_types, _slowest)
