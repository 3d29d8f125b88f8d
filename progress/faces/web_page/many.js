// The tables of a job of many. A click on a name shows the vnodes of that table.

import { element, fill, number } from "./tables.js";
import { count, seconds } from "./words.js";

const LOST = ["failed", "set aside"];

export function showTables(table, told, chosen, choose) {
  const rows = told.tables.flatMap((each) => {
    const line = row(each, each.name === chosen, choose);
    return each.error ? [line, reason(each)] : [line];
  });
  fill(table, rows, "no table has such a name");
}

// Another filter begins at the top.
export function filterChanged() {
  document.querySelector("#tables-card .scroll").scrollTop = 0;
}

function row(each, isChosen, choose) {
  const lost = LOST.includes(each.phase);
  const name = element("button", { type: "button", "aria-pressed": String(isChosen) }, each.name);
  name.addEventListener("click", () => choose(each.name));
  return element("tr", isChosen ? { class: "chosen" } : {},
    element("th", { scope: "row" }, each.phase === "set aside" ? each.name : name),
    element("td", { class: "table-phase", "data-phase": lost ? "failed" : each.phase },
      element("span", { class: "mark", "aria-hidden": "true" }), each.phase),
    number(each.phase === "set aside" && !each.rows ? "" : `${each.percent.toFixed(2)} %`),
    number(rowsText(each)),
    number(lost ? "" : seconds(each.lag_seconds)),
    number(lost ? "" : seconds(each.lake_age_seconds)),
  );
}

function rowsText(each) {
  if (each.phase === "set aside" && !each.rows) return "";
  return each.rows < each.estimated_rows ? `${count(each.rows)} of ${count(each.estimated_rows)}` : count(each.rows);
}

function reason(each) {
  return element("tr", { class: "reason" }, element("td", { colspan: "6", class: "refused" }, each.error));
}
