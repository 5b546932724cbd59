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

// Calls `show` where the pointer is and `hide` where it leaves; a finger that is lifted leaves the tip.
function followed(element, show, hide = hideTip) {
  element.addEventListener("pointermove", show);
  element.addEventListener("pointerdown", show);
  element.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "touch") hide();
  });
  return element;
}

// A tap elsewhere, or scrolling away, takes the tip along.
document.addEventListener("pointerdown", (event) => {
  if (!event.target.closest(".plot")) hideTip();
});

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
  const first = Math.ceil(low / step - 1e-9);
  // Counted from zero, because a very large number does not change when one is added.
  const count = Math.min(2 * most + 2, Math.floor((high - first * step) / step + 1e-9) + 1);
  return Array.from({ length: Math.max(0, count) }, (_, n) => Number(((first + n) * step).toPrecision(15)));
}

function wholeTicks(low, high, most) {
  return ticks(low, high, most).filter(Number.isInteger);
}

function textWidth(text) {
  textWidth.context ??= document.createElement("canvas").getContext("2d");
  textWidth.context.font = "12px system-ui, sans-serif";
  return textWidth.context.measureText(text).width * 1.08 + 2;
}

// A text that is no wider than this: the beginning and the end are kept, because names differ there.
function fitted(text, width) {
  if (textWidth(text) <= width) return text;
  let [low, high] = [0, text.length];
  const cut = (size) => `${text.slice(0, Math.ceil(size / 2))}…${text.slice(text.length - Math.floor(size / 2))}`;
  while (low < high) {
    const size = Math.ceil((low + high) / 2);
    if (textWidth(cut(size)) <= width) low = size;
    else high = size - 1;
  }
  return cut(low);
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
  y.ticks.forEach((value, n) => {
    svg.append(draw("line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }));
    svg.append(draw("text", { class: "tick", x: box.left - 6, y: y(value) + 4, "text-anchor": "end" }, y.labels[n]));
  });
  const labels = shownTogether(xTicks);
  labelsBelow(svg, xTicks.map((value, n) => [x(value), labels[n]]), box.width, box.bottom + 16);
  labelOf(svg, box, chart.x_label);
}

// What an axis is of, below its labels.
function labelOf(svg, box, label) {
  const text = fitted(label, box.width);
  const half = textWidth(text) / 2;
  const x = Math.max(half, Math.min((box.left + box.right) / 2, box.width - half));
  svg.append(draw("text", { class: "label", x, y: box.bottom + 33, "text-anchor": "middle" }, text));
}

// Lets arrow keys move over a picture that has the focus: `go(right, down)`; the tip is hidden by Escape.
function followKeys(svg, go, hide) {
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (move && go(...move)) event.preventDefault();
  });
}

// Where a tip goes that belongs to a place in a picture.
function placeIn(svg, x, y) {
  const { left, top } = svg.getBoundingClientRect();
  return { pageX: left + window.scrollX + x, pageY: top + window.scrollY + y };
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
