// One figure over time, as SVG: a line, its area, three rules with their values, and a readout under the pointer.

import { UNKNOWN, axisTime, time } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 52;
const BOTTOM = 20;
const TOP = 8;

const POWERS = [-3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13];
const ROUND_STEPS = POWERS.flatMap((power) => [1, 2, 2.5, 5].map((each) => each * 10 ** power));
// In seconds: round numbers of a clock.
export const TIME_STEPS = [
  0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200,
  86400, 172800, 604800,
];

// 0 and two or three equal steps above it, the last at or above the highest, and as little above as can be.
export function ticks(highest, steps = ROUND_STEPS) {
  if (!(highest > 0)) return [0, steps.find((step) => step >= 1)];
  const tops = steps.flatMap((step) => [2, 3].map((times) => ({ step, times, top: step * times })));
  const fitting = tops.filter(({ top }) => top >= highest);
  const lower = (best, each) => (each.top < best.top ? each : best);
  const { step, times } = fitting.reduce(lower, fitting[0] ?? tops[tops.length - 1]);
  return Array.from({ length: times + 1 }, (_, index) => index * step);
}

export class Plot {
  constructor(svg, output, { name, value, format, steps }) {
    Object.assign(this, { svg, output, name, value, format, steps, samples: [], from: 0, to: 1 });
    svg.addEventListener("pointermove", (event) => this.point(event.clientX));
    svg.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(svg);
  }

  show(samples, from, to) {
    Object.assign(this, { samples, from, to });
    this.draw();
  }

  draw() {
    const width = this.svg.clientWidth;
    const height = this.svg.clientHeight;
    if (!width) return;
    const known = this.samples.filter((sample) => this.value(sample) != null);
    const highest = known.reduce((most, sample) => Math.max(most, this.value(sample)), 0);
    this.marks = ticks(highest, this.steps);
    this.width = width;
    this.height = height;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...this.rules(), ...this.times(), ...this.lines());
    this.tell(known, highest);
    this.point(this.pointed ?? null);
  }

  x(at) {
    return LEFT + ((at - this.from) / (this.to - this.from || 1)) * (this.width - LEFT - 4);
  }

  y(value) {
    return this.height - BOTTOM - (value / this.marks[this.marks.length - 1]) * (this.height - BOTTOM - TOP);
  }

  rules() {
    return this.marks.flatMap((mark) => [
      shape("line", { class: "rule", x1: LEFT, x2: this.width, y1: this.y(mark), y2: this.y(mark) }),
      shape("text", { x: LEFT - 8, y: this.y(mark) + 4, "text-anchor": "end" }, this.format(mark)),
    ]);
  }

  times() {
    const span = this.to - this.from;
    const y = this.height - 3;
    return [
      shape("text", { x: LEFT, y }, axisTime(this.from, span)),
      shape("text", { x: this.width, y, "text-anchor": "end" }, axisTime(this.to, span)),
    ];
  }

  // A gap in what is known is a gap in the line.
  lines() {
    const runs = [[]];
    for (const sample of this.samples) {
      const value = this.value(sample);
      if (sample.at < this.from) continue;
      if (value == null) runs.push([]);
      else runs[runs.length - 1].push([this.x(sample.at), this.y(value)]);
    }
    const floor = this.y(0);
    return runs.filter((run) => run.length > 0).flatMap((run) => {
      const line = run.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L");
      const [first, last] = [run[0][0].toFixed(1), run[run.length - 1][0].toFixed(1)];
      return [
        shape("path", { class: "area", d: `M${first},${floor}L${line}L${last},${floor}Z` }),
        shape("path", { class: "line", d: `M${line}` }),
      ];
    });
  }

  tell(known, highest) {
    const now = known.length ? this.format(this.value(known[known.length - 1])) : UNKNOWN;
    this.now = now;
    const label = known.length ? `now ${now}, highest ${this.format(highest)}` : "not known";
    this.svg.setAttribute("aria-label", `${this.name}: ${label}`);
  }

  point(clientX) {
    this.pointed = clientX;
    this.svg.querySelectorAll(".cross, .dot").forEach((mark) => mark.remove());
    this.output.textContent = this.now ?? UNKNOWN;
    if (clientX === null || !this.width) return;
    const x = clientX - this.svg.getBoundingClientRect().left;
    const known = this.samples.filter((sample) => sample.at >= this.from && this.value(sample) != null);
    if (!known.length) return;
    const away = (sample) => Math.abs(this.x(sample.at) - x);
    const near = known.reduce((best, each) => (away(each) < away(best) ? each : best));
    const [cx, cy] = [this.x(near.at), this.y(this.value(near))];
    this.svg.append(
      shape("line", { class: "cross", x1: cx, x2: cx, y1: TOP, y2: this.height - BOTTOM }),
      shape("circle", { class: "dot", cx, cy, r: 4.5 }),
    );
    this.output.textContent = `${this.format(this.value(near))} at ${time(near.at)}`;
  }
}

export function shape(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
