// Elements, numbers for people, colours. Text is always set as text, so no name can become markup.
const SVG = "http://www.w3.org/2000/svg";
const NUM_COLOURS = 8;

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "css") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function cssValue(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function seriesColour(number) {
  return `var(--series-${number % NUM_COLOURS})`;
}

function asNumber(value) {
  if (Math.abs(value) >= 1e15) return value.toExponential(3);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const digits = Math.abs(value) >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 4 };
  return value.toLocaleString("en", digits);
}

function asShare(value) {
  return `${(100 * value).toLocaleString("en", { maximumSignificantDigits: 4 })} %`;
}

function asSeconds(value) {
  const [factor, unit] = value === 0 || value >= 1 ? [1, "s"] : value >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  return `${(factor * value).toLocaleString("en", { maximumSignificantDigits: 3 })} ${unit}`;
}

function shown(value, format = "number") {
  if (value === null || value === undefined) return "none";
  if (typeof value !== "number") return String(value);
  return { number: asNumber, share: asShare, seconds: asSeconds }[format](value);
}

// Short enough for an axis.
function shownShort(value, format = "number") {
  if (format !== "number" || Math.abs(value) < 10000) return shown(value, format);
  if (Math.abs(value) >= 1e15) return value.toExponential(0);
  return value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 3 });
}

// Labels of an axis: short, unless different values would look the same.
function shownTogether(values, format = "number") {
  const short = values.map((value) => shownShort(value, format));
  const isTold = new Set(short).size === new Set(values).size;
  return isTold ? short : values.map((value) => shown(value, format));
}

function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = make("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function asCsv(rows) {
  const quoted = (value) => {
    let text = value === null || value === undefined ? "" : String(value);
    // A spreadsheet would take such a text for a formula, some also behind spaces or in wide signs.
    if (typeof value !== "number" && /^\s*[=+\-@＝＋－＠]|^[\t\r\n]/.test(text)) text = `'${text}`;
    return /[",;\t\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(quoted).join(",")).join("\n") + "\n";
}
