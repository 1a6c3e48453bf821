"""The page as text: its content for literal rows, and its handling of names that are markup."""

from __future__ import annotations

import base64
import hashlib
import html
import re

import pytest

pytest.importorskip("duckdb")

from pipeline.journal import Problem

from .page_rows import SECOND, rendered, small_tables

NASTY = '</script><img src=x onerror="alert(1)">\'&amp;'


@pytest.fixture(scope="module")
def page() -> str:
    return rendered(small_tables())


def cells(page: str, table: str) -> list[list[str]]:
    """The rows of a table as they read, the head first."""
    found = re.search(rf'<table id="table-{table}">(.*?)</table>', page, re.DOTALL)
    assert found is not None, f"no table {table}"
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", found[1])]
    return [[html.unescape(re.sub(r"<[^>]*>", "", cell)) for cell in row] for row in rows]


def drawings(page: str) -> dict[str, str]:
    """The charts, by the plot's title."""
    panels = re.findall(r'<section class="panel[^"]*" id="plot-[^"]*">(.*?)</section>', page, re.DOTALL)
    return {re.findall("<h3>(.*?)</h3>", panel)[0]: panel for panel in panels if '<div class="chart">' in panel}


def scripts(page: str) -> list[str]:
    return re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL)


def test_every_table_and_every_plot_of_the_report_is_on_the_page(page: str) -> None:
    assert " ".join(sorted(set(re.findall(r'<table id="table-([a-z_-]+)"', page)))) == (
        "applications critical-paths events-by-type failures mined-graph node-peaks slowest-handlers stuck-entities "
        "time-in-state unknown-transitions waiting-by-queue waiting-by-user"
    )
    assert ", ".join(drawings(page)) == (
        "Applications by final state, Waiting time per queue, States of the applications over time, Critical paths, "
        "Use of the cluster over time, Containers over time, Use of the nodes over time, Use by the queues over time, "
        "Highest use of the nodes, Events in the queue over time, Latency over time, Slowest handlers, "
        "Time in handlers by type of event, Time in state: RMAppx"
    )
    assert page.count('<svg class="graph"') == 2


def test_cells_read_as_a_person_would_write_them(page: str) -> None:
    assert cells(page, "waiting-by-queue") == [
        ["Queue", "Applications", "Median wait", "95\u00a0%", "Longest", "Never placed"],
        ["qx", "2", "1.5 s", "1 min 30 s", "1 min 30 s", "1"],
    ]
    assert cells(page, "slowest-handlers")[1] == ["7", "ATypex", "GOx", "appx", "2.5 ms", "5 s"]
    assert cells(page, "node-peaks")[1][2:5] == ["2 GiB of 1 GiB", "1 of 1", "\u2013"]


def test_an_excerpt_has_a_column_of_applications_that_began_earlier() -> None:
    tables = small_tables()
    tables["waiting_by_queue"][0]["begun_earlier"] = 7

    shown = cells(rendered(tables), "waiting-by-queue")

    assert [row[-1] for row in shown] == ["Begun earlier", "7"]


def test_cells_carry_their_sort_keys(page: str) -> None:
    assert re.findall(r'data-value="([^"]*)">1 min 30 s<', page)[:2] == ["90.0", "90.5"]
    # What is not known has no value, and goes last.
    assert re.search(r'<td class="number" data-value="">\u2013</td>', page)


def test_column_headings_are_buttons(page: str) -> None:
    heads = re.findall(r"<th [^>]*>.*?</th>", page)

    assert len(heads) > 80
    for head in heads:
        assert re.fullmatch(r'<th scope="col"( class="number")?><button type="button">[^<]+</button></th>', head)


def test_problems_are_red(page: str) -> None:
    assert '<td class="number bad" data-value="2.0">2 GiB of 1 GiB</td>' in page
    assert '<td class="bad" data-value="1">yes</td>' in page
    assert '<td class="number bad">2</td>' in page


def test_an_empty_journal_has_a_page_that_says_so() -> None:
    page = rendered({}, first_at=None, last_at=None)

    assert "Journal /some/journal, which is empty." in page
    assert drawings(page) == {}
    assert len(re.findall(r'<span id="plot-[a-z-]+">', page)) == 13
    assert len(re.findall(r'<p class="empty" id="table-[a-z_-]+">None.</p>', page)) == 12


def test_a_cut_table_says_where_all_its_rows_are_and_a_plot_has_the_rows_of_the_table() -> None:
    queue = small_tables()["waiting_by_queue"][0]
    page = rendered({"waiting_by_queue": [queue | {"queue": f"q{number}"} for number in range(300)]})

    assert len(cells(page, "waiting-by-queue")) == 1 + 100
    assert "The first 100 rows. All rows: tables/waiting_by_queue (Parquet)." in page
    assert drawings(page)["Waiting time per queue"].count('<line class="span') == 100


def test_damage_is_shown_in_red_with_at_most_twenty_lines_and_the_rows_lost() -> None:
    damage = [Problem(f"segment-{number}", 8, 9, f"segment-{number}: <cut>", 2, 1) for number in range(1, 23)]

    page = rendered(small_tables(), damage=damage)

    assert re.search(r'<li class="bad"><a href="#damage">Damage</a><p><strong>22 parts of the journal', page)
    [panel] = re.findall(r'<section class="panel damage" id="damage">.*?</section>', page, re.DOTALL)
    assert "Missing from the figures of this run: 44 events and 22 transitions." in panel
    lines = [f"segment-{n}: &lt;cut&gt;; 2 events and 1 transition lost" for n in range(1, 21)]
    assert re.findall(r"<li>([^<]*)</li>", panel) == lines
    assert "And 2 more: dispatcher journal verify lists all." in page


