"use strict";

// The lanes at the left. A lane leads from the first row that reads an op down to the op's own row,
// in the op's column; all that read it join the same lane, as branches do in `git log --graph`.

const HEIGHT = 26, MIDDLE = HEIGHT / 2; // of a row of one line of text
const SVG = "http://www.w3.org/2000/svg";
const STEP = 64; // rows between two places where it is known which lanes pass
const MOST_LANES = 8; // columns; more lanes run together in the last one

// For each side of a part: the lanes between its rows, the column of each row, and which lanes pass.
function layOut(part, body) {
  part.sides = body.sides.map(side => {
    const byProducer = new Map(), starts = new Map();
    side.edges.forEach((edges, row) => {
      for (let k = 0; k < edges.length; k += 2) {
        const producer = edges[k], from = part.at[row], to = part.at[producer];
        if (to <= from || producer >= body.group) continue; // in a folded scope, a loop's way back, a variable
        let lane = byProducer.get(to);
        if (!lane) byProducer.set(to, lane = { from, to, column: 0, joins: [] });
        lane.joins.push([from, edges[k + 1]]);
        if (!starts.has(from)) starts.set(from, []);
        starts.get(from).push(lane);
      }
    });
    const columns = new Columns(), knots = new Map(), ready = new Set();
    part.at.forEach((index, row) => {
      if (knots.has(index) || !side.flow[row] || row >= body.group) return;
      const lane = byProducer.get(index);
      knots.set(index, lane ? lane.column : columns.take());
      columns.give(knots.get(index));
      for (const begun of starts.get(index) || []) {
        if (ready.has(begun)) continue;
        ready.add(begun);
        begun.column = columns.take(knots.get(index));
      }
    });
    const lanes = [...byProducer.values()].sort((a, b) => a.from - b.from);
    return { knots, lanes, width: Math.max(columns.count, 1), marks: checkpoints(lanes) };
  });
}

// The columns that are free; the leftmost is taken first.
class Columns {
  constructor() {
    this.free = [];
    this.count = 0;
  }

  take(wanted = -1) {
    const place = Math.max(this.free.indexOf(wanted), 0);
    return this.free.length ? this.free.splice(place, 1)[0] : this.count++;
  }

  give(column) {
    this.free.splice(before(this.free, column), 0, column);
  }
}

// Every STEP rows, the place in the list of lanes and those of them that pass there.
function checkpoints(lanes) {
  const marks = new Map();
  let active = [], next = 0;
  if (!lanes.length) return marks;
  const last = lanes[lanes.length - 1].from;
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
function touching(side, row) {
  const begin = Math.floor(row / STEP) * STEP;
  let mark = side.marks.get(begin);
  if (!mark) {
    if (!side.marks.end || begin < side.marks.last) return [];
    mark = side.marks.end;
  }
  const passing = mark.active.slice();
  for (let next = mark.next; next < side.lanes.length && side.lanes[next].from <= row; next++) passing.push(side.lanes[next]);
  return passing.filter(lane => lane.from <= row && row <= lane.to);
}

// What flows in a lane at a row: the most of what has joined it, above the row or also at it.
function flowIn(lane, row, isIncluded) {
  let most = 0;
  for (const [from, flow] of lane.joins) if (from < row || (isIncluded && from === row)) most = Math.max(most, flow);
  return most;
}

function svg(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// The lanes of one row as an SVG, as tall as the row is; columns lie `pitch` pixels apart.
function drawLanes(shownRow, side, flow, pitch, height) {
  const at = column => (Math.min(column, MOST_LANES - 1) + 0.5) * pitch + 2;
  const picture = svg("svg", { width: Math.min(side.width, MOST_LANES) * pitch + 4, height, "aria-hidden": "true" });
  const row = shownRow.index, knot = side.knots.get(row);
  const isKnot = ["line", "folded"].includes(shownRow.kind) && knot !== undefined && flow > 0;
  const line = (path, flows) => picture.append(svg("path", { d: path, class: `lane f${flows}` }));
  const x = isKnot ? at(knot) : 0;
  let together = 0;
  for (const lane of touching(side, row)) {
    const lx = at(lane.column), above = flowIn(lane, row, false), below = flowIn(lane, row, true);
    if (lane.from < row && row < lane.to) {
      if (lane.column >= MOST_LANES - 1) together++;
      line(`M${lx} 0V${height}`, above);
    }
    if (row === lane.to && isKnot) line(lx === x ? `M${x} 0V${MIDDLE}` : `M${lx} 0C${lx} ${MIDDLE} ${x} 2 ${x} ${MIDDLE}`, above);
    if (row < lane.to && isKnot) {
      for (const [from, flows] of lane.joins) {
        if (from === row) line(lx === x ? `M${x} ${MIDDLE}V${height}` : `M${x} ${MIDDLE}C${x} ${HEIGHT - 2} ${lx} ${MIDDLE} ${lx} ${HEIGHT}V${height}`, flows || below);
      }
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
