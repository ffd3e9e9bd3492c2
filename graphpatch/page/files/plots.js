"use strict";

// Curves, bars, heat maps and histograms, each an SVG.

function drawPlot(plot) {
  const group = make("div", "plot");
  for (const dy of new Set(plot.curves.map(curve => curve.dy))) {
    const curves = plot.curves.filter(curve => curve.dy === dy);
    group.append(make("figure", "", drawCurves(curves, plot), make("figcaption", "", dy === null ? "dx over dy" : `dx over x, where dy = ${dy}`)));
  }
  return group;
}

function drawCurves(curves, { axis, low, high }) {
  const W = 210, H = 130, P = 16;
  const values = curves.flatMap(curve => (curve.points || []).map(point => point[1]));
  const top = Math.max(1.2, ...values.map(Math.abs)) * 1.05;
  const x = v => P + (v - low) / (high - low) * (W - 2 * P), y = v => H / 2 - v / top * (H / 2 - 10);
  const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", class: "curves", "aria-label": curves.map(curve => `${curve.side}: ${curve.points ? "a curve" : "None"}`).join(", ") });
  picture.append(svg("path", { d: `M${P} ${y(0)}H${W - P}M${x(0)} 8V${H - 8}`, class: "axis" }));
  for (const v of [low, high]) picture.append(text(x(v), y(0) + 11, v, "tick"));
  for (const v of [-1, 1]) picture.append(svg("path", { d: `M${x(0) - 3} ${y(v)}h6`, class: "axis" }), text(x(0) - 9, y(v) + 3, v, "tick"));
  picture.append(text(W - 8, y(0) - 4, axis, "tick"));
  const none = [];
  for (const curve of curves) {
    if (!curve.points) { none.push(curve.side); continue; }
    const d = curve.points.map(([a, b], place) => `${place ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
    picture.append(svg("path", { d, class: `curve ${curve.side}` }));
  }
  none.forEach((side, place) => picture.append(text(W / 2, 14 + 12 * place, `${side}: None`, `none ${side}`)));
  return picture;
}

function text(x, y, words, className) {
  return svg("text", { x, y, class: className, "text-anchor": "middle" }, String(words));
}

// The size of the gradient at a line: a bar for each side, on one logarithmic scale.
function drawBars(sizes, { least, most }, sides) {
  const W = 84, cell = svg("svg", { width: W, height: HEIGHT, class: "bars", role: "img" });
  const low = Math.log10(least), high = Math.log10(most), isTwo = sides.length > 1;
  const words = sides.map((side, place) => {
    const size = sizes[side], y = isTwo ? 5 + 9 * place : 9, name = isTwo ? ["before ", "after "][side] : "";
    const share = high > low ? 0.08 + 0.92 * (Math.log10(size) - low) / (high - low) : 1;
    if (typeof size === "string" || size === 0) cell.append(svg("text", { x: 2, y: y + 7, class: size === 0 ? "zero" : "nan" }, String(size)));
    else if (size) cell.append(svg("rect", { x: 0, y, height: 6, width: Math.max(2, W * share), class: `size s${isTwo ? side : 1}` }));
    return `${name}${sizeInWords(size)}`;
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

// A heat map: numbers from 0 to 255 row by row, in 16 inks; each ink is one path.
function drawHeat(map) {
  const inks = Array.from({ length: 16 }, () => "");
  map.values.forEach((value, place) => { inks[value >> 4] += `M${place % map.width} ${Math.floor(place / map.width)}h1v1h-1z`; });
  inks[0] = ""; // no ink
  const picture = svg("svg", { viewBox: `0 0 ${map.width} ${map.height}`, class: "heat", role: "img", "shape-rendering": "crispEdges", "aria-label": map.title });
  inks.forEach((path, ink) => { if (path) picture.append(svg("path", { d: path, "fill-opacity": ink / 15 })); });
  return picture;
}

function drawHistogram({ counts, low, high, title }) {
  const W = 160, H = 90, most = Math.max(...counts, 1);
  const picture = svg("svg", { viewBox: `0 0 ${W} ${H + 14}`, class: "histogram", role: "img", "aria-label": title });
  counts.forEach((count, place) => {
    const height = count ? Math.max(1, count / most * H) : 0;
    picture.append(svg("rect", { x: place * W / counts.length, y: H - height, width: W / counts.length - 1, height }));
  });
  picture.append(svg("text", { x: 0, y: H + 11, class: "tick" }, low.toPrecision(2)), svg("text", { x: W, y: H + 11, class: "tick", "text-anchor": "end" }, high.toPrecision(2)));
  return picture;
}

function drawPicture(picture) {
  const { kind, title } = picture;
  const drawn = kind === "heat" ? drawHeat(picture) : kind === "histogram" ? drawHistogram(picture) : make("div", "nothing", picture.value || picture.says);
  return make("figure", "", drawn, make("figcaption", "", title));
}
