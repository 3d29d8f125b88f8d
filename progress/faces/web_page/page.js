// Asks the driver once a second for its report, and shows it. If the driver does not answer, the page says that it is
// gone and keeps the last report, until it answers again.

import { Grid } from "./grid.js";
import { filterChanged, showTables } from "./many.js";
import { Plot, TIME_STEPS } from "./plot.js";
import { notice, showEpochs, showRequests, showStatements, showTroubles, showWorkers } from "./tables.js";
import { about, bytes, count, seconds, share, short, time } from "./words.js";

const POLL = 1000;
const HIDDEN_POLL = 5000;
const HISTORY_EVERY = 30;
const STALE_SECONDS = 60;
const RECENT_SECONDS = 900;

const byId = (id) => document.getElementById(id);
const set = (id, text) => {
  const target = byId(id);
  if (target.textContent !== text) target.textContent = text;
};

const seen = { history: { recent: [], whole: [] }, last: null, heardAt: null, failed: 0, polls: 0, span: "recent" };
// Of a job of many tables: which names are shown, and the table whose vnodes are.
const many = { filter: "", table: "" };
const drawn = new Map();

const grid = new Grid(byId("grid"), describeVnodes);
const plots = [
  plot("rate", "Rows per second", (sample) => sample.rows_per_second, short),
  plot("lag", "Log lag", (sample) => sample.lag_seconds, seconds, TIME_STEPS),
  plot("buffer", "Buffer", (sample) => sample.buffer_bytes, bytes),
];

for (const choice of document.querySelectorAll("input[name=span]")) {
  choice.addEventListener("change", () => {
    seen.span = choice.value;
    showPlots();
  });
}

byId("tables-filter").addEventListener("input", (event) => {
  many.filter = event.target.value;
  filterChanged();
});
byId("vnodes-all").addEventListener("click", () => choose(""));

poll();

function plot(id, name, value, format, steps) {
  return new Plot(byId(`${id}-plot`), byId(`${id}-now`), { name, value, format, steps });
}

async function poll() {
  try {
    if (seen.polls % HISTORY_EVERY === 0 || seen.failed > 0) seen.history = await ask("history.json");
    const told = await ask(many.filter ? `page.json?tables=${encodeURIComponent(many.filter)}` : "page.json");
    if (many.table) told.table = await ask(`table.json?table=${encodeURIComponent(many.table)}`).catch(() => null);
    seen.last = told;
    seen.heardAt = Date.now() / 1000;
    seen.failed = 0;
    seen.polls += 1;
    remember(told.sample);
    show(told);
  } catch (error) {
    seen.failed += 1;
    if (seen.failed > 1) showGone();
  }
  setTimeout(poll, document.hidden ? HIDDEN_POLL : POLL);
}

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(5000), cache: "no-store" });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

function remember(sample) {
  if (!sample) return;
  for (const samples of [seen.history.recent, seen.history.whole]) {
    const newest = samples[samples.length - 1];
    if (!newest || sample.at > newest.at) samples.push(sample);
  }
  const { recent } = seen.history;
  while (recent.length && recent[0].at < sample.at - RECENT_SECONDS) recent.shift();
}

function show(told) {
  delete document.body.dataset.gone;
  const report = told.report;
  if (report === null) {
    set("phase-word", "starting");
    return;
  }
  showHead(report);
  showFacts(report);
  showMany(told);
  const part = told.table ?? told;
  showGrid(part.report, part.grid);
  showPlots();
  const vnodes = told.grid.length;
  once("workers", report.workers, () => showWorkers(byId("workers"), byId("workers-more"), report.workers, vnodes));
  once("epochs", told.epochs, () => showEpochs(byId("epochs"), told.epochs));
  once("definition", report.definition, () => showDefinition(report.definition));
  once("requests", report.requests, () => showRequests(byId("requests"), report.requests));
  once("troubles", told.troubles, () => showTroubles(byId("troubles"), told.troubles));
  showNotices(notices(told));
  set("driver", report.driver ? `Driven by ${report.driver}` : "No driver");
  set("updated", `Reported at ${time(told.shown_at)}`);
}

function showMany(told) {
  byId("tables-card").hidden = !told.tables;
  if (!told.tables) return;
  once("tables", [told.tables, told.tables_found, many.table], () => showTables(byId("tables"), told, many.table, choose));
  const lost = told.tables_lost ? `, ${count(told.tables_lost)} not copied` : "";
  set("tables-note", `${count(told.tables_total)} tables${lost}`);
  const left = told.tables_found - told.tables.length;
  set("tables-more", left > 0 ? `and ${count(left)} more; filter by name to see them` : "");
  set("vnodes-of", many.table ? ` of ${many.table}` : "");
  byId("vnodes-all").hidden = !many.table;
}

