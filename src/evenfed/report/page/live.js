// A live page: asks for what came after what it shows. What the reader has opened and sorted stays.

const ASK_AGAIN = 2000; // milliseconds between two questions
const TRY_AGAIN = 5000; // while there is no answer

async function follow(address, edition) {
  for (;;) {
    await pause(ASK_AGAIN);
    if (document.hidden) continue;
    const answer = await asked(`${address}?after=${encodeURIComponent(edition)}`);
    if (!answer) {
      tellState("The server does not answer; this is what it last said", false);
      await pause(TRY_AGAIN);
      continue;
    }
    tellState("Live", true);
    if (answer.edition) {
      edition = answer.edition;
      await show(answer.content, answer.columns);
    }
  }
}

// What the server says, {} if it has nothing new, null if it does not answer.
async function asked(address) {
  try {
    const answer = await fetch(address, { cache: "no-store" });
    if (answer.status === 204) return {};
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

// Screen readers hear when answers begin and end, not of every round.
function tellState(text, isLive) {
  const place = byId("live");
  if (place.textContent === text) return;
  place.textContent = text;
  place.hidden = false;
  place.classList.toggle("off", !isLive);
  announce(text);
}

// What is open, how tables are sorted and where the focus is; gives a function that makes it so again.
function remembered() {
  const open = new Set([...document.querySelectorAll("details[open]")].map(nameOfDetails));
  const tables = [...document.querySelectorAll("main table")];
  const sortings = new Map(tables.map((table) => [captionOf(table), sortingOf(table)]));
  const focus = focusOf(document.activeElement);
  return () => {
    for (const details of document.querySelectorAll("details:not([open])")) {
      if (open.has(nameOfDetails(details))) openNow(details);
    }
    for (const table of document.querySelectorAll("main table")) {
      const sorting = sortings.get(captionOf(table));
      if (sorting) table.arrange?.(sorting.place, sorting.order);
    }
    focus();
  };
}

function nameOfDetails(details) {
  const title = details.firstChild.textContent.replace(/\d+/g, ""); // "3 remarks" may become "4 remarks"
  return `${details.closest("[id]").id} ${title}`;
}

function openNow(details) {
  details.open = true;
  details.dispatchEvent(new Event("toggle")); // which would fill it a moment later, too late for its table's order
}

function captionOf(table) {
  return table.caption?.textContent ?? "";
}

function sortingOf(table) {
  const heads = [...table.querySelectorAll("th[aria-sort]")];
  const place = heads.findIndex((head) => head.getAttribute("aria-sort") !== "none");
  return { place: Math.max(place, 0), order: place < 0 ? "none" : heads[place].getAttribute("aria-sort") };
}

const FOCUSABLE = "button, summary, input, select, [tabindex]";

// By its place in its section: the element itself is made anew.
function focusOf(element) {
  const section = element?.closest("section[id], footer[id]");
  if (!section || element === section) return () => {};
  const place = [...section.querySelectorAll(FOCUSABLE)].indexOf(element);
  return () => {
    if (!element.isConnected) section.querySelectorAll(FOCUSABLE)[place]?.focus({ preventScroll: true });
  };
}
