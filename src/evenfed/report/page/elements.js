// Elements, made without any markup: all text is text.

const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

function refill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
}

// An entry's name, its options in small print below.
function nameOf(label) {
  const start = label.indexOf("[");
  if (start < 1 || !label.endsWith("]")) return [make("span", { class: "name" }, label)];
  const options = label.slice(start + 1, -1).split(",").join(", ");
  return [make("span", { class: "name" }, label.slice(0, start)), " ", make("span", { class: "options" }, options)];
}

// Prose in which no line ends between a number and its percent sign.
function tied(text) {
  return text.replace(/(\d) %/g, "$1\u00a0%");
}

// A sentence in which the names of entries, and commands between backticks, are told from words.
function sentenceOf(text, names = []) {
  const parts = [];
  let rest = text;
  while (rest) {
    const found = firstOf(rest, names);
    if (!found) break;
    parts.push(rest.slice(0, found.start), make("span", { class: found.kind }, breakable(found.text)));
    rest = rest.slice(found.end);
  }
  return [...parts, rest].map((part) => (typeof part === "string" ? tied(part) : part));
}

// A long name may go on in the next line before its options and between them.
function breakable(name) {
  return name.split(/(?<=,)|(?=\[)/).flatMap((part, place) => (place ? [make("wbr"), part] : [part]));
}

function firstOf(text, names) {
  const places = [];
  for (const name of [...names].sort((one, other) => other.length - one.length)) {
    const start = text.indexOf(name);
    if (start >= 0) places.push({ start, end: start + name.length, text: name, kind: "entry" });
  }
  const command = /`([^`]+)`/.exec(text);
  if (command) {
    places.push({ start: command.index, end: command.index + command[0].length, text: command[1], kind: "command" });
  }
  places.sort((one, other) => one.start - other.start || other.end - one.end);
  return places[0];
}

function announce(text) {
  byId("status").textContent = text;
}