// Shows the vnodes of one table, or of all again; the next answer of the driver holds them.
function choose(table) {
  many.table = table === many.table ? "" : table;
  if (seen.last) showMany(seen.last);
}

function showHead(report) {
  document.title = `${report.percent.toFixed(1)} % · ${report.phase} · ${report.job}`;
  set("job", report.job);
  set("route", `${report.source} → ${report.sink}`);
  byId("phase").dataset.phase = report.phase;
  document.body.dataset.jobPhase = report.phase;
  set("phase-word", report.phase);
  set("percent", report.percent.toFixed(2));
  const bar = byId("bar");
  bar.setAttribute("aria-valuenow", report.percent);
  byId("bar-fill").style.width = `${report.percent}%`;
  byId("bar-in-hand").style.width = `${report.in_hand.percent}%`;
  set("rows", count(report.rows));
  const done = report.ranges === report.ranges_total && report.phase !== "planning";
  const more = report.in_hand.rows ? ` · ${count(report.in_hand.rows)} more in progress` : "";
  set("rows-of", (done ? "rows read" : `of about ${count(report.estimated_rows)} rows`) + more);
}

function showFacts(report) {
  const reading = report.ranges < report.ranges_total;
  set("rate", report.rows_per_second == null ? "–" : `${short(report.rows_per_second)} rows/s`);
  set("rate-note", rateNote(report, reading));
  const live = report.phase === "live";
  set("eta", live ? "done" : about(report.eta_seconds));
  set("eta-note", live ? "every vnode in step" : report.eta_seconds == null ? "" : "until all is read");
  set("lag", seconds(report.lag_seconds));
  set("lag-note", lagNote(report));
  set("buffer", bytes(report.buffer_bytes));
  set("epoch", count(report.epoch));
  set("epoch-note", `commit ${count(report.revision)}`);
  set("ranges", count(report.ranges));
  set("ranges-note", `of ${count(report.ranges_total)} read`);
  set("lake-age", seconds(report.lake_age_seconds));
  set("lake-age-note", report.lake_age_seconds == null ? "" : "of the newest change merged");
  showTarget(report.target);
  set("written", report.written ?? "–");
  set("applied", report.applied ?? "–");
}

// What a target does not have is not shown: vectors, or files at all.
function showTarget(target) {
  byId("target-fact").hidden = target === null;
  byId("vectors-fact").hidden = target === null || target.vector_share === null;
  byId("cost-fact").hidden = target === null || target.write_amplification === null;
  if (target === null) return;
  set("target", bytes(target.bytes));
  set("target-note", `${count(target.files)} files`);
  set("vectors", share(target.vector_share));
  set("vectors-note", `${bytes(target.fold_debt_bytes)} to fold`);
  set("cost", target.write_amplification === null ? "–" : `${short(target.write_amplification)} ×`);
  set("cost-note", "per byte changed");
}

// A table that no statement was about has nothing to show.
function showDefinition(definition) {
  byId("statements-card").hidden = !definition || (!definition.version && !definition.statements.length);
  if (!definition) return;
  const behind = definition.in_target < definition.version ? `, target at ${count(definition.in_target)}` : "";
  set("definition", `version ${count(definition.version)}${behind}`);
  showStatements(byId("statements"), definition.statements);
}

function lagNote(report) {
  if (report.lag_bytes != null) return `${bytes(report.lag_bytes)} of log`;
  return report.lag_seconds == null ? "" : "behind the source";
}

function rateNote(report, reading) {
  if (!report.driver) return "";
  if (report.throttled_by) return `waits: ${report.throttled_by}`;
  if (report.paused) return "paused";
  if (report.rate_limit != null) return `limit ${short(report.rate_limit)} rows/s`;
  return reading ? "no limit" : "all is read";
}

function showGrid(report, letters) {
  grid.show(letters);
  const phases = report.phases;
  for (const item of document.querySelectorAll("#legend li")) {
    const figure = item.querySelector("strong");
    const text = count(phases[item.dataset.phase]);
    if (figure.textContent !== text) figure.textContent = text;
  }
  const label = Object.entries(phases).map(([phase, vnodes]) => `${vnodes} ${phase}`).join(", ");
  byId("grid").setAttribute("aria-label", letters ? `${letters.length} vnodes: ${label}` : "No vnodes yet");
  const per = Number(byId("grid").dataset.per || 1);
  const each = per === 1 ? "one square each" : `a square is ${per} vnodes`;
  set("grid-note", letters ? `${count(letters.length)} vnodes, ${each}` : "known once the table is planned");
}

