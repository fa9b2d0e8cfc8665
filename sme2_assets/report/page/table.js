"use strict";
// A table can be sorted by its columns, and a long one filtered. Without this the tables are just there.
for (const box of document.querySelectorAll(".table")) {
  const body = box.querySelector("tbody");
  const rows = [...body.rows];
  if (rows.length < 2) continue;
  const heads = [...box.querySelectorAll("th")];
  // A table with names at its side is one to be read as it is.
  if (heads.some((head) => !head.textContent.trim())) continue;
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => sort(column, head));
  });

  function sort(column, head) {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const texts = new Map(rows.map((row) => [row, row.cells[column].textContent.trim()]));
    const number = (text) => (/^-?[\d.,]+/.test(text) ? parseFloat(text.replaceAll(",", "")) : NaN);
    const known = [...texts.values()].filter((text) => text !== "" && text !== "-");
    const numeric = known.every((text) => !Number.isNaN(number(text)));
    const compare = (a, b) => (numeric ? number(a) - number(b) : a.localeCompare(b));
    const empty = (text) => text === "" || text === "-";
    rows.sort((a, b) => {
      const [one, two] = [texts.get(a), texts.get(b)];
      // What is not known stays last, either way.
      if (empty(one) || empty(two)) return empty(one) - empty(two);
      return up ? compare(one, two) : compare(two, one);
    });
    body.append(...rows);
  }

  if (!box.classList.contains("long")) continue;
  const bar = document.createElement("label");
  bar.className = "filter";
  const input = document.createElement("input");
  input.type = "search";
  const count = document.createElement("span");
  const show = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows.length} rows`;
  };
  input.addEventListener("input", show);
  bar.append("Filter ", input, count);
  box.before(bar);
  show();
}
