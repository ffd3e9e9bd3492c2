"use strict";

// The lanes at the left: from each op that reads another a line to it, in that one's column.

const HEIGHT = 26, MIDDLE = HEIGHT / 2;
const SVG = "http://www.w3.org/2000/svg";
const STEP = 64; // rows between two places where it is known which lanes pass

// For each side of a part: the lanes between its rows, their columns made dense, and which pass.
function layOut(part, body) {
  part.sides = body.sides.map(side => {
    const lanes = new Map();
    side.edges.forEach((edges, row) => {
      for (let k = 0; k < edges.length; k += 2) {
        const producer = edges[k], from = part.at[row], to = part.at[producer];
        if (to <= from) continue; // within a folded scope, or a loop's way back
        let lane = lanes.get(producer);
        if (!lane) lanes.set(producer, lane = { from, to, column: side.columns[producer], joins: [] });
        lane.joins.push([from, edges[k + 1]]);
        lane.from = Math.min(lane.from, from);
      }
    });
    return arranged([...lanes.values()], part, side);
  });
}

function arranged(lanes, part, side) {
  const knots = new Map(), used = new Set();
  part.at.forEach((shown, row) => {
    if (!knots.has(shown) && side.columns[row] >= 0) knots.set(shown, side.columns[row]);
  });
  knots.forEach(column => used.add(column));
  const dense = new Map([...used, ...lanes.map(lane => lane.column)].sort((a, b) => a - b).map(column => [column, 0]));
  [...dense.keys()].forEach((column, place) => dense.set(column, place));
  lanes.forEach(lane => { lane.column = dense.get(lane.column); });
  knots.forEach((column, shown) => knots.set(shown, dense.get(column)));
  lanes.sort((a, b) => a.from - b.from);
  return { knots, lanes, width: Math.max(dense.size, 1), marks: checkpoints(lanes) };
}

// Every STEP rows, the place in the list of lanes and those of them that pass there.
function checkpoints(lanes) {
  const marks = new Map();
  let active = [], next = 0;
  if (!lanes.length) return marks;
  const last = Math.max(...lanes.slice(-1).map(lane => lane.from), 0);
  for (let row = Math.floor(lanes[0].from / STEP) * STEP; row <= last + STEP; row += STEP) {
    active = active.filter(lane => lane.to >= row);
    marks.set(row, { next, active });
    active = active.slice();
    while (next < lanes.length && lanes[next].from < row + STEP) active.push(lanes[next++]);
  }
  marks.end = { next, active };
  marks.last = last + STEP;
  return marks;
}

// The lanes that touch a row.
function touching(laid, row) {
  const begin = Math.floor(row / STEP) * STEP;
  let mark = laid.marks.get(begin);
  if (!mark) {
    if (!laid.marks.end || begin < laid.marks.last) return [];
    mark = laid.marks.end;
  }
  const found = mark.active.slice();
  for (let next = mark.next; next < laid.lanes.length && laid.lanes[next].from <= row; next++) found.push(laid.lanes[next]);
  return found.filter(lane => lane.from <= row && row <= lane.to);
}

// What flows in a lane at a row: the most of what has joined it, above the row or also at it.
function state(lane, row, also) {
  let best = 0;
  for (const [from, flow] of lane.joins) if (from < row || (also && from === row)) best = Math.max(best, flow);
  return best;
}

function svg(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// One row of lanes as an SVG. `pitch` is how far columns lie apart, `most` how many there is room for.
function drawLanes(shownRow, number, flow, pitch, most) {
  const laid = shownRow.part.sides[number];
  const at = column => (Math.min(column, most - 1) + 0.5) * pitch + 2;
  const picture = svg("svg", { width: Math.min(laid.width, most) * pitch + 4, height: HEIGHT, "aria-hidden": "true" });
  const row = shownRow.index, knot = laid.knots.get(row);
  const isKnot = shownRow.kind !== "scope" && shownRow.kind !== "function" && knot !== undefined && flow > 0;
  const line = (path, flows) => picture.append(svg("path", { d: path, class: `lane f${flows}` }));
  const x = isKnot ? at(knot) : 0;
  for (const lane of touching(laid, row)) {
    const lx = at(lane.column), above = state(lane, row, false), below = state(lane, row, true);
    if (lane.from < row && row < lane.to) line(`M${lx} 0V${HEIGHT}`, above);
    if (row === lane.to && isKnot) line(lx === x ? `M${x} 0V${MIDDLE}` : `M${lx} 0C${lx} ${MIDDLE} ${x} 2 ${x} ${MIDDLE}`, above);
    if (row < lane.to && isKnot) {
      for (const [from, flows] of lane.joins) {
        if (from !== row) continue;
        line(lx === x ? `M${x} ${MIDDLE}V${HEIGHT}` : `M${x} ${MIDDLE}C${x} ${HEIGHT - 2} ${lx} ${MIDDLE} ${lx} ${HEIGHT}`, flows || below);
      }
    }
  }
  if (isKnot) picture.append(drawKnot(x, flow, shownRow.kind === "folded"));
  return picture;
}

// A knot: its form says what flows, so that the colour need not.
function drawKnot(x, flow, isFolded) {
  const y = MIDDLE, group = svg("g", { class: `knot f${flow}` });
  if (isFolded) group.append(svg("rect", { x: x - 6, y: y - 6, width: 12, height: 12, rx: 3, class: "back" }));
  if (flow === Flow.FULL) group.append(svg("circle", { cx: x, cy: y, r: 4 }));
  else if (flow === Flow.CHANGED) group.append(svg("path", { d: `M${x} ${y - 5.5}L${x + 5.5} ${y}L${x} ${y + 5.5}L${x - 5.5} ${y}Z` }));
  else if (flow === Flow.ZERO) group.append(svg("circle", { cx: x, cy: y, r: 4, class: "hollow" }), svg("circle", { cx: x, cy: y, r: 1.2 }));
  else if (flow === Flow.NONE) group.append(svg("circle", { cx: x, cy: y, r: 3, class: "hollow" }));
  else if (flow === Flow.BLOCKED) group.append(svg("circle", { cx: x, cy: y, r: 6.5, class: "hollow" }), svg("path", { d: `M${x - 3} ${y - 3}l6 6M${x + 3} ${y - 3}l-6 6`, class: "cross" }));
  else if (flow === Flow.ERROR) group.append(svg("path", { d: `M${x} ${y - 7}L${x + 7} ${y + 5.5}H${x - 7}Z`, class: "hollow" }), svg("path", { d: `M${x} ${y - 3}v4.5M${x} ${y + 3}v1`, class: "cross" }));
  return group;
}
