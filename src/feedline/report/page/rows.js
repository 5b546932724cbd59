// Charts of rows: bars, measures beside their bands, and tables.
function drawBars(chart) {
  const totals = chart.names.map((_, row) => chart.series.reduce((sum, one) => sum + (one.values[row] ?? 0), 0));
  const high = Math.max(...totals, ...chart.targets.map((value) => value ?? 0)) || 1;
  const used = chart.series.filter((one, n) => n === 0 || one.values.some((value) => value));
  const rows = () => [["", ...chart.series.map((one) => one.name), ...(chart.targets.length ? ["target"] : [])],
    ...chart.names.map((name, row) => [name, ...chart.series.map((one) => one.values[row]),
      ...(chart.targets.length ? [chart.targets[row]] : [])])];
  const keys = used.length > 1 ? [legend(used.map((one, n) => [one.name, n, "box"]))] : [];
  return frame(chart, (plot) => {
    const listed = chart.names.map((name, row) => {
      const parts = used.map((one, n) => make("span", {
        css: { width: `${(100 * (one.values[row] ?? 0)) / high}%`, background: seriesColour(n) } }));
      const target = chart.targets[row];
      if (target !== null && target !== undefined) parts.push(make("i", { css: { left: `${(100 * target) / high}%` } }));
      // Of several series, those without a value do not belong to this row.
      const told = used.filter((one) => used.length === 1 || one.values[row] !== null);
      const numbers = told.map((one) => [one.name, shown(one.values[row], chart.format)]);
      if (target !== null && target !== undefined) numbers.push(["wanted", shown(target, chart.format)]);
      const text = told.map((one) => shown(one.values[row], chart.format)).filter((one, n) => n === 0 || !["0", "0 s"].includes(one));
      const bar = make("div", {},
        make("div", { class: "names" }, make("span", {}, name), make("b", {}, text.join(" + "))),
        make("div", { class: "track" }, ...parts));
      return followed(bar, (event) => showTip(event, name, numbers));
    });
    plot.append(make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": chart.title },
      make("div", { class: "bars" }, ...listed)));
  }, rows, keys);
}

function drawMeasures(chart) {
  const rows = () => [["measure", "value", "perfect", "tolerance"],
    ...chart.names.map((name, n) => [name, chart.values[n], chart.expected[n], chart.tolerances[n]])];
  return frame(chart, (plot) => {
    plot.append(make("div", { class: "measures" }, ...chart.names.map((name, n) => {
      const [value, expected, tolerance] = [chart.values[n], chart.expected[n], chart.tolerances[n]];
      const off = (value - expected) / (tolerance || 1);
      const place = 50 + (100 * Math.max(-2.9, Math.min(2.9, off))) / 6;
      const text = `${shown(value)}; perfect ${shown(expected)} ± ${shown(tolerance)}`;
      const row = make("div", { class: Math.abs(off) > 1 ? "off" : "in" },
        make("div", { class: "names" }, make("span", {}, name), make("span", {}, text)),
        make("div", { class: "strip" }, make("i"), make("b", { css: { left: `${place}%` } })));
      return followed(row, (event) => showTip(event, name, [["measured", shown(value)], ["perfect", shown(expected)],
        ["tolerance", shown(tolerance)]]));
    })));
  }, rows);
}

function drawTable(chart) {
  const isNumber = chart.header.map((_, n) => chart.rows.every((row) => typeof row[n] === "number"));
  return frame(chart, (plot) => {
    const cell = (kind, value, n) => make(kind, { class: isNumber[n] ? "number" : null }, shown(value));
    plot.append(make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": chart.title }, make("table", {},
      make("thead", {}, make("tr", {}, ...chart.header.map((value, n) => cell("th", value, n)))),
      make("tbody", {}, ...chart.rows.map((row) => make("tr", {}, ...row.map((value, n) => cell("td", value, n))))))));
  }, () => [chart.header, ...chart.rows]);
}
