// Charts as SVG or PNG, and their data as CSV.

// Texts are visible already; what a spreadsheet would compute is defused as core/printable.py does it.
const FORMULA = /^[=+\-@\t\r]/;

function inSheet(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  const text = Array.isArray(value) ? value.map((item) => item ?? "").join(" ") : String(value);
  const safe = FORMULA.test(text) ? `'${text}` : text;
  return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function csvOf(rows) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const lines = rows.map((row) => names.map((name) => inSheet(row[name])).join(","));
  return [names.map(inSheet).join(","), ...lines].join("\n") + "\n";
}

function save(name, blob) {
  const address = URL.createObjectURL(blob);
  const link = make("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
  announce(`Saved ${name}`);
}

function saveCsv(name, rows) {
  save(`${name}.csv`, new Blob([csvOf(rows)], { type: "text/csv" }));
}

async function saveSvg(name, view) {
  save(`${name}.svg`, new Blob([await view.toSVG()], { type: "image/svg+xml" }));
}

async function savePng(name, view) {
  const canvas = await view.toCanvas(2);
  canvas.toBlob((blob) => save(`${name}.png`, blob), "image/png");
}