async function describeVnodes(chosen) {
  const target = byId("vnode");
  if (chosen === null) {
    target.textContent = "Point at a square, or move with the arrow keys, to see its vnode.";
    return;
  }
  const asked = `${chosen.first}-${chosen.last}`;
  target.dataset.asked = asked;
  try {
    const of = many.table ? `&table=${encodeURIComponent(many.table)}` : "";
    const { vnodes } = await ask(`vnodes.json?first=${chosen.first}&last=${chosen.last}${of}`);
    if (target.dataset.asked === asked && vnodes.length) target.textContent = vnodeText(vnodes);
  } catch (error) {
    target.textContent = `vnode ${asked}: the driver does not answer`;
  }
}

function vnodeText(vnodes) {
  const [first, last] = [vnodes[0], vnodes[vnodes.length - 1]];
  const rows = vnodes.reduce((sum, each) => sum + each.rows, 0);
  if (vnodes.length === 1) {
    const place = `worker ${first.worker}, epoch ${first.epoch}, applied up to ${first.applied}`;
    return `Vnode ${first.vnode}: ${first.phase}, ${count(rows)} rows, ${place}`;
  }
  const phases = [...new Set(vnodes.map((each) => each.phase))].join(", ");
  return `Vnodes ${first.vnode}–${last.vnode}: ${phases}, ${count(rows)} rows`;
}

function showPlots() {
  const samples = seen.history[seen.span];
  if (!samples.length) return;
  const to = samples[samples.length - 1].at;
  const from = Math.min(samples[0].at, to - 60);
  for (const plot of plots) plot.show(samples, from, to);
}

function notices(told) {
  const report = told.report;
  const found = [];
  if (report.phase === "failed" && report.failure) {
    const { message, detail, hint, epoch } = report.failure;
    found.push({ title: `Failed in epoch ${epoch}: ${message}`, text: detail, hint, bad: true });
  } else if (told.now - told.shown_at > STALE_SECONDS) {
    const title = `The driver has not reported since ${time(told.shown_at)}`;
    found.push({ title, text: "It still answers, but the job may hang.", bad: true });
  }
  if (report.retry) found.push({ title: `Trying again, attempt ${report.retry.attempt}`, text: report.retry.message });
  for (const alert of told.alerts) {
    found.push({ title: sentence(alert.message), text: `Since ${time(alert.since)}.`, hint: alert.hint });
  }
  const { pending, ended, new_copy: copy } = report.definition ?? {};
  if (copy) {
    const title = `A new copy of the table is being made, since ${time(Date.parse(copy.since) / 1000)}`;
    const cause = copy.offset ? ` (${copy.offset}: ${copy.statement})` : "";
    const text = `${sentence(copy.reason)}${cause}. Until it is live, readers see ${copy.readers}.`;
    found.push({ title, text });
  }
  if (pending) {
    const target = pending.table ? `The target of ${pending.table}` : "The target";
    found.push({ title: `${target} is being changed for the statement at ${pending.offset}`, text: pending.statement });
  }
  if (ended) found.push({ title: `The table was ${ended}`, text: "Target and state stay as they are." });
  if (report.throttled_by) {
    found.push({ title: `The snapshot waits: ${report.throttled_by}`, text: "The log is still captured." });
  }
  return found;
}

function showGone() {
  document.body.dataset.gone = "";
  byId("phase").dataset.phase = "gone";
  set("phase-word", "driver gone");
  const never = seen.heardAt === null;
  const gone = {
    title: never ? "The driver does not answer" : `Driver gone since ${time(seen.heardAt)}`,
    text: never ? "It has not answered yet." : "This is its last report. The page keeps asking.",
    hint: "`vnode-backfill status --config …` shows the job; `vnode-backfill run --config …` continues it.",
    bad: true,
  };
  const before = seen.last?.report ? notices(seen.last) : [];
  showNotices([gone, ...before.filter((each) => each.bad)]);
}

function showNotices(found) {
  once("notices", found, () => byId("notices").replaceChildren(...found.map(notice)));
}

// Draw a part again only if what it shows has changed: a selection or a scroll position stays.
function once(part, value, draw) {
  const text = JSON.stringify(value);
  if (drawn.get(part) === text) return;
  drawn.set(part, text);
  draw();
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
