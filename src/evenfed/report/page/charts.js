// Charts: drawn from the rows that are switched on, with the picked client standing out.

const MANY_MARKS = 4000; // rows from which a chart is painted as pixels: so many elements would be slow
const PANEL_GAP = 16;
const AXES = 70; // pixels beside the panels of a chart
const AXIS_BELOW = 40; // pixels for the labels and the title of a panel's axis
const NARROW = 560; // pixels: pictures side by side stand below each other
const LEAST_PANELS = 2; // side by side, however narrow, if their names fit
const MANY_PANELS = 4; // whose names are in short lines: two fit side by side on a phone
const NARROW_NAMES = 9; // pixels high
const LEAST_SCALE = 0.7; // a picture that is wider than a phone at this scale is moved sideways: text stays readable

const drawnCharts = [];

// A live page's charts stay where they are, and get new rows.
function showCharts(content, columns) {
  const names = content.charts.map((chart) => chart.name).join();
  if (names !== drawnCharts.map((chart) => chart.definition.name).join()) {
    for (const chart of drawnCharts) chart.view?.finalize();
    drawnCharts.length = 0;
    const figures = content.charts.map(figureOf);
    refill(byId("charts"), figures.length ? make("h2", {}, "Charts") : null, figures);
  }
  for (const [place, definition] of content.charts.entries()) {
    fillChart(drawnCharts[place], definition, rowsOf(columns[place]));
  }
  return settle();
}

function fillChart(chart, definition, rows) {
  const isSame = chart.view && JSON.stringify(chart.definition.spec) === JSON.stringify(definition.spec);
  Object.assign(chart, { definition, rows, due: isSame ? "rows" : "all" });
  chart.title.textContent = tied(definition.title);
  chart.says.textContent = tied(definition.says);
}

// Charts that are due are drawn one by one, those in view first; the page answers in between.
let isSettling = false;

async function settle() {
  document.body.dataset.ready = "false";
  if (isSettling) return;
  isSettling = true;
  for (let chart = nextDue(); chart; chart = nextDue()) {
    const due = chart.due;
    chart.due = null;
    if (due === "all") await drawChart(chart);
    else await refreshChart(chart);
    await new Promise((resolve) => setTimeout(resolve));
  }
  isSettling = false;
  document.body.dataset.ready = "true";
}

function nextDue() {
  const due = drawnCharts.filter((chart) => chart.due);
  const isInView = (chart) => {
    const { top, bottom } = chart.place.getBoundingClientRect();
    return bottom > 0 && top < window.innerHeight;
  };
  return due.find(isInView) ?? due[0];
}

function figureOf(definition) {
  const id = `chart-${definition.name}`;
  const place = make("div", { class: "plot" });
  const picture = make("div", { role: "img", "aria-labelledby": `${id}-title ${id}-says` }, place);
  const title = make("h3", { id: `${id}-title` });
  const says = make("p", { id: `${id}-says`, class: "says" });
  const chart = { definition, rows: [], place, title, says, view: null, due: null };
  drawnCharts.push(chart);
  const frame = make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": definition.title }, picture);
  return make("figure", { id }, make("figcaption", {}, title, says), frame, toolsOf(chart));
}

function toolsOf(chart) {
  const name = chart.definition.name;
  const tool = (text, action) =>
    make("button", { type: "button", "aria-label": `${text}: ${chart.definition.title}`, onclick: action }, text);
  const fill = () => table.open && fillData(table, chart);
  const table = make("details", { class: "data", ontoggle: fill }, make("summary", {}, "Data as a table"));
  const buttons = [
    tool("Save SVG", () => saveSvg(name, chart.view)),
    tool("Save PNG", () => savePng(name, chart.view)),
    tool("Save CSV", () => saveCsv(name, rowsShown(chart))),
  ];
  return make("div", { class: "tools" }, buttons, table);
}

const MOST_LINES = 500; // of a chart's table; the file has all

function fillData(details, chart) {
  const rows = rowsShown(chart);
  const few = rows.slice(0, MOST_LINES);
  const names = [...new Set(few.flatMap((row) => Object.keys(row)))];
  const lines = few.map((row) => make("tr", {}, names.map((name) => make("td", {}, dataText(row[name])))));
  const keys = (place) => few.map((row) => row[names[place]]);
  const caption = make("caption", { class: "unseen" }, `Data of: ${chart.definition.title}`);
  const table = makeSortable(make("table", { class: "full" }, caption), names, keys, lines);
  const more = rows.length > few.length ? make("p", { class: "note" }, `The first ${few.length} of ${rows.length} rows; the CSV file has all.`) : null;
  const frame = make("div", { class: "wide tall", tabindex: "0", role: "region", "aria-label": "Data" }, table);
  details.replaceChildren(details.firstChild, ...(more ? [more, frame] : [frame]));
}

function dataText(value) {
  if (value === null || value === undefined) return "";
  return Array.isArray(value) ? value.join(" ") : String(value);
}

function rowsShown(chart) {
  return chart.rows.filter(isShown);
}

