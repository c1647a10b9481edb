// The verdict, and the table of five columns below it.

function showVerdict(content) {
  const parts = [make("h1", { class: "subject" }, content.title), make("p", { class: "fact" }, content.facts[0] ?? "")];
  for (const verdict of content.verdicts) parts.push(...verdictOf(verdict));
  const cautions = content.facts.slice(1);
  if (cautions.length) {
    const items = cautions.map((fact) => make("li", {}, fact));
    const word = cautions.length === 1 ? "1 remark" : `${cautions.length} remarks`;
    parts.push(make("details", { class: "cautions" }, make("summary", {}, `${word} on these runs`), make("ul", {}, items)));
  }
  refill(byId("verdict"), parts);
}

function verdictOf(verdict) {
  const details = verdict.details.map(([heading, parts]) =>
    make("div", {}, make("dt", {}, heading), make("dd", {}, sentenceOf(parts))),
  );
  const notes = verdict.notes.length ? make("p", { class: "note" }, tied(verdict.notes.join(" "))) : null;
  return [
    make("p", { class: "sentence" }, sentenceOf(verdict.sentence)),
    make("dl", { class: "details" }, details),
    notes,
  ];
}

function showGlance(content) {
  refill(byId("glance"), content.glances.map(glanceOf));
}

function glanceOf(glance) {
  const scales = glance.columns.map((column, place) =>
    column.kind === "gap" ? scaleOf(glance.lines.map((line) => line.cells[place - 1])) : null,
  );
  const lines = glance.lines.map((line) => glanceLine(line, glance.columns, scales));
  const keys = (place) =>
    glance.lines.map((line) => (place === 0 ? line.name : keyOf(line.cells[place - 1], glance.columns[place].kind)));
  const titles = glance.columns.map((column) => column.title);
  const caption = make("caption", { class: "unseen" }, "Algorithms by how they serve the worst 10 % and all clients");
  const best = { place: glance.first, order: glance.sign > 0 ? "descending" : "ascending" };
  const table = makeSortable(make("table", { class: "glance" }, caption), titles, keys, lines, best);
  glance.columns.forEach((column, place) => {
    const head = table.querySelectorAll("th[scope=col]")[place];
    head.classList.add(column.kind);
    if (column.kind === "gap") head.append(make("span", { class: "zero", "aria-hidden": "true" }, "0"));
  });
  const notes = glance.notes.map((note) => make("p", { class: "note" }, tied(note)));
  const heading = make("h2", {}, glance.title ? `At a glance: ${glance.title}` : "At a glance");
  const subtitle = make("p", { class: "says" }, tied(glance.subtitle));
  return [heading, subtitle, make("div", { class: "wide" }, table), ...notes];
}

// Words by what is read, all else by its number, if it has one.
function keyOf(cell, kind) {
  const text = kind === "words" ? cell.text : null;
  return cell.value ?? text ?? null;
}

function glanceLine(line, columns, scales) {
  const cells = line.cells.map((cell, place) => {
    const column = columns[place + 1];
    return column.kind === "gap" ? gapCell(cell, scales[place + 1]) : make("td", { class: column.kind }, cell.text);
  });
  const name = make("th", { scope: "row" }, nameOf(line.name));
  return make("tr", { class: line.control ? "control" : null, "data-entry": line.entry }, name, cells);
}

function gapCell(cell, limit) {
  if (cell.value === undefined) return make("td", { class: "gap" });
  const numbers = [make("span", { class: "points" }, cell.text)];
  if (cell.range) numbers.push(make("span", { class: "range" }, cell.range));
  const word = make("span", { class: "unseen" }, `, ${cell.word}`);
  const text = make("span", { class: "numbers" }, numbers, word);
  return make("td", { class: `gap ${directionOf(cell)}` }, make("div", {}, barOf(cell, limit), text));
}
