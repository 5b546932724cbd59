({
  // Text in a picture that is cut off at its edge, labels that touch, and text outside of the page.
  misplaced() {
    const found = [];
    const add = (what, ...elements) => found.push(`${what}: ${elements.map((one) => one.textContent).join(" / ")}`);
    for (const svg of document.querySelectorAll("svg")) {
      const edge = svg.getBoundingClientRect();
      const boxes = [...svg.querySelectorAll("text")].map((text) => [text, text.getBoundingClientRect()]);
      boxes.forEach(([text, box], number) => {
        const isWide = box.left < edge.left - 1 || box.right > edge.right + 1;
        if (isWide || box.top < edge.top - 2 || box.bottom > edge.bottom + 1) add("cut", text);
        for (const [other, next] of boxes.slice(number + 1)) {
          const width = Math.min(box.right, next.right) - Math.max(box.left, next.left);
          const height = Math.min(box.bottom, next.bottom) - Math.max(box.top, next.top);
          if (width > 1 && height > 4) add("touch", text, other);
        }
      });
    }
    const texts = "h1, h2, p, dt, dd, figcaption *, .legend li, .names > *, nav a, button, select";
    for (const one of document.querySelectorAll(texts)) {
      const box = one.getBoundingClientRect();
      if (box.right > document.documentElement.clientWidth + 1 || box.left < -1) add("outside", one);
      const isBlock = getComputedStyle(one).display !== "inline" && one.clientWidth;
      if (isBlock && one.scrollWidth > one.clientWidth + 1) add("too long", one);
    }
    return found;
  },

  // The number of colours of a map.
  numColours(figure) {
    const canvas = figure.querySelector("canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const colours = new Set();
    for (let at = 0; at < data.length; at += 4) {
      if (data[at + 3]) colours.add(data.slice(at, at + 3).join());
    }
    return colours.size;
  },
})
