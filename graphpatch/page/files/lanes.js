"use strict";

// The lanes at the left. A lane leads from the first row that reads an op down to the op's own row,
// in the op's column; all that read it join the same lane, as branches do in `git log --graph`.

const HEIGHT = 26, MIDDLE = HEIGHT / 2; // of a row of one line of text
const SVG = "http://www.w3.org/2000/svg";
const MOST_LANES = 8; // columns; more lanes run together in the last one

// For each side of a part: the lanes between its rows, and the column of each row.
function layOut(part) {
  const { lines, group, sideCount } = part.body;
  part.sides = Array.from({ length: sideCount }, (_, side) => {
    const byProducer = new Map(), starts = new Map();
    for (const line of lines) for (const [producer, flow] of line.sides[side].edges) {
      const from = part.at[line.row], to = part.at[producer.row];
      if (to <= from || producer.row >= group) continue; // in a folded scope, a loop's way back, a variable
      if (!byProducer.has(to)) byProducer.set(to, { from, to, column: 0, joins: [] });
      const lane = byProducer.get(to);
      lane.joins.push([from, flow]);
      if (!starts.has(from)) starts.set(from, []);
      starts.get(from).push(lane);
    }
    const knots = new Map(), begun = new Set(), free = []; // the columns that are free, the leftmost first
    let width = 0;
    const take = wanted => free.length ? free.splice(Math.max(free.indexOf(wanted), 0), 1)[0] : width++;
    part.at.forEach((index, row) => {
      if (knots.has(index) || !flowAt(lines[row], side) || row >= group) return;
      const lane = byProducer.get(index), column = lane ? lane.column : take();
      knots.set(index, column);
      free.splice(before(free, column), 0, column);
      for (const starting of starts.get(index) || []) {
        if (!begun.has(starting)) starting.column = take(column);
        begun.add(starting);
      }
    });
    return { knots, lanes: [...byProducer.values()], width: Math.max(width, 1) };
  });
}

// What flows in a lane at a row: the most of what has joined it, above the row or also at it.
const flowIn = (lane, row, isIncluded) => Math.max(0, ...lane.joins.filter(([from]) => from < row || (isIncluded && from === row)).map(([, flow]) => flow));

function svg(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// The lanes of one row as an SVG, as tall as the row is; columns lie `pitch` pixels apart.
function drawLanes(shownRow, side, lanes, flow, pitch, height) {
  const at = column => (Math.min(column, MOST_LANES - 1) + 0.5) * pitch + 2;
  const picture = svg("svg", { width: Math.min(side.width, MOST_LANES) * pitch + 4, height, "aria-hidden": "true" });
  const row = shownRow.index, knot = side.knots.get(row);
  const isKnot = ["line", "folded"].includes(shownRow.kind) && knot !== undefined && flow > 0;
  const draw = (path, flows) => picture.append(svg("path", { d: path, class: `lane f${flows}` }));
  const x = isKnot ? at(knot) : 0;
  let together = 0;
  for (const lane of lanes.filter(({ from, to }) => from <= row && row <= to)) {
    const lx = at(lane.column);
    if (lane.from < row && row < lane.to) {
      together += lane.column >= MOST_LANES - 1;
      draw(`M${lx} 0V${height}`, flowIn(lane, row, false));
    }
    if (!isKnot) continue;
    if (row === lane.to) draw(lx === x ? `M${x} 0V${MIDDLE}` : `M${lx} 0C${lx} ${MIDDLE} ${x} 2 ${x} ${MIDDLE}`, flowIn(lane, row, false));
    for (const [from, flows] of row < lane.to ? lane.joins : []) {
      if (from === row) draw(lx === x ? `M${x} ${MIDDLE}V${height}` : `M${x} ${MIDDLE}C${x} ${HEIGHT - 2} ${lx} ${MIDDLE} ${lx} ${HEIGHT}V${height}`, flows || flowIn(lane, row, true));
    }
  }
  if (together > 1) {
    picture.append(svg("path", { d: `M${at(MOST_LANES)} 0V${height}`, class: "lane together" }));
    picture.append(svg("text", { x: at(MOST_LANES), y: MIDDLE + 3, class: "tick", "text-anchor": "middle" }, String(together)));
  }
  if (isKnot) picture.append(drawKnot(x, flow, shownRow.kind === "folded"));
  return picture;
}

// A knot: its form says what flows, so that the colour need not.
function drawKnot(x, flow, isFolded) {
  const y = MIDDLE, circle = (r, className) => svg("circle", { cx: x, cy: y, r, class: className }), path = (d, className) => svg("path", { d, class: className });
  const forms = {
    [Flow.NONE]: () => [circle(3, "hollow")],
    [Flow.ZERO]: () => [circle(4, "hollow"), circle(1.2, "")],
    [Flow.FULL]: () => [circle(4, "")],
    [Flow.CHANGED]: () => [path(`M${x} ${y - 5.5}L${x + 5.5} ${y}L${x} ${y + 5.5}L${x - 5.5} ${y}Z`, "")],
    [Flow.BLOCKED]: () => [circle(6.5, "hollow"), path(`M${x - 3} ${y - 3}l6 6M${x + 3} ${y - 3}l-6 6`, "cross")],
    [Flow.ERROR]: () => [path(`M${x} ${y - 7}L${x + 7} ${y + 5.5}H${x - 7}Z`, "hollow"), path(`M${x} ${y - 3}v4.5M${x} ${y + 3}v1`, "cross")],
  };
  const group = svg("g", { class: `knot f${flow}` });
  if (isFolded) group.append(svg("rect", { x: x - 6, y: y - 6, width: 12, height: 12, rx: 3, class: "back" }));
  group.append(...forms[flow]());
  return group;
}
