// What the charts show: which algorithms and seeds, and which client stands out.

const shown = { offAlgorithms: new Set(), offSeeds: new Set(), picked: null };

function showSwitches({ entries, seeds, clients }) {
  if (!entries.length) return refill(byId("switches"));
  const parts = [];
  if (entries.length > 1) parts.push(group("Algorithms", entries.map(algorithmSwitch)));
  if (seeds.length > 1) parts.push(group("Seeds", seeds.map(seedSwitch)));
  if (clients.length) parts.push(clientPicker(clients));
  if (!parts.length) return refill(byId("switches"));
  const all = make("button", { type: "button", id: "all", onclick: switchAllOn }, "Show all");
  refill(byId("switches"), parts, make("div", { class: "group" }, all));
}

function group(name, children) {
  const legend = make("legend", {}, name);
  return make("fieldset", { class: "group" }, legend, make("div", { class: "chips" }, children));
}

function algorithmSwitch(entry) {
  const swatch = entry.shape ? swatchOf(entry) : null;
  return chip("algorithm", entry.label, shown.offAlgorithms, swatch, nameOf(entry.name));
}

function seedSwitch(seed) {
  return chip("seed", seed, shown.offSeeds, null, make("span", { class: "name" }, seed));
}

function chip(kind, key, off, swatch, name) {
  const change = () => {
    if (box.checked) off.delete(key);
    else off.add(key);
    refreshCharts();
  };
  const box = make("input", { type: "checkbox", class: "unseen", "data-kind": kind, "data-key": key, onchange: change });
  box.checked = !off.has(key);
  return make("label", { class: "chip" }, box, swatch, make("span", {}, name));
}

const SHAPES = {
  circle: "M8 3a5 5 0 1 0 .01 0z",
  diamond: "M8 2l6 6-6 6-6-6z",
  "triangle-up": "M8 3l6 10H2z",
  "triangle-down": "M8 13L2 3h12z",
  square: "M3 3h10v10H3z",
  cross: "M6 2h4v4h4v4h-4v4H6v-4H2V6h4z",
};

function swatchOf(entry) {
  const shape = draw("path", { d: SHAPES[entry.shape] ?? SHAPES.circle, fill: entry.colour });
  return draw("svg", { class: "swatch", viewBox: "0 0 16 16", "aria-hidden": "true" }, shape);
}

function clientPicker(clients) {
  const pick = () => pickClient(select.value === "" ? null : clients[Number(select.value)]);
  const options = clients.map((name, place) => make("option", { value: place }, name));
  const select = make("select", { id: "client", onchange: pick }, make("option", { value: "" }, "none"), options);
  select.selectedIndex = clients.indexOf(shown.picked) + 1;
  const label = make("label", { for: "client" }, "Highlight client");
  return make("div", { class: "group" }, label, select);
}

function pickClient(name) {
  shown.picked = name;
  const select = byId("client");
  if (select) {
    const place = [...select.options].findIndex((option) => option.value !== "" && option.textContent === name);
    select.selectedIndex = Math.max(0, place);
  }
  announce(name === null ? "No client is highlighted" : `Client ${name} is highlighted in all charts`);
  refreshCharts();
}

function switchAllOn() {
  shown.offAlgorithms.clear();
  shown.offSeeds.clear();
  for (const box of byId("switches").querySelectorAll("input")) box.checked = true;
  pickClient(null);
}

function isShown(row) {
  return !shown.offAlgorithms.has(row.algorithm) && !shown.offSeeds.has(row.seed);
}

function dimLines() {
  for (const line of document.querySelectorAll("tr[data-entry]")) {
    line.classList.toggle("off", shown.offAlgorithms.has(line.dataset.entry));
  }
}
