// Rows of charts from packed columns: what packing.py makes small.

async function unpacked(base64) {
  const letters = atob(base64.trim());
  const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function rowsOf(packed, bytes) {
  const columns = Object.entries(packed.columns).map(([name, column]) => [name, valuesOf(column, bytes, packed.count)]);
  const rows = new Array(packed.count);
  for (let place = 0; place < packed.count; place++) {
    const row = {};
    for (const [name, values] of columns) row[name] = values[place];
    rows[place] = row;
  }
  return rows;
}

function valuesOf(column, bytes, count) {
  if (column.kind === "same") return new Array(count).fill(column.value);
  if (column.kind === "choice") return wholeNumbers(column, bytes, count).map((code) => column.choices[code]);
  if (column.kind === "number") return multiples(column, bytes, count);
  if (column.kind === "list") return lists(column, bytes, count);
  return floats(column, bytes, count);
}

function wholeNumbers(column, bytes, count) {
  const codes = new Array(count).fill(0);
  let unit = 1;
  for (let place = 0; place < column.width; place++) {
    const start = column.start + place * count;
    for (let row = 0; row < count; row++) codes[row] += unit * bytes[start + row];
    unit *= 256;
  }
  return codes;
}

function multiples(column, bytes, count) {
  const unit = 10 ** Math.abs(column.digits);
  return wholeNumbers(column, bytes, count).map((code) => {
    if (code === 0) return null;
    const multiple = code - 1 + column.least;
    return column.digits < 0 ? multiple * unit : multiple / unit;
  });
}

function floats(column, bytes, count) {
  const view = new DataView(bytes.buffer, column.start, 4 * count);
  const values = new Array(count);
  for (let row = 0; row < count; row++) {
    const value = view.getFloat32(4 * row, true);
    values[row] = Number.isNaN(value) ? null : Number(value.toPrecision(6));
  }
  return values;
}

// Lists end to end, and how long each is.
function lists(column, bytes, count) {
  const lengths = valuesOf(column.lengths, bytes, count);
  const items = valuesOf(column.items, bytes, column.count);
  const values = new Array(count);
  let start = 0;
  for (let row = 0; row < count; row++) {
    values[row] = items.slice(start, start + lengths[row]);
    start += lengths[row];
  }
  return values;
}
