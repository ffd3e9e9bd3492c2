// Curves, bars, heat maps and histograms, each an SVG.

function drawPlot(plot) {
  const group = make("div", "plot");
  for (const dy of new Set(plot.curves.map(curve => curve.dy))) {
    const curves = plot.curves.filter(curve => curve.dy === dy);
    const caption = dy === null ? "dx over dy" : `dx over x, where dy = ${dy}`;
    group.append(captioned(drawCurves(curves, plot), caption));
  }
  return group;
}

const captioned = (picture, title) => make("figure", "", picture, make("figcaption", "", title));

function drawCurves(curves, { axis, low, high }) {
  const W = 210, H = 130, P = 16;
  const values = curves.flatMap(curve => (curve.points || []).map(point => point[1]));
  const top = Math.max(1.2, ...values.map(Math.abs)) * 1.05;
  const x = v => P + (v - low) / (high - low) * (W - 2 * P);
  const y = v => H / 2 - v / top * (H / 2 - 10);
  const line = (d, className) => svg("path", { d, class: className });
  const words = curves.map(({ side, points }) => `${side}: ${points ? "a curve" : "None"}`);
  const picture = svg("svg", {
    viewBox: `0 0 ${W} ${H}`, role: "img", class: "curves", "aria-label": words.join(", "),
  });
  picture.append(line(`M${P} ${y(0)}H${W - P}M${x(0)} 8V${H - 8}`, "axis"));
  for (const v of [low, high]) picture.append(drawText(x(v), y(0) + 11, v, "tick"));
  for (const v of [-1, 1]) {
    picture.append(line(`M${x(0) - 3} ${y(v)}h6`, "axis"), drawText(x(0) - 9, y(v) + 3, v, "tick"));
  }
  picture.append(drawText(W - 8, y(0) - 4, axis, "tick"));
  for (const { side, points } of curves.filter(curve => curve.points)) {
    const corners = points.map(([a, b]) => `${x(a).toFixed(1)} ${y(b).toFixed(1)}`);
    picture.append(line(`M${corners.join("L")}`, `curve ${side}`));
  }
  const none = curves.filter(curve => !curve.points);
  none.forEach(({ side }, at) => {
    picture.append(drawText(W / 2, 14 + 12 * at, `${side}: None`, `none ${side}`));
  });
  return picture;
}

// The size of the gradient at a line: a bar for each side, on one logarithmic scale.
function drawBars(sizes, { least, most }, sides) {
  const W = 84, cell = svg("svg", { width: W, height: HEIGHT, class: "bars", role: "img" });
  const low = Math.log10(least), high = Math.log10(most), isTwo = sides.length > 1;
  const words = sides.map((side, at) => {
    const size = sizes[side], y = isTwo ? 5 + 9 * at : 9;
    const share = high > low ? 0.08 + 0.92 * (Math.log10(size) - low) / (high - low) : 1;
    const width = Math.max(2, W * share), className = `size s${isTwo ? side : 1}`;
    if (typeof size === "string" || size === 0) {
      cell.append(drawText(2, y + 7, size, size === 0 ? "zero" : "nan", "start"));
    } else if (size) cell.append(svg("rect", { x: 0, y, height: 6, width, class: className }));
    return `${isTwo ? `${SIDE_NAMES[side]} ` : ""}${sizeInWords(size)}`;
  });
  const title = `largest |gradient|: ${words.join(", ")}`;
  cell.setAttribute("aria-label", title);
  cell.append(svg("title", {}, title));
  return cell;
}

function sizeInWords(size) {
  if (size === null || size === undefined) return "None";
  return typeof size === "string" ? size : size === 0 ? "0" : size.toPrecision(3);
}

// A heat map: numbers from 0 to 255 row by row, in 16 inks, the first of them none; each is a path.
function drawHeat({ values, width, height, title }) {
  const inks = Array.from({ length: 16 }, () => "");
  values.forEach((value, at) => {
    inks[value >> 4] += `M${at % width} ${Math.floor(at / width)}h1v1h-1z`;
  });
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, class: "heat", role: "img", "shape-rendering": "crispEdges",
    "aria-label": title,
  });
  inks.forEach((path, ink) => {
    if (path && ink) picture.append(svg("path", { d: path, "fill-opacity": ink / 15 }));
  });
  return picture;
}

function drawHistogram({ counts, low, high, title }) {
  const W = 160, H = 90, most = Math.max(...counts, 1), wide = W / counts.length;
  const picture = svg("svg", {
    viewBox: `0 0 ${W} ${H + 14}`, class: "histogram", role: "img", "aria-label": title,
  });
  counts.forEach((count, at) => {
    const height = count ? Math.max(1, count / most * H) : 0;
    picture.append(svg("rect", { x: at * wide, y: H - height, width: wide - 1, height }));
  });
  picture.append(drawText(0, H + 11, low.toPrecision(2), "tick", "start"));
  picture.append(drawText(W, H + 11, high.toPrecision(2), "tick", "end"));
  return picture;
}

const PICTURES = {
  heat: drawHeat,
  histogram: drawHistogram,
  number: ({ value }) => make("div", "nothing", value),
  nothing: ({ says }) => make("div", "nothing", says),
};

const drawPicture = picture => captioned(PICTURES[picture.kind](picture), picture.title);
