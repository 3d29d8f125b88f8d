// Draws the vnodes as squares that fill up: empty, half, three quarters, full. So the phase can be seen without its
// colour. Up to a few thousand squares fit. With more vnodes a square is 2, 4, 8, … neighbours and is filled by their
// shares.

const PHASES = { p: "pending", s: "snapshot", c: "catch-up", l: "live" };
const LEVELS = { p: 0, s: 0.45, c: 0.72, l: 1 };
const COLUMNS = [8, 16, 32, 64, 128, 256];
const SMALLEST = 6;
const LARGEST = 30;

// The largest squares that fit the width and the height, and how many vnodes are in each.
export function layout(vnodes, width, height) {
  for (let per = 1; ; per *= 2) {
    const cells = Math.ceil(vnodes / per);
    let best = null;
    for (const columns of COLUMNS) {
      const size = Math.min(LARGEST, width / columns);
      const rows = Math.ceil(cells / columns);
      const fits = rows * size <= height && size >= Math.min(SMALLEST, width / COLUMNS[0]);
      if (fits && (best === null || size > best.size)) best = { per, cells, columns, rows, size };
    }
    if (best !== null) return best;
  }
}

export class Grid {
  constructor(canvas, describe) {
    this.canvas = canvas;
    this.describe = describe;
    this.letters = "";
    this.chosen = -1;
    canvas.addEventListener("pointermove", (event) => this.choose(this.cellAt(event)));
    canvas.addEventListener("pointerdown", (event) => this.choose(this.cellAt(event)));
    canvas.addEventListener("pointerleave", () => this.choose(-1));
    canvas.addEventListener("keydown", (event) => this.move(event));
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  show(letters) {
    if (letters === this.letters) return;
    this.letters = letters;
    this.draw();
    if (this.chosen >= 0) this.tell();
  }

  draw() {
    const width = this.canvas.parentElement.clientWidth;
    if (!this.letters || !width) return;
    const place = layout(this.letters.length, width, width < 500 ? 360 : 250);
    this.place = place;
    const ratio = window.devicePixelRatio || 1;
    const shown = place.rows * place.size;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(shown * ratio);
    this.canvas.style.height = `${shown}px`;
    this.canvas.dataset.cells = place.cells;
    this.canvas.dataset.per = place.per;
    this.paint(ratio);
  }

  paint(ratio) {
    const context = this.canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const colours = Object.fromEntries(Object.entries(PHASES).map(([letter, name]) => [letter, colour(name)]));
    colours.empty = colour("pending-fill");
    colours.chosen = colour("ink");
    context.scale(ratio, ratio);
    for (let cell = 0; cell < this.place.cells; cell++) this.paintCell(context, cell, colours);
  }

  paintCell(context, cell, colours) {
    const { per, columns, size } = this.place;
    const gap = size >= 12 ? 3 : size >= 8 ? 2 : 1;
    const side = size - gap;
    const x = (cell % columns) * size + gap / 2;
    const y = Math.floor(cell / columns) * size + gap / 2;
    const radius = side >= 10 ? 3 : side >= 6 ? 1.5 : 0;
    context.save();
    context.beginPath();
    context.roundRect(x, y, side, side, radius);
    context.fillStyle = colours.empty;
    context.fill();
    context.clip();
    let floor = y + side;
    for (const [letter, share] of this.shares(cell * per, per)) {
      const height = side * share;
      context.fillStyle = colours[letter];
      context.fillRect(x, floor - height, side, height);
      floor -= height;
    }
    context.restore();
    this.outline(context, { cell, x, y, side, radius }, colours);
  }

  outline(context, { cell, x, y, side, radius }, colours) {
    const { per } = this.place;
    if (cell === this.chosen) {
      context.strokeStyle = colours.chosen;
      context.lineWidth = 2;
    } else if (per === 1 && side >= 8) {
      context.strokeStyle = colours[this.letters[cell]];
      context.lineWidth = 1;
    } else {
      return;
    }
    context.beginPath();
    context.roundRect(x + 0.5, y + 0.5, side - 1, side - 1, radius);
    context.stroke();
  }

  // What fills a square from below: one vnode up to its level, or the shares of several, the furthest first.
  shares(first, per) {
    if (per === 1) return [[this.letters[first], LEVELS[this.letters[first]]]];
    const part = this.letters.slice(first, first + per);
    return ["l", "c", "s"].map((letter) => [letter, (part.split(letter).length - 1) / part.length]);
  }

  cellAt(event) {
    if (!this.place) return -1;
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.place.size);
    const row = Math.floor((event.clientY - box.top) / this.place.size);
    const cell = row * this.place.columns + column;
    return column >= 0 && column < this.place.columns && row >= 0 && cell < this.place.cells ? cell : -1;
  }

  move(event) {
    if (!this.place) return;
    const { columns } = this.place;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const next = this.chosen < 0 ? 0 : this.chosen + step;
    if (next >= 0 && next < this.place.cells) this.choose(next);
  }

  choose(cell) {
    if (cell === this.chosen) return;
    this.chosen = cell;
    this.draw();
    this.tell();
  }

  tell() {
    if (this.chosen < 0) return this.describe(null);
    const first = this.chosen * this.place.per;
    this.describe({ first, last: Math.min(first + this.place.per, this.letters.length) - 1 });
  }
}
