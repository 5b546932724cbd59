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
    if (layer.categories.length <= NUM_COLOURS) return legend(layer.categories.map((name, n) => [name, n, "box"]));
    return rampKey(layer.categories[0], layer.categories.at(-1));
  }
  const [low, high] = rangeOf(layer);
  if (low === high) return make("ul", { class: "legend" }, make("li", {}, `${layer.name}: ${shown(low, layer.format)} everywhere`));
  return rampKey(shown(low, layer.format), shown(high, layer.format));
}

function rampKey(low, high) {
  const stops = RAMP.map((_, n) => rampColour(n / (RAMP.length - 1))).join(", ");
  return make("ul", { class: "legend" }, make("li", {}, low,
    make("span", { class: "ramp", css: { background: `linear-gradient(to right, ${stops})` } }), high));
}

function paintMap(plot, width, chart, layer) {
  const labels = shownTogether(chart.rows);
  const left = Math.max(...labels.map(textWidth)) + 8;
  const high = Math.max(4, Math.min(20, Math.floor(300 / chart.rows.length)));
  const top = chart.groups.length ? 20 : 4;
  const box = { left, right: width - 2, top, bottom: top + high * chart.rows.length, width };
  const wide = (box.right - box.left) / chart.columns.length;
  const canvas = paintCells(box, chart, layer, wide, high);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${box.bottom + 38}`, height: box.bottom + 38, role: "img", tabindex: 0,
    "aria-label": `${chart.title}: ${layer.name} by ${chart.row_label} and ${chart.column_label}` });
  const step = Math.max(1, Math.ceil(16 / high));
  labels.forEach((text, row) => {
    if (row % step) return;
    svg.append(draw("text", { class: "tick", x: left - 6, y: box.top + high * row + high / 2 + 4, "text-anchor": "end" }, text));
  });
  const centre = (column) => box.left + wide * (column + 0.5);
  const many = Math.max(2, Math.floor(width / 90));
  const every = Math.max(1, Math.ceil(chart.columns.length / many));
  const listed = chart.columns.map((_, n) => n).filter((n) => n % every === 0);
  const texts = shownTogether(listed.map((n) => chart.columns[n]));
  labelsBelow(svg, listed.map((column, n) => [centre(column), texts[n]]), width, box.bottom + 16);
  labelOf(svg, box, `${chart.column_label} (down: ${chart.row_label})`);
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
  // More categories than colours are told apart by their place in the list.
  const isPalette = layer.categories.length > 0 && layer.categories.length <= NUM_COLOURS;
  const [low, top] = layer.categories.length ? [0, layer.categories.length - 1] : rangeOf(layer);
  const gap = wide > 6 && high > 6 ? 1 : 0;
  layer.values.forEach((cells, row) => cells.forEach((value, column) => {
    if (value === null) return;
    pen.globalAlpha = chart.is_faded[column] ? 0.25 : 1;
    pen.fillStyle = isPalette ? cssValue(`--series-${value}`) : rampColour(top === low ? 0.5 : (value - low) / (top - low));
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
  let [column, row] = [0, 0];
  const isInside = () => chart.columns[column] !== undefined && chart.rows[row] !== undefined;
  const follow = (event) => {
    const { left, top } = svg.getBoundingClientRect();
    column = Math.floor((event.clientX - left - box.left) / wide);
    row = Math.floor((event.clientY - top - box.top) / high);
    if (!isInside() || chart.layers.every((layer) => layer.values[row][column] === null)) hide();
    else show(event);
  };
  const show = (event) => {
    fill(outline, { x: box.left + wide * column, y: box.top + high * row, visibility: "visible" }, []);
    const title = `${chart.column_label} ${shown(chart.columns[column])}, ${chart.row_label} ${shown(chart.rows[row])}`;
    const rows = chart.layers.map((layer) => [layer.name, layerText(layer, layer.values[row][column])]);
    if (chart.is_faded[column]) rows.push(["counts", "no"]);
    showTip(event, title, rows);
  };
  const hide = () => { hideTip(); outline.setAttribute("visibility", "hidden"); };
  followed(svg, follow, hide);
  followKeys(svg, (right, down) => {
    const last = [chart.columns.length - 1, chart.rows.length - 1];
    [column, row] = [column + right, row + down].map((at, n) => Math.min(last[n], Math.max(0, at)));
    show(placeIn(svg, box.left + wide * (column + 0.5), box.top + high * row));
    return true;
  }, hide);
}
