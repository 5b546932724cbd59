"""Reports in a real browser: they draw everything, ask nobody for anything, and fit a phone."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from browser import CHECKS, Opened, launched, opened
from feedline.report import Report, render, report_logs, write_report
from report_data import MIXTURE, REPORTS, of_config, write_logs

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# How many things a chart of each kind must have drawn, by its data.
DRAWN = {
    "lines": ("svg path", lambda chart: len(chart["series"])),
    "bars": (".bars .track", lambda chart: len(chart["names"])),
    "scatter": ("svg circle", lambda chart: sum(map(len, chart["points"]))),
    "measures": (".strip b", lambda chart: len(chart["names"])),
    "timeline": ("svg rect", lambda chart: len(chart["spans"])),
    "table": ("tbody tr", lambda chart: len(chart["rows"])),
    "map": ("canvas", lambda _: 1),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Report, Path]]:
    """Every kind of report, and its file."""
    folder = tmp_path_factory.mktemp("reports")
    found = {}
    for number, (kind, report_of) in enumerate(REPORTS.items()):
        report = report_of(folder / f"logs{number}")
        found[kind] = (report, write_report(report, folder / f"{number}.html"))
    return found


def check_quiet(page: Opened, path: Path) -> None:
    assert page.said == []
    assert [url for url in page.asked if not url.startswith("data:")] == [path.resolve().as_uri()]
    assert page.dialogs == []


def charts_of(report: Report) -> list[dict[str, Any]]:
    return [chart for panel in report.to_dict()["panels"] for chart in panel["charts"]]


@pytest.mark.parametrize("kind", REPORTS)
def test_everything_is_drawn_and_fits_at_any_width(
    kind: str, browser: Browser, made: dict[str, tuple[Report, Path]]
) -> None:
    report, path = made[kind]
    with opened(browser, path) as page:
        check_drawn(page, report)
        for width in (1100, 360, 320):
            page.resize(width)
            assert page.run("document.documentElement.scrollWidth") <= width
            assert page.check("misplaced()") == []
        check_drawn(page, report)
        check_quiet(page, path)


def check_drawn(page: Opened, report: Report) -> None:
    sections = page.run("[...document.querySelectorAll('section')].map((one) => one.id)")
    assert sections == [panel.name for panel in report.panels]
    figures = page.page.query_selector_all("figure")
    for figure, chart in zip(figures, charts_of(report), strict=True):
        what, number_of = DRAWN[chart["kind"]]
        drawn = figure.query_selector_all(what)
        assert len(drawn) >= number_of(chart), chart["title"]
        if chart["kind"] == "lines":
            paths = [str(one.get_attribute("d")) for one in drawn]
            assert all(path.startswith("M") and "NaN" not in path for path in paths)
        if chart["kind"] == "map":
            values = {value for row in chart["layers"][0]["values"] for value in row}
            num_colours = figure.evaluate(f"(figure) => {CHECKS}.numColours(figure)")
            assert num_colours >= min(2, len(values - {None}))
    assert page.run("document.querySelector('.verdict').textContent") == report.verdict.text
    shown = page.run("document.body.innerText")
    assert "NaN" not in shown
    assert "undefined" not in shown


def test_a_text_that_does_not_fit_is_found(browser: Browser, tmp_path: Path) -> None:
    path = write_report(of_config(MIXTURE), tmp_path / "report.html")
    with opened(browser, path, width=360) as page:
        longer = "(one) => { one.textContent += '0000000'; }"
        page.run(f"document.querySelectorAll('svg text.tick').forEach({longer})")
        page.run("document.querySelector('h1').style.width = '2000px'")
        found = "\n".join(page.check("misplaced()"))
        assert "cut:" in found
        assert "touch:" in found
        assert "outside:" in found


def test_a_hover_shows_the_numbers_of_a_cell(
    browser: Browser, made: dict[str, tuple[Report, Path]]
) -> None:
    report, path = made["mixture"]
    chart = next(chart for chart in charts_of(report) if chart["kind"] == "map")
    with opened(browser, path) as page:
        svg = page.page.locator("figure[data-kind=map] svg").first
        svg.scroll_into_view_if_needed()
        box = svg.bounding_box()
        assert box is not None
        page.page.mouse.move(box["x"] + box["width"] - 4, box["y"] + 8)
        tip = page.page.locator("#tip").inner_text()
        assert f"step {chart['columns'][-1]}, rank {chart['rows'][0]}" in tip
        first = next(layer for layer in chart["layers"] if layer["name"].startswith("index"))
        assert f"{first['values'][0][-1]:,}" in tip
        page.page.mouse.move(2, 2)
        assert page.page.locator("#tip").is_hidden()


def test_a_line_is_read_by_pointer_and_by_keys(
    browser: Browser, made: dict[str, tuple[Report, Path]]
) -> None:
    _, path = made["logs"]
    with opened(browser, path) as page:
        svg = page.page.locator("#coverage figure[data-kind=lines] svg").first
        svg.scroll_into_view_if_needed()
        box = svg.bounding_box()
        assert box is not None
        page.page.mouse.move(box["x"] + box["width"] - 13, box["y"] + 60)
        tip = page.page.locator("#tip").inner_text()
        assert "step 160" in tip
        assert "100 %" in tip
        page.page.mouse.move(2, 2)
        svg.focus()
        page.page.keyboard.press("ArrowLeft")
        assert "step 159" in page.page.locator("#tip").inner_text()


def test_the_map_can_be_coloured_by_something_else(
    browser: Browser, made: dict[str, tuple[Report, Path]]
) -> None:
    _, path = made["mixture"]
    with opened(browser, path) as page:
        figure = page.page.query_selector("figure[data-kind=map]")
        assert figure is not None
        picture = "(figure) => figure.querySelector('canvas').toDataURL()"
        before = figure.evaluate(picture)
        page.page.locator("figure[data-kind=map] select").first.select_option("share of web")
        assert figure.evaluate(picture) != before
        assert "%" in page.page.locator("figure[data-kind=map] .legend").first.inner_text()
        check_quiet(page, path)


def test_light_and_dark_follow_the_system_and_the_button(
    browser: Browser, made: dict[str, tuple[Report, Path]]
) -> None:
    _, path = made["logs"]
    background = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('svg text')).fill"
    with opened(browser, path, theme="light") as page:
        light = page.run(background), page.run(ink)
        page.page.click("#theme")
        toggled = page.run(background), page.run(ink)
        check_quiet(page, path)
    with opened(browser, path, theme="dark") as page:
        dark = page.run(background), page.run(ink)
        check_quiet(page, path)
    assert toggled == dark
    assert dark[0] != light[0]
    assert dark[1] != light[1]


def test_the_data_can_be_downloaded(browser: Browser, made: dict[str, tuple[Report, Path]]) -> None:
    report, path = made["logs"]
    with opened(browser, path) as page:
        with page.page.expect_download() as saved:
            page.page.click("#save")
        assert json.loads(Path(saved.value.path()).read_text()) == report.to_dict()
        with page.page.expect_download() as table:
            page.page.locator("#waits figure button").first.click()
        rows = list(csv.reader(Path(table.value.path()).read_text().splitlines()))
        chart = next(panel for panel in report.panels if panel.name == "waits").charts[0]
        assert rows[0] == ["step", "longest of all ranks", "mean"]
        assert len(rows) == 1 + len(chart.x)  # type: ignore[attr-defined]
        assert table.value.suggested_filename == "wait-for-a-batch.csv"
        check_quiet(page, path)


def test_names_in_the_data_are_text_and_never_run(browser: Browser, tmp_path: Path) -> None:
    hostile = "</script><script>alert(1)</script>", "<img src=x onerror=alert(2)>=cmd()"
    logs = write_logs(tmp_path / "logs", names=hostile)
    report = report_logs([logs], title="<b>&amp;</title><script>alert(3)</script>")
    path = write_report(report, tmp_path / "report.html")
    with opened(browser, path) as page:
        shown = page.run("document.body.innerText")
        assert all(name in shown for name in hostile)
        assert page.run("document.title") == report.title
        assert page.run("document.querySelectorAll('img').length") == 0
        check_quiet(page, path)


def test_the_policy_of_the_page_keeps_other_scripts_from_running(
    browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    page_text = render(of_config(MIXTURE))
    broken_into = page_text.replace(
        "<main", "<script>alert(4)</script><img src='https://example.org/x.png'><main"
    )
    path.write_text(broken_into)
    with opened(browser, path) as page:
        assert page.dialogs == []
        assert any("Content Security Policy" in line for line in page.said)
        assert page.page.locator("section").count() > 3


def test_print_has_all_panels_and_no_buttons(
    browser: Browser, made: dict[str, tuple[Report, Path]]
) -> None:
    _, path = made["logs"]
    with opened(browser, path) as page:
        page.page.emulate_media(media="print")
        assert page.page.locator("#save").is_hidden()
        assert page.page.locator("section").first.is_visible()
