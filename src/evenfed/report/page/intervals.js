// Differences as small bars: a dot at the estimate, a bar for its interval, a line at zero.

const BAR = { width: 120, height: 18, margin: 7 };
const SQUEEZE = 4; // times the middle reach of a column that its scale may hold; what is beyond ends in an arrow

function scaleOf(cells) {
  const reaches = cells.map(reachOf).filter((reach) => reach > 0);
  if (!reaches.length) return 1;
  reaches.sort((one, other) => one - other);
  const middle = reaches[Math.floor(reaches.length / 2)];
  return Math.min(reaches[reaches.length - 1], SQUEEZE * middle);
}

function reachOf(cell) {
  if (typeof cell.value !== "number") return 0;
  return Math.max(Math.abs(cell.value), Math.abs(cell.low ?? 0), Math.abs(cell.high ?? 0));
}

function barOf(cell, limit) {
  const middle = BAR.width / 2;
  const clamped = (value) => Math.max(-limit, Math.min(limit, value));
  const place = (value) => middle + (clamped(value) / limit) * (middle - BAR.margin);
  const y = BAR.height / 2;
  const marks = [draw("line", { class: "zero", x1: middle, x2: middle, y1: 0, y2: BAR.height })];
  if (cell.low !== undefined) {
    marks.push(draw("line", { class: "range", x1: place(cell.low), x2: place(cell.high), y1: y, y2: y }));
    if (cell.low < -limit) marks.push(arrow(1, -1, y));
    if (cell.high > limit) marks.push(arrow(BAR.width - 1, 1, y));
  }
  marks.push(draw("circle", { class: "estimate", cx: place(cell.value), cy: y, r: 3.6 }));
  const view = `0 0 ${BAR.width} ${BAR.height}`;
  return draw("svg", { class: `bar ${directionOf(cell)}`, viewBox: view, "aria-hidden": "true" }, ...marks);
}

function arrow(x, side, y) {
  return draw("path", { class: "beyond", d: `M${x} ${y}l${-6 * side} -4v8z` });
}

function directionOf(cell) {
  if (cell.direction === 1) return "better";
  return cell.direction === -1 ? "worse" : "level";
}
