// The page: shows its content, follows the reader's theme, prints on white.

let content = null;

async function show(newContent, packedColumns) {
  const columns = await unpacked(packedColumns);
  const restore = remembered();
  content = newContent;
  document.title = `${content.title} - evenfed`;
  showVerdict(content);
  showGlance(content);
  showGuard(content);
  showTables(content);
  showProvenance(content);
  showSwitches(content);
  restore();
  dimLines();
  await showCharts(content, columns);
}

const systemTheme = window.matchMedia("(prefers-color-scheme: dark)");
let isPrinting = false;

function themeName() {
  if (isPrinting) return "light";
  return document.documentElement.dataset.theme ?? (systemTheme.matches ? "dark" : "light");
}

function switchTheme() {
  document.documentElement.dataset.theme = themeName() === "dark" ? "light" : "dark";
  followTheme();
}

function followTheme() {
  nameOtherTheme();
  if (content) redrawCharts("all");
}

// The button says what a click gives.
function nameOtherTheme() {
  byId("theme").textContent = themeName() === "dark" ? "Light" : "Dark";
}

// Paper is white: dark charts are drawn anew, at once, and once more afterwards.
function print(begins) {
  const wasDark = themeName() === "dark";
  isPrinting = begins;
  if (!content || wasDark === (themeName() === "dark")) return;
  for (const chart of drawnCharts) drawChart(chart);
}

async function start() {
  byId("theme").addEventListener("click", switchTheme);
  systemTheme.addEventListener("change", followTheme);
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  nameOtherTheme();
  await show(JSON.parse(byId("content").textContent), byId("columns").textContent);
  const { live, edition } = document.body.dataset;
  if (live) follow(live, edition);
}

start();
