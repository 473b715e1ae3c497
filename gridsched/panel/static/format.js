// Sizes, durations and times as a person reads them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** @param {number|null|undefined} bytes */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let value = Math.abs(bytes);
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${bytes < 0 ? "-" : ""}${unit === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${UNITS[unit]}`;
}

/** @param {number|null|undefined} seconds */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

/** The time of day of an RFC 3339 time, in this browser's zone. @param {string} time */
export function clock(time) {
  const moment = new Date(time);
  if (Number.isNaN(moment.getTime())) return "–";
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const ms = String(moment.getMilliseconds()).padStart(3, "0");
  return `${two(moment.getHours())}:${two(moment.getMinutes())}:${two(moment.getSeconds())}.${ms}`;
}
