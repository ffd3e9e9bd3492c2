// Curves, bars, heat maps and histograms, each an SVG.

function drawPlot(plot) {
  const upstream = new Set(plot.curves.map(curve => curve.dy));
  return make("div", "plot", ...[...upstream].map(dy => {
    const curves = plot.curves.filter(curve => curve.dy === dy);
    const caption = dy === null ? "dx over dy" : `dx over x, where dy = ${dy}`;
    return captioned(drawCurves(curves, plot), caption);
  }));
}

const captioned = (picture, title) => make("figure", "", picture, make("figcaption", "", title));

// A picture of its own coordinates, with what it shows in words.
function drawing(width, height, className, words, ...parts) {
  const viewBox = `0 0 ${width} ${height}`;
  return svg("svg", { viewBox, class: className, role: "img", "aria-label": words }, ...parts);
}

function drawCurves(curves, { axis, low, high }) {
  const W = 210, H = 130, P = 16;
  const values = curves.flatMap(curve => (curve.points || []).map(point => point[1]));
  const top = Math.max(1.2, ...values.map(Math.abs)) * 1.05;
  const x = v => P + (v - low) / (high - low) * (W - 2 * P);
  const y = v => H / 2 - v / top * (H / 2 - 10);
  const path = (d, className) => svg("path", { d, class: className });
  const words = curves.map(({ side, points }) => `${side}: ${points ? "a curve" : "None"}`);
  const none = curves.filter(curve => !curve.points);
  return drawing(
    W, H, "curves", words.join(", "),
    path(`M${P} ${y(0)}H${W - P}M${x(0)} 8V${H - 8}`, "axis"),
    ...[low, high].map(v => drawText(x(v), y(0) + 11, v, "tick")),
    ...[-1, 1].flatMap(v => [
      path(`M${x(0) - 3} ${y(v)}h6`, "axis"), drawText(x(0) - 9, y(v) + 3, v, "tick"),
    ]),
    drawText(W - 8, y(0) - 4, axis, "tick"),
    ...curves.filter(curve => curve.points).map(({ side, points }) => {
      const corners = points.map(([a, b]) => `${x(a).toFixed(1)} ${y(b).toFixed(1)}`);
      return path(`M${corners.join("L")}`, `curve ${side}`);
    }),
    ...none.map(({ side }, at) =>
      drawText(W / 2, 14 + 12 * at, `${side}: None`, `none ${side}`)),
  );
}

// The size of the gradient at a line: a bar for each side, on one logarithmic scale; or the room
// for it, where it was not run.
function drawBars(sizes, { least, most }, sides) {
  if (!sizes) return make("span", "bars none-run");
  const W = 84, low = Math.log10(least), high = Math.log10(most), isTwo = sides.length > 1;
  const words = sides.map(
    side => `${isTwo ? `${SIDE_NAMES[side]} ` : ""}${sizeInWords(sizes[side])}`);
  const title = `largest |gradient|: ${words.join(", ")}`;
  const attributes = { width: W, height: HEIGHT, class: "bars", role: "img", "aria-label": title };
  return svg("svg", attributes, ...sides.map((side, at) => {
    const size = sizes[side], y = isTwo ? 5 + 9 * at : 9;
    const share = high > low ? 0.08 + 0.92 * (Math.log10(size) - low) / (high - low) : 1;
    const width = Math.max(2, W * share), className = `size s${isTwo ? side : 1}`;
    if (typeof size === "string" || size === 0) {
      return drawText(2, y + 7, size, size === 0 ? "zero" : "nan", "start");
    }
    return size ? svg("rect", { x: 0, y, height: 6, width, class: className }) : "";
  }), svg("title", {}, title));
}

function sizeInWords(size) {
  if (size === null || size === undefined) return "None";
  return typeof size === "string" ? size : size === 0 ? "0" : size.toPrecision(3);
}

// A heat map: numbers from 0 to 255 row by row, in 16 inks, the first of them none; each is a path.
function drawHeat({ values, width, height, title }) {
  const inks = Array(16).fill("");
  values.forEach((value, at) => {
    inks[value >> 4] += `M${at % width} ${Math.floor(at / width)}h1v1h-1z`;
  });
  const path = (d, ink) => d && ink ? svg("path", { d, "fill-opacity": ink / 15 }) : "";
  return drawing(width, height, "heat", title, ...inks.map(path));
}

function drawHistogram({ counts, low, high, title }) {
  const W = 160, H = 90, most = Math.max(...counts, 1), wide = W / counts.length;
  const bars = counts.map((count, at) => {
    const height = count ? Math.max(1, count / most * H) : 0;
    return svg("rect", { x: at * wide, y: H - height, width: wide - 1, height });
  });
  return drawing(
    W, H + 14, "histogram", title, ...bars,
    drawText(0, H + 11, low.toPrecision(2), "tick", "start"),
    drawText(W, H + 11, high.toPrecision(2), "tick", "end"),
  );
}

const PICTURES = {
  heat: drawHeat,
  histogram: drawHistogram,
  number: ({ value }) => make("div", "nothing", value),
  nothing: ({ says }) => make("div", "nothing", says),
};

const drawPicture = picture => captioned(PICTURES[picture.kind](picture), picture.title);
