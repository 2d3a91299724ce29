"use strict";
// Everything is readable without this: it adds sorting and filtering to the tables, and opens what is folded for print.

const sortKey = (row, column) => {
  const cell = row.cells[column];
  return cell.dataset.sort ?? cell.textContent.trim();
};

const compare = (a, b) => {
  const [x, y] = [Number(a), Number(b)];
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
};

const makeSortable = (table) => {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const rows = [...body.rows].sort((a, b) => compare(sortKey(a, column), sortKey(b, column)));
      body.append(...(falling ? rows.reverse() : rows));
    });
  });
};

const makeFilterable = (table) => {
  const rows = [...table.tBodies[0].rows];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const label = document.createElement("label");
  label.className = "filter";
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "words that a row must hold";
  const shown = document.createElement("span");
  shown.setAttribute("role", "status");
  label.append("Filter ", input, shown);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let kept = 0;
    rows.forEach((row, index) => {
      row.hidden = !words.every((word) => texts[index].includes(word));
      kept += row.hidden ? 0 : 1;
    });
    shown.textContent = words.length ? `${kept} of ${rows.length} rows` : "";
  });
  if (table.caption.className === "seen") table.caption.append(label);
  else table.closest(".scroll").before(label);
};

for (const table of document.querySelectorAll("table")) {
  if (table.tBodies[0].rows.length > 1) makeSortable(table);
  if ("filter" in table.dataset) makeFilterable(table);
}

addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((fold) => (fold.open = true)));
