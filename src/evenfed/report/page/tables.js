// Whom the guard held back; all tables of the report, made when they are opened; and where everything comes from.

const GUARD = "guard"; // the name of its table

function showGuard(content) {
  const table = content.tables.find((each) => each.name === GUARD);
  if (!table) return refill(byId("guard"));
  const says = "Their reports counted for less in these rounds: who, how often, from when to when, and over what.";
  refill(byId("guard"), make("h2", {}, table.title), make("p", { class: "says" }, says), tableOf(table));
}

function showTables(content) {
  const closed = content.tables.filter((table) => table.name !== GUARD).map(onDemand);
  if (!closed.length) return refill(byId("tables"));
  const heading = make("h2", {}, "All figures");
  const lead = make("p", { class: "note" }, "The report's tables. Click a column header to sort.");
  refill(byId("tables"), heading, lead, closed);
}

function onDemand(table) {
  const fill = () => {
    if (details.open && details.children.length === 1) details.append(...tableOf(table));
  };
  const details = make("details", { ontoggle: fill }, make("summary", {}, table.title));
  return details;
}

function tableOf(table) {
  const titles = [table.head, ...(table.parts ? [table.parts] : []), ...table.columns];
  const lines = table.lines.map(([entry, part, control, cells]) => {
    const head = make("th", { scope: "row" }, nameOf(entry));
    const parts = table.parts ? [make("td", { class: "part" }, part)] : [];
    const figures = cells.map(([text, , best]) => make("td", { class: best ? "best" : null }, text));
    return make("tr", { class: control ? "control" : null }, head, parts, figures);
  });
  const keys = (place) => table.lines.map((line) => sortKey(line, place, table.parts));
  const caption = make("caption", { class: "unseen" }, table.title);
  const element = makeSortable(make("table", { class: "full" }, caption), titles, keys, lines);
  const notes = table.notes.map((note) => make("p", { class: "note" }, tied(note)));
  return [make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": table.title }, element), ...notes];
}

function sortKey([entry, part, , cells], place, hasParts) {
  if (place === 0) return entry;
  if (hasParts && place === 1) return part;
  const [text, value] = cells[place - (hasParts ? 2 : 1)];
  return value ?? (text === "-" ? null : text);
}

function showProvenance(content) {
  if (!content.provenance.length && !content.commands.length) return refill(byId("provenance"));
  const parts = [make("h2", {}, "Where this comes from")];
  if (content.commands.length) {
    const commands = content.commands.map((command) => make("code", {}, command));
    parts.push(make("p", {}, "To reproduce it:"), make("pre", { tabindex: "0" }, commands.flatMap((code) => [code, "\n"])));
  }
  const terms = content.provenance.map(([term, text]) => make("div", {}, make("dt", {}, term), make("dd", {}, text)));
  parts.push(make("dl", { class: "provenance" }, terms));
  refill(byId("provenance"), parts);
}
