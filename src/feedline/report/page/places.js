// Charts of places: points, and stretches of steps.
function drawScatter(chart) {
  const rows = () => [["series", chart.x_label, chart.y_label],
    ...chart.points.flatMap((points, n) => points.map(([x, y]) => [chart.names[n], x, y]))];
  const keys = chart.names.length > 1 ? [legend(chart.names.map((name, n) => [name, n, "box"]))] : [];
  return frame(chart, (plot, width) => {
    const box = { left: 48, right: width - 12, top: 24, bottom: 190, width };
    const [x, y] = [scale(0, 1, box.left, box.right), scale(0, 1, box.bottom, box.top)];
    y.ticks = [0, 0.5, 1];
    const svg = draw("svg", { viewBox: `0 0 ${width} 228`, height: 228, role: "img",
      "aria-label": `${chart.title}: ${chart.y_label} over ${chart.x_label}` });
    for (const value of y.ticks) {
      svg.append(draw("line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }));
      svg.append(draw("text", { class: "tick", x: box.left - 6, y: y(value) + 4, "text-anchor": "end" }, asShare(value)));
    }
    labelsBelow(svg, [0, 0.25, 0.5, 0.75, 1].map((value) => [x(value), asShare(value)]), width, box.bottom + 16);
    svg.append(draw("text", { class: "label", x: box.left, y: 12 }, fitted(chart.y_label, width - box.left)));
    labelOf(svg, box, chart.x_label);
    const dots = chart.points.flatMap((points, n) => points.map(([px, py]) => ({ n, px, py, x: x(px), y: y(py) })));
    for (const dot of dots) {
      svg.append(draw("circle", { cx: dot.x.toFixed(1), cy: dot.y.toFixed(1), r: 1.7, opacity: 0.75,
        css: { fill: seriesColour(dot.n) } }));
    }
    const follow = (event) => {
      const { left, top } = svg.getBoundingClientRect();
      const [ex, ey] = [event.clientX - left, event.clientY - top];
      const far = (dot) => (dot.x - ex) ** 2 + (dot.y - ey) ** 2;
      const near = dots.reduce((best, dot) => (far(dot) < far(best) ? dot : best), dots[0]);
      if (!near || far(near) > 200) { hideTip(); return; }
      showTip(event, chart.names[near.n], [[chart.x_label, asShare(near.px)], [chart.y_label, asShare(near.py)]]);
    };
    followed(svg, follow);
    plot.append(svg);
  }, rows, keys);
}

function drawTimeline(chart) {
  const rows = () => [["name", "note", "from step", "counted to", "to step"],
    ...chart.spans.map((span) => [span.name, span.note, span.start, span.counted_end, span.end]),
    ...chart.spans.flatMap((span) => span.marks.map((mark) => [span.name, mark.label, mark.x, "", ""]))];
  return frame(chart, (plot, width) => {
    const [first, last] = [Math.min(...chart.spans.map((s) => s.start)), Math.max(...chart.spans.map((s) => s.end))];
    const box = { left: 2, right: width - 2, top: 0, bottom: 44 * chart.spans.length, width };
    const x = scale(first, last, box.left, box.right);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${box.bottom + 38}`, height: box.bottom + 38, role: "img",
      "aria-label": `${chart.title}: ${chart.spans.map((s) => `${s.name} on ${s.note}, steps ${s.start} to ${s.end - 1}`).join("; ")}` });
    chart.spans.forEach((span, row) => paintSpan(svg, box, x, span, 44 * row));
    const listed = wholeTicks(first, last, Math.max(2, width / 80));
    const labels = shownTogether(listed);
    labelsBelow(svg, listed.map((value, n) => [x(value), labels[n]]), width, box.bottom + 16);
    labelOf(svg, box, chart.x_label);
    plot.append(svg);
  }, rows);
}

function paintSpan(svg, box, x, span, top) {
  const bar = (from, to, opacity) => draw("rect", { x: x(from), y: top + 20, width: Math.max(1, x(to) - x(from)),
    height: 16, rx: 2, opacity, css: { fill: "var(--series-0)" } });
  const about = [["steps", `${shown(span.start)} to ${shown(span.end - 1)}`], ["", span.note]];
  if (span.counted_end < span.end) about.push(["discarded", `from ${shown(span.counted_end)} on`]);
  const group = draw("g", {}, bar(span.start, span.counted_end, 0.85));
  if (span.counted_end < span.end) group.append(bar(span.counted_end, span.end, 0.25));
  followed(group, (event) => showTip(event, span.name, about));
  const text = fitted(`${span.name}: ${span.note}`, box.right - box.left);
  const start = Math.max(box.left, Math.min(x(span.start), box.width - textWidth(text)));
  svg.append(draw("text", { class: "strong", x: start, y: top + 14 }, text), group);
  for (const mark of span.marks) {
    const at = Math.min(box.right - 4, Math.max(box.left + 4, x(mark.x)));
    const tick = draw("path", { d: `M${at - 4} ${top + 41}h8l-4 -7z`, css: { fill: "var(--ink)" } });
    followed(tick, (event) => showTip(event, mark.label, [["step", shown(mark.x)]]));
    svg.append(tick);
  }
}
