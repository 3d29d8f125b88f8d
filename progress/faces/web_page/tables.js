// Workers, epochs, statements, requests, errors and notices. Text is only ever set as text, never as markup.

import { shape } from "./plot.js";
import { count, seconds, time } from "./words.js";

const WORKERS_SHOWN = 64;

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter((child) => child != null));
  return made;
}

export function showWorkers(table, more, workers, vnodes) {
  const rows = workers.slice(0, WORKERS_SHOWN).map((worker) =>
    element("tr", {},
      element("th", { scope: "row" }, String(worker.worker)),
      element("td", {}, strip(worker.bitmap, vnodes), bitmap(worker)),
      number(count(worker.vnodes)),
      number(count(worker.rows)),
    ));
  fill(table, rows, "no workers yet");
  more.textContent = workers.length > WORKERS_SHOWN ? `and ${count(workers.length - WORKERS_SHOWN)} more workers` : "";
}

export function showEpochs(table, epochs) {
  fill(table, epochs.slice(0, 6).map((each) =>
    element("tr", {},
      element("th", { scope: "row" }, count(each.epoch)),
      element("td", {}, time(each.at)),
      number(seconds(each.seconds)),
      number(count(each.rows)),
    )), "none has ended since this driver started");
}

export function showRequests(table, requests) {
  fill(table, requests.slice(-8).reverse().map((each) =>
    element("tr", {},
      element("th", { scope: "row" }, each.kind.replace("_", " ") || `request ${each.id}`),
      element("td", {},
        element("p", {}, each.who ? `${each.who}${each.host ? `@${each.host}` : ""}` : "not known"),
        each.asked_at ? element("p", { class: "quiet" }, time(Date.parse(each.asked_at) / 1000)) : null),
      outcome(each),
    )), "nobody has asked for anything");
}

export function showStatements(table, statements) {
  fill(table, statements.slice(-8).reverse().map((each) =>
    element("tr", {},
      element("th", { scope: "row" }, each.table ? `${each.offset} ${each.table}` : each.offset),
      element("td", {}, element("code", {}, each.statement)),
      element("td", {}, each.effect),
    )), "none since the job was created");
}

export function showTroubles(list, troubles) {
  const items = troubles.map((each) =>
    element("li", {},
      element("p", { class: "message" }, each.message),
      each.detail ? element("p", { class: "quiet" }, each.detail) : null,
      each.hint ? element("p", { class: "quiet" }, "What helps: ", ...withCode(each.hint)) : null,
      element("p", { class: "quiet" }, when(each)),
    ));
  const none = element("li", { class: "quiet" }, "none since this driver started");
  list.replaceChildren(...(items.length ? items : [none]));
}

// `title` says it, `text` explains, `hint` helps.
export function notice({ title, text, hint, bad }) {
  return element("div", { class: bad ? "notice bad" : "notice" },
    element("h2", {}, title),
    text ? element("p", {}, text) : null,
    hint ? element("p", { class: "hint" }, ...withCode(hint)) : null,
  );
}

// `between backticks` is what one types.
function withCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part));
}

export function fill(table, rows, nothing) {
  const columns = table.tHead.rows[0].cells.length;
  const empty = element("tr", {}, element("td", { class: "empty", colspan: columns }, nothing));
  table.tBodies[0].replaceChildren(...(rows.length ? rows : [empty]));
}

function bitmap(worker) {
  return element("span", { class: "bitmap" }, clipped(worker.bitmap || "no vnode", 120));
}

export function number(text) {
  return element("td", { class: "number" }, text);
}

function outcome(request) {
  if (request.refused) return element("td", { class: "refused" }, `refused: ${request.refused}`);
  if (request.epoch === null) return element("td", { class: "quiet" }, "waits for the next barrier");
  return element("td", {}, `done in epoch ${count(request.epoch)}`);
}

function when(trouble) {
  const { first_at: first, last_at: last } = trouble;
  const span = last - first >= 1 ? `${time(first)} to ${time(last)}` : time(first);
  return trouble.attempts > 1 ? `${span}, attempt ${trouble.attempts}` : span;
}

function clipped(text, length) {
  return text.length > length ? `${text.slice(0, length)} …` : text.replaceAll(",", ", ");
}

// Draws the worker's vnodes among all of them.
function strip(bitmap, vnodes) {
  const runs = bitmap ? bitmap.split(",").map((run) => run.split("-").map(Number)) : [];
  const path = runs.map(([first, last = first]) => `M${first} 0h${last - first + 1}v1h${first - last - 1}z`).join("");
  const box = { viewBox: `0 0 ${vnodes || 1} 1`, preserveAspectRatio: "none" };
  const drawn = shape("svg", { class: "strip", "aria-hidden": "true", ...box });
  drawn.append(shape("path", { d: path }));
  return drawn;
}
