function drawLines(chart) {
  const colours = coloursOf(chart.series);
  const rows = () => [[chart.x_label, ...chart.series.map((one) => one.name)],
    ...chart.x.map((value, at) => [value, ...chart.series.map((one) => one.values[at])])];
  const kinds = { dashed: "dashed", area: "box" };
  const keys = chart.series.map((one, n) => [one.name, colours[n], kinds[one.style] ?? ""]);
  return frame(chart, (plot, width) => paintLines(plot, width, chart, colours), rows, [legend(keys)]);
}

// Where each series is drawn: areas stand on those before them.
function heightsOf(series) {
  let below = [];
  return series.map((one) => {
    if (one.style !== "area") return one.values;
    below = one.values.map((value, at) => (value ?? 0) + (below[at] ?? 0));
    return below;
  });
}

function paintLines(plot, width, chart, colours) {
  const heights = heightsOf(chart.series);
  const known = heights.flatMap((values) => values.filter((value) => value !== null));
  const high = Math.max(...known, 0) || 1;
  const listed = ticks(0, high, 4);
  const labels = shownTogether(listed, chart.format);
  const left = Math.max(...labels.map(textWidth)) + 10;
  const box = { left, right: width - 12, top: 12, bottom: 190, width };
  const [first, last] = [Math.min(...chart.x), Math.max(...chart.x)];
  const x = scale(first, last === first ? first + 1 : last, box.left, box.right);
  const y = scale(0, high * 1.04, box.bottom, box.top);
  [y.ticks, y.labels] = [listed, labels];
  const isWhole = chart.x.every(Number.isInteger);
  const svg = draw("svg", { viewBox: `0 0 ${width} 228`, height: 228, role: "img", tabindex: 0,
    "aria-label": `${chart.title}: ${chart.series.map((one) => one.name).join(", ")} over ${chart.x_label}` });
  axes(svg, box, x, y, chart, (isWhole ? wholeTicks : ticks)(first, last, Math.max(2, width / 80)));
  paintMarks(svg, box, x, chart.marks);
  chart.series.forEach((one, n) => {
    if (one.style === "area") {
      const below = n && chart.series[n - 1].style === "area" ? heights[n - 1] : one.values.map(() => 0);
      svg.append(draw("path", { d: areaOf(box, chart.x.map(x), heights[n].map(y), below.map(y)),
        css: { fill: seriesColour(colours[n]) } }));
      return;
    }
    svg.append(draw("path", { d: pathOf(chart.x, one, x, y), fill: "none", css: { stroke: seriesColour(colours[n]) },
      "stroke-width": one.style === "dashed" ? 1.6 : 2, "stroke-dasharray": one.style === "dashed" ? "5 4" : null,
      "stroke-linejoin": "round" }));
  });
  followPointer(svg, box, x, y, chart, colours, heights);
  plot.append(svg);
}

function paintMarks(svg, box, x, marks) {
  let end = -Infinity;
  for (const mark of marks) {
    const at = x(mark.x);
    svg.append(draw("line", { class: "mark", x1: at, x2: at, y1: box.top, y2: box.bottom }));
    const text = fitted(mark.label, box.width - 4);
    const size = textWidth(text);
    const start = Math.min(at + 4, box.width - size);
    if (start < end + 6) continue;
    end = start + size;
    svg.append(draw("text", { x: start, y: box.top - 1, class: "mark-label" }, text));
  }
}

function pathOf(places, one, x, y) {
  let path = "";
  let isOpen = false;
  one.values.forEach((value, at) => {
    if (value === null) { isOpen = false; return; }
    const [px, py] = [x(places[at]).toFixed(1), y(value).toFixed(1)];
    if (!isOpen) path += `M${px} ${py}`;
    else if (one.style === "steps") path += `H${px}V${py}`;
    else path += `L${px} ${py}`;
    isOpen = true;
  });
  return path;
}

// A column for each place, as wide as half the way to the next ones, so that one place alone can be seen.
function areaOf(box, places, tops, bottoms) {
  const edges = [box.left, ...places.slice(1).map((place, at) => (place + places[at]) / 2), box.right];
  const along = (values) => values.flatMap((value, at) =>
    [edges[at], edges[at + 1]].map((edge) => `${edge.toFixed(1)} ${value.toFixed(1)}`));
  return `M${[...along(tops), ...along(bottoms).reverse()].join("L")}Z`;
}

// The nearest place on the axis, by pointer or by arrow keys, with the numbers of all series.
function followPointer(svg, box, x, y, chart, colours, heights) {
  const guide = draw("line", { class: "guide", y1: box.top, y2: box.bottom, visibility: "hidden" });
  const dots = chart.series.map((_, n) => draw("circle", { r: 3.5, visibility: "hidden",
    css: { fill: seriesColour(colours[n]) } }));
  svg.append(guide, ...dots);
  let at = 0;
  const show = (event) => {
    const place = x(chart.x[at]);
    fill(guide, { x1: place, x2: place, visibility: "visible" }, []);
    dots.forEach((dot, n) => {
      const value = heights[n][at];
      fill(dot, { cx: place, cy: value === null ? 0 : y(value), visibility: value === null ? "hidden" : "visible" }, []);
    });
    showTip(event, `${chart.x_label} ${shown(chart.x[at])}`,
      chart.series.map((one) => [one.name, shown(one.values[at], chart.format)]));
  };
  const hide = () => { hideTip(); [guide, ...dots].forEach((one) => one.setAttribute("visibility", "hidden")); };
  const follow = (event) => {
    const wanted = x.back(event.clientX - svg.getBoundingClientRect().left);
    at = chart.x.reduce((best, value, n) =>
      Math.abs(value - wanted) < Math.abs(chart.x[best] - wanted) ? n : best, 0);
    show(event);
  };
  followed(svg, follow, hide);
  followKeys(svg, (right) => {
    if (!right) return false;
    at = Math.min(chart.x.length - 1, Math.max(0, at + right));
    show(placeIn(svg, x(chart.x[at]), 20));
    return true;
  }, hide);
}
