// The page: its head, its contents and its panels, from the data in the file.
const DRAW = { lines: drawLines, bars: drawBars, map: drawMap, scatter: drawScatter, measures: drawMeasures,
  timeline: drawTimeline, table: drawTable };
const WIDE = new Set(["map", "timeline", "table", "measures"]);

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  document.dispatchEvent(new Event("repaint"));
}

function drawHead(report, text) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  const facts = report.facts.map((fact) => make("div", {}, make("dt", {}, fact.label),
    make("dd", {}, shown(fact.value).replaceAll(",", ",\u200b"), fact.note ? make("small", {}, fact.note) : null)));
  document.getElementById("head").append(
    make("div", { class: "bar" },
      make("div", { class: "grow" }, make("h1", {}, report.title), make("p", { class: "soft" }, report.subtitle)),
      make("button", { type: "button", id: "theme",
        onclick: () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark") }, "Light / dark"),
      make("button", { type: "button", id: "save", onclick: () => save("report.json", "application/json", text) },
        "Download data")),
    make("p", { class: `verdict ${report.verdict.is_good ? "good" : "bad"}` }, report.verdict.text),
    make("dl", { class: "facts" }, ...facts));
}

function drawPanel(panel) {
  const figures = panel.charts.map((chart) => {
    const figure = DRAW[chart.kind](chart);
    figure.dataset.kind = chart.kind;
    if (WIDE.has(chart.kind)) figure.classList.add("wide");
    return figure;
  });
  const isPaired = panel.charts.filter((chart) => !WIDE.has(chart.kind)).length > 1;
  return make("section", { id: panel.name }, make("h2", {}, panel.title),
    ...panel.text.split("\n").filter(Boolean).map((line) => make("p", { class: "soft" }, line)),
    make("div", { class: isPaired ? "charts pairs" : "charts" }, ...figures));
}

const text = document.getElementById("data").textContent;
const report = JSON.parse(text);
drawHead(report, text);
document.getElementById("contents").append(
  ...report.panels.map((panel) => make("a", { href: `#${panel.name}` }, panel.title)));
document.getElementById("panels").append(...report.panels.map(drawPanel));