async function drawChart(chart) {
  const theme = content.themes[themeName()];
  const width = chart.place.closest(".wide").clientWidth;
  const { spec: wide, narrow } = chart.definition;
  const spec = fitted(onGround(narrow && width < NARROW ? narrow : wide), width);
  const options = {
    mode: "vega-lite",
    actions: false,
    ast: true, // expressions are interpreted: the page's policy allows no code made of text
    config: { ...theme, autosize: { type: "pad" } },
    defaultStyle: false,
    logLevel: 1, // errors alone
    renderer: chart.rows.length > MANY_MARKS ? "canvas" : "svg",
    tooltip: showTooltip,
  };
  chart.view?.finalize();
  chart.place.style.minHeight = `${chart.place.offsetHeight}px`; // what is below must not jump meanwhile
  const { view } = await vegaEmbed(chart.place, withRows(spec, rowsShown(chart)), options);
  chart.place.style.minHeight = "";
  chart.view = view;
  const svg = chart.place.querySelector("svg");
  if (svg) svg.style.minWidth = `${LEAST_SCALE * svg.width.baseVal.value}px`;
  view.addEventListener("click", (event, item) => pickFrom(item));
  if (shown.picked !== null) await view.signal("picked", shown.picked).runAsync();
  fillOpenData(chart);
}

// The palette's blue is too dark for a dark ground; page.css has the same for swatches.
function onGround(spec) {
  if (themeName() !== "dark") return spec;
  return JSON.parse(JSON.stringify(spec).replaceAll("#0072b2", "#3b9ddd"));
}

// The specification with its data; rows are copied, since Vega writes to them.
function withRows(spec, rows) {
  return { ...structuredClone(spec), data: { name: "rows", values: rows.map((row) => ({ ...row })) } };
}

// Only the last row of panels has axes below it: where that row is not full, each panel gets its own.
function withAxes(spec) {
  const panels = spec.facet?.sort?.length ?? 0;
  if (spec.resolve || panels % spec.columns === 0) return spec;
  const spacing = { ...spec.spacing, row: spec.spacing.row + AXIS_BELOW };
  return { ...spec, spacing, resolve: { axis: { x: "independent" } } };
}

function fitted(spec, width) {
  const placed = inColumns(spec, width);
  return placed.facet && placed.columns ? withAxes(placed) : placed;
}

// As many panels side by side as there is room for; on a phone one, or two narrow ones of many.
function inColumns(spec, width) {
  if (spec.columns && spec.concat && width < NARROW) return stacked(spec);
  if (!spec.columns || !spec.spec || typeof spec.spec.width !== "number") return spec;
  const room = Math.floor((width - AXES) / (spec.spec.width + PANEL_GAP));
  if (room >= LEAST_PANELS) return { ...spec, columns: Math.min(spec.columns, room) };
  if ((spec.facet?.sort?.length ?? spec.columns) < MANY_PANELS) return { ...spec, columns: 1 };
  const narrow = Math.floor((width - AXES) / LEAST_PANELS) - PANEL_GAP;
  const panel = { ...spec.spec, width: Math.min(spec.spec.width, narrow) };
  const facet = { ...spec.facet, header: { ...spec.facet.header, labelFontSize: NARROW_NAMES } };
  return { ...spec, columns: LEAST_PANELS, facet, spec: panel };
}

// Pictures below each other: each gets the names that only the first of a row has on its axis.
function stacked(spec) {
  let names = null;
  const find = (key, value) => {
    if (key === "axis" && value?.labelExpr) names ??= value;
    return value;
  };
  const text = JSON.stringify(spec, find);
  const put = (key, value) => (key === "axis" && value?.labels === false && names ? names : value);
  return { ...JSON.parse(text, put), columns: 1 };
}

function pickFrom(item) {
  const client = item?.datum?.client ?? item?.datum?.datum?.client;
  if (client === undefined || client === null) return;
  pickClient(client === shown.picked ? null : client);
}

function refreshCharts() {
  dimLines();
  redrawCharts("rows");
}

// All charts anew ("all"), or with the rows that are switched on ("rows").
function redrawCharts(what) {
  for (const chart of drawnCharts) chart.due = chart.due === "all" ? "all" : what;
  return settle();
}

async function refreshChart(chart) {
  if (!chart.view) return;
  const rows = rowsShown(chart).map((row) => ({ ...row }));
  await chart.view.data("rows", rows).signal("picked", shown.picked).runAsync();
  fillOpenData(chart);
}

function fillOpenData(chart) {
  const table = chart.place.closest("figure").querySelector("details.data[open]");
  if (table) fillData(table, chart);
}

function showTooltip(handler, event, item, value) {
  const box = byId("tooltip");
  if (value === null || value === undefined || value === "") {
    box.hidden = true;
    return;
  }
  const lines =
    typeof value === "object"
      ? Object.entries(value).map(([name, text]) => make("div", {}, make("span", {}, name), String(text)))
      : [make("div", {}, String(value))];
  refill(box, lines);
  box.hidden = false;
  const left = Math.min(event.clientX + 14, window.innerWidth - box.offsetWidth - 8);
  const top = Math.min(event.clientY + 14, window.innerHeight - box.offsetHeight - 8);
  box.style.left = `${Math.max(8, left)}px`;
  box.style.top = `${Math.max(8, top)}px`;
}
