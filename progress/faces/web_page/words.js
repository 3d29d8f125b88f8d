// How figures are written: the same words and units everywhere on the page.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const shortClock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

export const UNKNOWN = "–";

export function count(value) {
  return value == null ? UNKNOWN : whole.format(value);
}

// 1234567 as 1.23 M: for axes and narrow places.
export function short(value) {
  if (value == null) return UNKNOWN;
  for (const [size, sign] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${digits(value / size)} ${sign}`;
  }
  return digits(value);
}

export function bytes(value) {
  if (value == null) return UNKNOWN;
  const text = short(value);
  return /[a-zA-Z]$/.test(text) ? `${text}B` : `${text} B`;
}

// 0.0123 as 1.23 %.
export function share(value) {
  return value == null ? UNKNOWN : `${digits(value * 100)} %`;
}

export function seconds(value) {
  if (value == null) return UNKNOWN;
  if (value === 0) return "0 s";
  if (value < 0.95) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${digits(value)} s`;
  if (value < 7200) return `${digits(value / 60)} min`;
  if (value < 172800) return `${digits(value / 3600)} h`;
  return `${digits(value / 86400)} days`;
}

// A length of time that is an estimate.
export function about(value) {
  if (value == null) return UNKNOWN;
  return `about ${seconds(value < 120 ? Math.round(value) : value < 7200 ? Math.round(value / 60) * 60 : value)}`;
}

// Of a moment in seconds since 1970; with the day if it is not today's.
export function time(at) {
  const moment = new Date(at * 1000);
  const text = clock.format(moment);
  return moment.toDateString() === new Date().toDateString() ? text : `${day.format(moment)}, ${text}`;
}

export function axisTime(at, span) {
  const moment = new Date(at * 1000);
  if (span > 2 * 86400) return day.format(moment);
  return span < 180 ? clock.format(moment) : shortClock.format(moment);
}

function digits(value) {
  const size = Math.abs(value);
  const text = value.toFixed(size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2);
  return text.replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}
