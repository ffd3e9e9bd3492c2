// The lanes at the left. A lane leads from the first row that reads an op down to the op's own row,
// in the op's column; all that read it join the same lane, as branches do in `git log --graph`.

const HEIGHT = 26, MIDDLE = HEIGHT / 2; // of a row of one line of text
const BELOW = 9999; // where lanes leave a row, which cuts them off at its end
const MOST_LANES = 8; // columns; more lanes run together in the last one

// For each side of a part: the lanes between its rows, and the column of each row.
function layOut(part) {
  part.sides = Array.from({ length: part.body.sideCount }, (_, side) => {
    const lanes = lanesOf(part, side);
    return { lanes, ...columnsOf(part, side, lanes) };
  });
}

// The lanes of one side. Each has its first and last row, and the rows that join it: what flows.
function lanesOf({ body: { lines, group }, at }, side) {
  const byProducer = new Map();
  for (const line of lines) {
    for (const [producer, flow] of line.sides[side].edges) {
      const from = at[line.row], to = at[producer.row];
      if (to <= from || producer.row >= group) continue; // in a fold, back in a loop, a variable
      if (!byProducer.has(to)) byProducer.set(to, { from, to, column: 0, joins: [] });
      byProducer.get(to).joins.push([from, flow]);
    }
  }
  return [...byProducer.values()];
}

// Give each lane and each row its column: that of a lane is free again below the lane's last row.
function columnsOf({ body: { lines, group }, at }, side, lanes) {
  const endingAt = new Map(lanes.map(lane => [lane.to, lane]));
  const startingAt = new Map(lanes.map(lane => [lane.from, []]));
  for (const lane of lanes) startingAt.get(lane.from).push(lane);
  const knots = new Map(), free = []; // the columns that are free, the leftmost first
  let width = 0;
  const take = wanted => // the column that is wanted if it is free, else the leftmost
    free.length ? free.splice(Math.max(free.indexOf(wanted), 0), 1)[0] : width++;
  at.forEach((index, row) => {
    if (knots.has(index) || !flowAt(lines[row], side) || row >= group) return;
    const lane = endingAt.get(index), column = lane ? lane.column : take();
    knots.set(index, column);
    free.push(column);
    free.sort((a, b) => a - b);
    for (const starting of startingAt.get(index) || []) starting.column = take(column);
  });
  return { knots, width: Math.max(width, 1) };
}

// What flows in a lane at a row: the most of what has joined it above the row, or also at it.
function flowIn(lane, row, isIncluded) {
  const joined = lane.joins.filter(([from]) => from < row || (isIncluded && from === row));
  return Math.max(0, ...joined.map(([, flow]) => flow));
}

// The lanes of one row as an SVG, of those that are laid out; columns lie `pitch` pixels apart.
function drawLanes({ index: row, kind, isOpen, lines }, side, { knots, width }, lanes, pitch) {
  const at = column => (Math.min(column, MOST_LANES - 1) + 0.5) * pitch + 2;
  const wide = Math.min(width, MOST_LANES) * pitch + 4;
  const picture = svg("svg", { width: wide, "aria-hidden": "true" });
  const isFolded = kind === "scope" && !isOpen, knot = knots.get(row);
  const flow = kind === "line" || isFolded ? flowOf(lines, side) : 0;
  const isKnot = knot !== undefined && flow > 0;
  const draw = (path, flows) => picture.append(svg("path", { d: path, class: `lane f${flows}` }));
  const x = isKnot ? at(knot) : 0;
  // From a lane above to the knot, and from the knot to a lane below: straight, or in a curve.
  const down = lx => `M${lx} 0`
    + (lx === x ? `V${MIDDLE}` : `C${lx} ${MIDDLE} ${x} 2 ${x} ${MIDDLE}`);
  const up = lx => `M${x} ${MIDDLE}`
    + (lx === x ? "" : `C${x} ${HEIGHT - 2} ${lx} ${MIDDLE} ${lx} ${HEIGHT}`) + `V${BELOW}`;
  let together = 0;
  for (const lane of lanes.filter(({ from, to }) => from <= row && row <= to)) {
    const lx = at(lane.column);
    if (lane.from < row && row < lane.to) {
      together += lane.column >= MOST_LANES - 1;
      draw(`M${lx} 0V${BELOW}`, flowIn(lane, row, false));
    }
    if (!isKnot) continue;
    if (row === lane.to) draw(down(lx), flowIn(lane, row, false));
    for (const [from, flows] of row < lane.to ? lane.joins : []) {
      if (from === row) draw(up(lx), flows || flowIn(lane, row, true));
    }
  }
  if (together > 1) {
    const lx = at(MOST_LANES);
    picture.append(svg("path", { d: `M${lx} 0V${BELOW}`, class: "lane together" }));
    picture.append(drawText(lx, MIDDLE + 3, together, "tick"));
  }
  if (isKnot) picture.append(drawKnot(x, flow, isFolded));
  return picture;
}

// A knot: its form says what flows, so that the colour need not.
function drawKnot(x, flow, isFolded) {
  const y = MIDDLE;
  const circle = (r, className) => svg("circle", { cx: x, cy: y, r, class: className });
  const path = (d, className) => svg("path", { d: `M${x} ${y}${d}`, class: className });
  const forms = {
    [Flow.NONE]: () => [circle(3, "hollow")],
    [Flow.ZERO]: () => [circle(4, "hollow"), circle(1.2, "")],
    [Flow.FULL]: () => [circle(4, "")],
    [Flow.CHANGED]: () => [path("m0-5.5l5.5 5.5l-5.5 5.5l-5.5-5.5z", "")],
    [Flow.BLOCKED]: () => [circle(6.5, "hollow"), path("m-3-3l6 6m0-6l-6 6", "cross")],
    [Flow.ERROR]: () => [path("m0-7l7 12.5h-14z", "hollow"), path("m0-3v4.5m0 1.5v1", "cross")],
  };
  const group = svg("g", { class: `knot f${flow}` });
  const square = { x: x - 6, y: y - 6, width: 12, height: 12, rx: 3, class: "back" };
  if (isFolded) group.append(svg("rect", square));
  group.append(...forms[flow]());
  return group;
}