@pytest.mark.parametrize(("events", "is_marked"), [(None, True), (3, True), (0, False)])
def test_figures_plots_graphs_and_tables_are_marked_if_rows_are_missing(events: int | None, is_marked: bool) -> None:
    """The page showed 195,904 of 200,000 events as all."""
    page = rendered(small_tables(), damage=[Problem("a", 8, 9, "a: cut", events, 0)], config="name: rm")

    marked = len(re.findall('<a class="incomplete" href="#damage">incomplete</a>', page))
    [answers] = re.findall(r'<ul class="answers">.*?</ul>', page, re.DOTALL)
    panels = len(re.findall("<h3[ >]", page)) - 2  # the damage's own and the configuration's
    assert marked == (answers.count("<li") - 1 + panels if is_marked else 0)
    assert ("at least 4 events" in page) == is_marked


def test_damage_of_the_earlier_run_is_told_apart_and_marks_the_comparison_alone() -> None:
    page = rendered(small_tables(), compared_with="/other", damage_before=[Problem("a", 8, 9, "a: cut", 1, 0)])

    assert "Missing from the figures of the earlier run, /other: 1 event and 0 transitions." in page
    assert "1 part of the earlier run&#39;s journal cannot be read;" in page
    assert page.count(">incomplete</a>") == 2
    assert "The journal of before is damaged." in page


def test_the_comparison_comes_first_and_shows_both_values_and_the_change() -> None:
    page = rendered(small_tables(), compared_with="/other/journal")

    assert cells(page, "comparison") == [
        ["Of", "What", "Before", "After", "Change"],
        ["queue qx", "wait p95", "1 min 30 s", "45 s", "-50 %"],
    ]
    assert page.index('<h2 id="comparison"') < page.index('<h2 id="problems"')
    assert "Before is /other/journal, after is /some/journal." in page
    assert "<title>queue qx: wait p95: -50 %</title>" in drawings(page)["Largest changes"]


def test_what_a_run_lacks_has_no_section(page: str) -> None:
    """Damage, a second journal, and a configuration."""
    assert not {"damage", "comparison", "table-comparison", "configuration"} & set(re.findall(r'id="(.*?)"', page))
    assert ">Damage<" not in page


def test_names_that_are_markup_stay_text_in_tables_graphs_and_plots() -> None:
    page = rendered(small_tables(NASTY), damage=[Problem(NASTY, 1, 1, NASTY, 0, 0)], compared_with=NASTY)

    assert "<img" not in page
    assert len(scripts(page)) == 1
    assert cells(page, "slowest-handlers")[1][3] == f"app{NASTY}"
    [about] = re.findall(
        r'<rect class="\w+" x[^>]*><title>(.*?)</title>', drawings(page)["States of the applications over time"]
    )
    assert html.unescape(about).startswith(f"app{NASTY}: RUNNING{NASTY} for 1 min 35 s, not ended")


def test_the_run_s_configuration_is_the_last_section_as_it_is_and_escaped() -> None:
    shown = rendered(small_tables(), config=f"# about {NASTY}\nname: rm\nqueues:\n- name: a\n")

    assert NASTY not in shown
    [text] = re.findall(r"<pre>(.*?)</pre>", shown, re.DOTALL)
    assert html.unescape(text) == f"# about {NASTY}\nname: rm\nqueues:\n- name: a\n"
    assert shown.index('<h2 id="configuration">Configuration</h2>') > shown.index('<h2 id="machines">')


def test_the_policy_allows_the_pages_own_script_and_style_sheet_and_nothing_else(page: str) -> None:
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    [script], [style] = scripts(page), re.findall(r"<style>(.*?)</style>", page, re.DOTALL)

    assert html.unescape(policy[1]) == (
        f"default-src 'none'; script-src '{hashed(script)}'; style-src '{hashed(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    # A style attribute would need a source of its own.
    assert re.findall(r"<[^>]*\sstyle=", page) == []


def hashed(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def test_the_page_needs_no_other_file(page: str) -> None:
    assert re.findall(r"""(?:src|href)\s*=\s*["'](?!#)[^"']*""", page) == []
    assert re.findall(r"https?://|url\(|@import|<link|<iframe|<object|<embed", page) == []


def test_every_link_leads_to_an_element_of_the_page(page: str) -> None:
    for shown in (
        page,
        rendered({}),
        rendered(small_tables(), compared_with="/other", damage=[Problem("a", None, None, "a: cut")]),
    ):
        links = set(re.findall(r'href="#([^"]*)"', shown))

        assert len(links) > 15
        assert links <= set(re.findall(r' id="([^"]*)"', shown))


def test_a_live_page_reloads_itself(page: str) -> None:
    assert '<meta http-equiv="refresh" content="5">' in rendered(small_tables(), is_live=True)
    assert "refresh" not in page.partition("</head>")[0]


def test_the_same_rows_give_the_same_page(page: str) -> None:
    assert rendered(small_tables()) == page


def test_a_run_in_virtual_time_has_a_length_and_one_in_real_time_has_dates() -> None:
    virtual = rendered({})
    real = rendered({}, first_at=1_700_000_000 * SECOND, last_at=1_700_000_060 * SECOND)

    assert "Journal /some/journal, 1 min 40 s of virtual time." in virtual
    assert "from 2023-11-14 22:13:20 UTC to 2023-11-14 22:14:20 UTC in the clock of the run." in real
