// What charts share: a frame that redraws when its width changes, scales, axes, legends, and the tip.
const tip = document.getElementById("tip");

function showTip(event, title, rows) {
  const listed = rows.map(([label, value]) => make("div", {}, make("span", {}, label), make("span", {}, value)));
  tip.replaceChildren(make("strong", {}, title), ...listed);
  tip.hidden = false;
  const { offsetWidth: width, offsetHeight: height } = tip;
  const right = window.scrollX + document.documentElement.clientWidth;
  const left = Math.min(event.pageX + 14, right - width - 8);
  const above = event.pageY - height - 12;
  tip.style.left = `${Math.max(window.scrollX + 4, left)}px`;
  tip.style.top = `${above < window.scrollY ? event.pageY + 18 : above}px`;
}

function hideTip() {
  tip.hidden = true;
}

// A figure whose `paint(plot, width)` is called again when the width or the theme changes.
function frame(chart, paint, rows, before = []) {
  const plot = make("div", { class: "plot" });
  const file = `${chart.title.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-")}.csv`;
  const button = make("button", { type: "button", title: `Download the numbers of “${chart.title}”`,
    onclick: () => save(file, "text/csv", asCsv(rows())) }, "CSV");
  const caption = make("figcaption", {}, make("strong", {}, chart.title), button,
    chart.note ? make("small", {}, chart.note) : null);
  let width = 0;
  const repaint = () => {
    if (!width) return;
    hideTip();
    plot.replaceChildren();
    paint(plot, width);
  };
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now === width) return;
    width = now;
    repaint();
  }).observe(plot);
  document.addEventListener("repaint", repaint);
  return make("figure", {}, caption, ...before, plot);
}

function scale(low, high, from, to) {
  const span = high - low || 1;
  const map = (value) => from + ((value - low) / span) * (to - from);
  map.back = (place) => low + ((place - from) / (to - from || 1)) * span;
  return map;
}

function ticks(low, high, most) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) found.push(n * step);
  return found.map((value) => Number(value.toPrecision(12)));
}

function wholeTicks(low, high, most) {
  return ticks(low, high, most).filter(Number.isInteger);
}

function textWidth(text) {
  textWidth.context ??= document.createElement("canvas").getContext("2d");
  textWidth.context.font = "12px system-ui, sans-serif";
  return textWidth.context.measureText(text).width * 1.08 + 2;
}

// Labels below a plot; those that would leave it or touch a neighbour are left out.
function labelsBelow(svg, places, width, y) {
  let end = -Infinity;
  for (const [x, text] of places) {
    const size = textWidth(text);
    const start = Math.min(Math.max(0, x - size / 2), width - size);
    if (start < end + 8) continue;
    end = start + size;
    svg.append(draw("text", { x: start, y, class: "tick" }, text));
  }
}

function axes(svg, box, x, y, chart, xTicks) {
  for (const value of y.ticks) {
    svg.append(draw("line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }));
    svg.append(draw("text", { class: "tick", x: box.left - 6, y: y(value) + 4, "text-anchor": "end" },
      shownShort(value, chart.format)));
  }
  labelsBelow(svg, xTicks.map((value) => [x(value), shownShort(value)]), box.width, box.bottom + 16);
  svg.append(draw("text", { class: "label", x: (box.left + box.right) / 2, y: box.bottom + 33, "text-anchor": "middle" },
    chart.x_label));
}

function legend(entries) {
  return make("ul", { class: "legend" }, ...entries.map(([name, number, kind]) => {
    const colour = seriesColour(number);
    const css = kind === "box" ? { background: colour } : { "border-color": colour };
    return make("li", {}, make("i", { class: kind, css }), name);
  }));
}

// A dashed series that belongs to another one has its colour.
function coloursOf(series) {
  const plain = series.filter((one) => !one.name.endsWith(", wanted")).map((one) => one.name);
  return series.map((one) => Math.max(0, plain.indexOf(one.name.replace(/, wanted$/, ""))));
}
