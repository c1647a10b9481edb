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

// Words and labels of entries in turn, beginning with words, in which commands are between backticks.
function sentenceOf(parts) {
  return parts.map((part, place) => (place % 2 ? make("span", { class: "entry" }, breakable(part)) : wordsOf(part)));
}

function wordsOf(text) {
  const parts = text.split(/`([^`]+)`/);
  return parts.map((part, place) => (place % 2 ? make("span", { class: "command" }, breakable(part)) : tied(part)));
}

// A long name may go on in the next line before its options and between them.
function breakable(name) {
  return name.split(/(?<=,)|(?=\[)/).flatMap((part, place) => (place ? [make("wbr"), part] : [part]));
}

function announce(text) {
  byId("status").textContent = text;
}
