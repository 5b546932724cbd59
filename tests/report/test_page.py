"""Reports in a real browser: they draw everything, ask nobody for anything, and fit a phone."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from browser import CHECKS, Opened, launched, opened
from feedline.report import Report, render, report_logs, write_report
from report_data import MIXTURE, REPORTS, of_config, write_log, write_logs

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


class Made(dict[str, tuple[Report, Path]]):
    """Reports by their kind, and their files, made when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __missing__(self, kind: str) -> tuple[Report, Path]:
        number = len(self)
        report = REPORTS[kind](self.folder / f"logs{number}")
        self[kind] = report, write_report(report, self.folder / f"{number}.html")
        return self[kind]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("reports"))


def check_quiet(page: Opened, path: Path) -> None:
    assert page.said == []
    assert [url for url in page.asked if not url.startswith("data:")] == [path.resolve().as_uri()]
    assert page.dialogs == []


def charts_of(report: Report) -> list[dict[str, Any]]:
    return [chart for panel in report.to_dict()["panels"] for chart in panel["charts"]]


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[pytest.mark.slow] if i else []) for i, k in enumerate(REPORTS)],
)
def test_everything_is_drawn_and_fits_at_any_width(kind: str, browser: Browser, made: Made) -> None:
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_each_line_of_a_text_is_a_paragraph_and_a_bar_shows_only_its_own_series(
    browser: Browser, made: Made
) -> None:
    report, path = made["data on a device"]
    bars = next(chart for chart in charts_of(report) if chart["kind"] == "bars")
    with opened(browser, path) as page:
        told = page.run("[...document.querySelectorAll('#advice > p')].map((p) => p.textContent)")
        assert told == report.panels[0].text.split("\n")
        assert len(told) > 1
        shown = page.run("[...document.querySelectorAll('.bars .names b')].map((b) => b.innerText)")
        values = zip(*(one["values"] for one in bars["series"]), strict=True)
        assert shown == [f"{next(v for v in row if v is not None):g}" for row in values]
        check_quiet(page, path)


@pytest.mark.slow
def test_a_hover_shows_the_numbers_of_a_cell(browser: Browser, made: Made) -> None:
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


def test_a_line_is_read_by_pointer_and_by_keys(browser: Browser, made: Made) -> None:
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


@pytest.mark.slow
def test_areas_stand_on_each_other(browser: Browser, made: Made) -> None:
    _, path = made["logs"]
    with opened(browser, path) as page:
        areas = page.page.query_selector_all("#waits svg path:not([stroke-width])")
        boxes = [area.bounding_box() for area in areas]
        assert len(areas) == 4
        drawn = [box for box in boxes if box is not None and box["height"]]
        # At its highest step, which is of the second run, nothing is unknown.
        reading, copying, handing_over, unknown = drawn
        assert handing_over["y"] < copying["y"] <= reading["y"]
        bottom = reading["y"] + reading["height"]
        assert unknown["y"] + unknown["height"] <= bottom + 1
        keys = page.page.locator("#waits figure .legend").nth(1).inner_text()
        assert "copying them to the device" in keys


@pytest.mark.slow
def test_a_map_is_read_by_keys(browser: Browser, made: Made) -> None:
    report, path = made["mixture"]
    chart = next(chart for chart in charts_of(report) if chart["kind"] == "map")
    with opened(browser, path) as page:
        tip = page.page.locator("#tip")
        page.page.locator("figure[data-kind=map] svg").first.focus()
        for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowDown", "ArrowDown", "ArrowUp"):
            page.page.keyboard.press(key)
        shown = tip.inner_text()
        assert f"step {chart['columns'][1]}, rank {chart['rows'][1]}" in shown
        assert f"{chart['layers'][0]['values'][1][1]:,}" in shown
        page.page.keyboard.press("Escape")
        assert tip.is_hidden()
        for _ in range(len(chart["rows"]) + 1):
            page.page.keyboard.press("ArrowDown")
        assert f"rank {chart['rows'][-1]}" in tip.inner_text()
        page.page.keyboard.press("Tab")
        assert tip.is_hidden()


@pytest.mark.parametrize("first", [pytest.param(100_000, marks=pytest.mark.slow), 10**12, 2**60])
def test_late_steps_can_be_told_apart(first: int, browser: Browser, tmp_path: Path) -> None:
    batches = [(0, first + step, [step]) for step in range(0, 600, 2)]
    log = write_log(tmp_path / "a.log", batches, num_samples=600)
    path = write_report(report_logs([log]), tmp_path / "report.html")
    with opened(browser, path) as page:
        for figure in ("#runs figure", "#coverage figure", "#waits figure", "#map figure"):
            labels = f"[...document.querySelector('{figure}').querySelectorAll('text.tick')]"
            texts = page.run(f"{labels}.map((one) => one.textContent)")
            assert texts
            # A browser counts in floats, which do not have so many digits.
            if first < 2**53:
                assert len(set(texts)) == len(texts)
        assert page.check("misplaced()") == []
        check_quiet(page, path)


