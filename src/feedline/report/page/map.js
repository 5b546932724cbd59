// From dark to bright, even to the eye, and told apart without red and green.
const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

function rampColour(share) {
  const place = Math.min(1, Math.max(0, share)) * (RAMP.length - 1);
  const at = Math.min(RAMP.length - 2, Math.floor(place));
  const mixed = RAMP[at].map((value, n) => Math.round(value + (RAMP[at + 1][n] - value) * (place - at)));
  return `rgb(${mixed.join(" ")})`;
}

function drawMap(chart) {
  const state = { layer: 0 };
  const key = make("div");
  const select = make("select", { "aria-label": "Colour by", onchange: () => {
    state.layer = select.selectedIndex;
    showKey();
    document.dispatchEvent(new Event("repaint"));
  } }, ...chart.layers.map((layer) => make("option", {}, layer.name)));
  const showKey = () => key.replaceChildren(keyOf(chart.layers[state.layer]));
  showKey();
  const before = chart.layers.length > 1 ? [make("label", { class: "bar" }, "Colour by", select), key] : [key];
  const rows = () => [[chart.column_label, chart.row_label, ...chart.layers.map((layer) => layer.name)],
    ...chart.columns.flatMap((column, c) => chart.rows.map((row, r) =>
      [column, row, ...chart.layers.map((layer) => layerText(layer, layer.values[r][c], true))]))];
  return frame(chart, (plot, width) => paintMap(plot, width, chart, chart.layers[state.layer]), rows, before);
}

function layerText(layer, value, isPlain = false) {
  if (layer.categories.length && value !== null) return layer.categories[value];
  return isPlain ? value : shown(value, layer.format);
}

function rangeOf(layer) {
  const known = layer.values.flat().filter((value) => value !== null);
  return known.length ? [Math.min(...known), Math.max(...known)] : [0, 0];
}

function keyOf(layer) {
  if (layer.categories.length) {
    return legend(layer.categories.slice(0, 12).map((name, n) => [name, n, "box"]));
  }
  const [low, high] = rangeOf(layer);
  if (low === high) return make("ul", { class: "legend" }, make("li", {}, `${layer.name}: ${shown(low, layer.format)} everywhere`));
  const stops = RAMP.map((_, n) => rampColour(n / (RAMP.length - 1))).join(", ");
  return make("ul", { class: "legend" }, make("li", {}, shown(low, layer.format),
    make("span", { class: "ramp", css: { background: `linear-gradient(to right, ${stops})` } }), shown(high, layer.format)));
}

function paintMap(plot, width, chart, layer) {
  const labels = chart.rows.map((row) => shownShort(row));
  const left = Math.max(...labels.map(textWidth)) + 8;
  const high = Math.max(4, Math.min(20, Math.floor(300 / chart.rows.length)));
  const top = chart.groups.length ? 20 : 4;
  const box = { left, right: width - 2, top, bottom: top + high * chart.rows.length, width };
  const wide = (box.right - box.left) / chart.columns.length;
  const canvas = paintCells(box, chart, layer, wide, high);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${box.bottom + 38}`, height: box.bottom + 38, role: "img",
    "aria-label": `${chart.title}: ${layer.name} by ${chart.row_label} and ${chart.column_label}` });
  const step = Math.max(1, Math.ceil(16 / high));
  labels.forEach((text, row) => {
    if (row % step) return;
    svg.append(draw("text", { class: "tick", x: left - 6, y: box.top + high * row + high / 2 + 4, "text-anchor": "end" }, text));
  });
  const centre = (column) => box.left + wide * (column + 0.5);
  const many = Math.max(2, Math.floor(width / 90));
  const every = Math.max(1, Math.ceil(chart.columns.length / many));
  labelsBelow(svg, chart.columns.map((value, n) => [centre(n), shownShort(value), n])
    .filter(([, , n]) => n % every === 0), width, box.bottom + 16);
  svg.append(draw("text", { class: "label", x: (box.left + box.right) / 2, y: box.bottom + 33, "text-anchor": "middle" },
    `${chart.column_label} (down: ${chart.row_label})`));
  paintMarks(svg, { ...box, top: 14 }, (at) => box.left + wide * at, chart.groups);
  followCells(svg, box, chart, wide, high);
  fill(canvas, { css: { position: "absolute", left: "0", top: "0" } }, []);
  fill(svg, { css: { position: "relative" } }, []);
  plot.append(canvas, svg);
}

function paintCells(box, chart, layer, wide, high) {
  const canvas = make("canvas");
  const sharp = window.devicePixelRatio || 1;
  [canvas.width, canvas.height] = [box.width * sharp, box.bottom * sharp];
  canvas.style.height = `${box.bottom}px`;
  const pen = canvas.getContext("2d");
  pen.scale(sharp, sharp);
  const [low, top] = rangeOf(layer);
  const gap = wide > 6 && high > 6 ? 1 : 0;
  layer.values.forEach((cells, row) => cells.forEach((value, column) => {
    if (value === null) return;
    pen.globalAlpha = chart.is_faded[column] ? 0.25 : 1;
    pen.fillStyle = layer.categories.length ? cssValue(`--series-${value % NUM_COLOURS}`)
      : rampColour(top === low ? 0.5 : (value - low) / (top - low));
    // Whole pixels, or seams would show between cells.
    const [x, end] = [column, column + 1].map((n) => Math.round((box.left + wide * n) * sharp) / sharp);
    pen.fillRect(x, box.top + high * row, end - x - gap, high - gap);
  }));
  return canvas;
}

function followCells(svg, box, chart, wide, high) {
  const outline = draw("rect", { fill: "none", width: wide, height: high, visibility: "hidden", "stroke-width": 2,
    css: { stroke: "var(--hover)" } });
  svg.append(outline);
  const follow = (event) => {
    const { left, top } = svg.getBoundingClientRect();
    const column = Math.floor((event.clientX - left - box.left) / wide);
    const row = Math.floor((event.clientY - top - box.top) / high);
    const isInside = chart.columns[column] !== undefined && chart.rows[row] !== undefined;
    if (!isInside || chart.layers.every((layer) => layer.values[row][column] === null)) { hide(); return; }
    fill(outline, { x: box.left + wide * column, y: box.top + high * row, visibility: "visible" }, []);
    const title = `${chart.column_label} ${shown(chart.columns[column])}, ${chart.row_label} ${shown(chart.rows[row])}`;
    const rows = chart.layers.map((layer) => [layer.name, layerText(layer, layer.values[row][column])]);
    if (chart.is_faded[column]) rows.push(["counts", "no"]);
    showTip(event, title, rows);
  };
  const hide = () => { hideTip(); outline.setAttribute("visibility", "hidden"); };
  svg.addEventListener("pointermove", follow);
  svg.addEventListener("pointerdown", follow);
  svg.addEventListener("pointerleave", hide);
}
