// Tables whose columns sort by a press on their head: down, up, as given.

function sortableHead(titles, onSort) {
  const heads = titles.map((title, place) => {
    const button = make("button", { type: "button", class: "sort", onclick: () => onSort(place) }, title);
    return make("th", { scope: "col", "aria-sort": "none" }, button);
  });
  return make("thead", {}, make("tr", {}, heads));
}

// `keys(place)` gives the values of a column to sort by, one for each line; `first` is how the table begins.
function makeSortable(table, titles, keys, lines, first = null) {
  const body = make("tbody", {}, lines);
  const state = { place: null, order: "none" };
  const arrange = (place, order) => {
    Object.assign(state, { place, order });
    body.replaceChildren(...sorted(lines, keys(place), order));
    [...head.firstChild.children].forEach((cell, number) => {
      cell.setAttribute("aria-sort", number === place ? order : "none");
    });
  };
  const sort = (place) => {
    arrange(place, nextOrder(state.place === place ? state.order : "none", keys(place)));
    announce(state.order === "none" ? "Order as given" : `Sorted by ${titles[place]}, ${state.order}`);
  };
  const head = sortableHead(titles, sort);
  table.append(head, body);
  table.arrange = arrange; // for a live page, whose tables are made anew
  if (first) arrange(first.place, first.order);
  return table;
}

// Numbers start with the largest, names with A.
function nextOrder(order, values) {
  const isNumber = values.some((value) => typeof value === "number");
  const turns = isNumber ? ["none", "descending", "ascending"] : ["none", "ascending", "descending"];
  return turns[(turns.indexOf(order) + 1) % turns.length];
}

function sorted(lines, values, order) {
  if (order === "none") return lines;
  const sign = order === "ascending" ? 1 : -1;
  const places = lines.map((_, place) => place);
  const isControl = (place) => lines[place].classList.contains("control"); // chance does not compete: it goes last
  places.sort(
    (one, other) =>
      isControl(one) - isControl(other) || sign * compared(values[one], values[other], sign) || one - other,
  );
  return places.map((place) => lines[place]);
}

// What is missing goes last, whatever the order.
function compared(one, other, sign) {
  const isMissing = (value) => value === null || value === undefined;
  if (isMissing(one) || isMissing(other)) return sign * (isMissing(one) - isMissing(other));
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}