@pytest.mark.slow
def test_the_map_can_be_coloured_by_something_else(browser: Browser, made: Made) -> None:
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


@pytest.mark.slow
def test_light_and_dark_follow_the_system_and_the_button(browser: Browser, made: Made) -> None:
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


def test_the_data_can_be_downloaded(browser: Browser, made: Made) -> None:
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


@pytest.mark.slow
def test_names_are_no_formulas_in_a_spreadsheet(browser: Browser, tmp_path: Path) -> None:
    names = ("=cmd|'/C calc'!A0", " @SUM(1)"), ("\n+1", "-2+3;=4"), ("\uff1d1", '\t"=5"')
    for number, pair in enumerate(names):
        report = report_logs([write_logs(tmp_path / str(number), names=pair)])
        path = write_report(report, tmp_path / f"{number}.html")
        with opened(browser, path) as page:
            with page.page.expect_download() as saved:
                page.page.locator("#mixture figure button").last.click()
            text = Path(saved.value.path()).read_text()
        cells = [row[0] for row in csv.reader(io.StringIO(text, newline=""))]
        assert sorted(cells) == sorted(["", *(f"'{name}" for name in pair)])
        # Where commas are in numbers, semicolons are between cells.
        assert all(f'"\'{name}"' in text for name in pair if ";" in name)


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


@pytest.mark.slow
def test_print_has_all_panels_and_no_buttons_and_is_light(browser: Browser, made: Made) -> None:
    _, path = made["logs"]
    ink = "getComputedStyle(document.body).color"
    with opened(browser, path, theme="light") as page:
        light = page.run(ink)
    with opened(browser, path, theme="dark") as page:
        assert page.run(ink) != light
        page.page.emulate_media(media="print", color_scheme="dark")
        assert page.run(ink) == light
        assert page.page.locator("#save").is_hidden()
        assert page.page.locator("section").first.is_visible()


def test_text_stands_out_from_what_is_behind_it() -> None:
    style = (files("feedline.report") / "page" / "style.css").read_text()
    themes = [
        dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in style.split("@media screen")
    ]
    for colours in themes[:2]:
        for ground in ("page", "card"):
            for text in ("ink", "soft", "good", "bad", "series-0"):
                assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
            for number in range(8):
                assert contrast(colours[f"series-{number}"], colours[ground]) >= 3


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, as the WCAG define it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.slow
def test_a_tap_shows_numbers_until_a_tap_elsewhere(browser: Browser, made: Made) -> None:
    _, path = made["logs"]
    context = browser.new_context(viewport={"width": 360, "height": 700}, has_touch=True)
    try:
        page = context.new_page()
        page.goto(path.resolve().as_uri())
        tip = page.locator("#tip")
        for chart in ("map", "lines", "bars", "measures", "timeline"):
            plot = page.locator(f"figure[data-kind={chart}] .plot").first
            what = plot.locator(
                {"bars": ".track", "measures": ".strip", "timeline": "g"}.get(chart, "svg")
            )
            what.first.scroll_into_view_if_needed()
            box = what.first.bounding_box()
            assert box is not None
            page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + min(30, box["height"] / 2))
            page.wait_for_timeout(50)
            assert tip.is_visible(), chart
            page.evaluate("window.scrollTo(0, 0)")
            page.touchscreen.tap(5, 5)
            assert tip.is_hidden(), chart
    finally:
        context.close()


@pytest.mark.slow
def test_more_buckets_than_colours_have_a_scale(browser: Browser, tmp_path: Path) -> None:
    buckets = [{"name": f"b{n}", "samples": 40} for n in range(12)]
    report = of_config({"batch_size": 4, "data": {"buckets": buckets}})
    path = write_report(report, tmp_path / "report.html")
    with opened(browser, path) as page:
        assert page.page.locator("figure[data-kind=map] .legend").first.inner_text().split() == [
            "b0",
            "b11",
        ]
        figure = page.page.query_selector("figure[data-kind=map]")
        assert figure is not None
        assert figure.evaluate(f"(figure) => {CHECKS}.numColours(figure)") == 12
        check_quiet(page, path)
