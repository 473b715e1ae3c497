// What the lines of the decision log come to as stretches of time: grants, loads, times in which people chat, and moments
// at which a model went. Pure: it draws nothing and asks no clock.

/**
 * A stretch of time in milliseconds; `end` null while it goes on.
 * @typedef {{kind: string, start: number, end: number|null, class: string, model: string, device: string, job: number|null,
 *   step: number, steps: number, waited: number, rule: string, how: string, instance: number|null}} Span
 */

/**
 * A model that went, or was told to.
 * @typedef {{at: number, model: string, device: string, why: string}} Moment
 */

const ENDS_A_STEP = new Set(["step", "complete", "cancel", "abort", "reject", "enqueue"]);

export class Spans {
  constructor() {
    /** @type {Span[]} */
    this.grants = [];
    /** @type {Span[]} */
    this.loads = [];
    /** @type {Span[]} */
    this.modes = [];
    /** @type {Moment[]} */
    this.gone = [];
    /** @type {Map<number, Span>} */
    this.running = new Map();
    /** @type {Map<string, Span>} */
    this.open = new Map();
    this.last = 0;
  }

  /** Take the next line. @param {any} line */
  add(line) {
    const at = Date.parse(line.time);
    if (!Number.isFinite(at)) return;
    if (typeof line.job === "number" && ENDS_A_STEP.has(line.event)) this.endStep(line, at);
    switch (line.event) {
      case "dispatch":
        this.endStep(line, at);
        this.running.set(line.job, this.begun(this.grants, "grant", line, at));
        break;
      case "load":
        this.open.set(`load ${line.instance}`, this.begun(this.loads, "load", line, at));
        break;
      case "ready":
        this.ended(`load ${line.instance}`, at, "ready");
        break;
      case "mode":
        if (line.interactive) {
          if (!this.open.has(`mode ${line.device}`)) this.open.set(`mode ${line.device}`, this.begun(this.modes, "mode", line, at));
        } else this.ended(`mode ${line.device}`, at, "");
        break;
      case "evict":
        this.gone.push({ at, model: line.model ?? "", device: line.device ?? "", why: line.reason ?? line.rule ?? "" });
        break;
      case "exit":
      case "released":
        this.ended(`load ${line.instance}`, at, line.event);
        for (const [job, span] of this.running) if (span.instance === line.instance) this.endStep({ job, event: line.event }, at);
        break;
      case "start":
        this.endAll(at, "start");
        break;
      case "gap":
        this.endAll(this.last, "gap"); // how it went on was not read, and what began may have ended
        return;
      default:
    }
    this.last = at;
  }

  /** Everything that ended before this moment is forgotten. @param {number} before */
  forget(before) {
    const kept = (/** @type {Span} */ each) => each.end === null || each.end >= before;
    this.grants = this.grants.filter(kept);
    this.loads = this.loads.filter(kept);
    this.modes = this.modes.filter(kept);
    this.gone = this.gone.filter((each) => each.at >= before);
  }

  /** Nothing that was going on goes on: the server was started again, or was not heard. @param {number} at @param {string} event */
  endAll(at, event) {
    for (const job of [...this.running.keys()]) this.endStep({ job, event }, at);
    for (const name of [...this.open.keys()]) this.ended(name, at, event === "gap" ? "its end was not read" : "ended with the server");
  }

  /** @param {Span[]} list @param {string} kind @param {any} line @param {number} at @returns {Span} */
  begun(list, kind, line, at) {
    const span = {
      kind, start: at, end: null, class: line.class ?? "", model: line.model ?? "", device: line.device ?? "", job: line.job ?? null,
      step: line.step ?? 1, steps: line.steps ?? 1, waited: line.queue_ms ?? 0, rule: line.rule ?? "", how: "", instance: line.instance ?? null,
    };
    list.push(span);
    return span;
  }

  /** @param {any} line @param {number} at */
  endStep(line, at) {
    const span = this.running.get(line.job);
    if (!span) return;
    span.end = at;
    span.how = line.event === "dispatch" || line.event === "enqueue" ? "" : line.event;
    this.running.delete(line.job);
  }

  /** @param {string} name @param {number} at @param {string} how */
  ended(name, at, how) {
    const span = this.open.get(name);
    if (!span) return;
    span.end = at;
    span.how = how;
    this.open.delete(name);
  }
}

/**
 * Stretches in as few rows as there are at one time: each with the number of its row, and how many rows there are.
 * @param {Span[]} spans
 * @returns {{placed: [Span, number][], rows: number}}
 */
export function packed(spans) {
  /** @type {number[]} */
  const free = [];
  /** @type {[Span, number][]} */
  const placed = [];
  for (const span of spans) {
    let row = free.findIndex((until) => until <= span.start);
    if (row < 0) row = free.length;
    free[row] = span.end ?? Infinity;
    placed.push([span, row]);
  }
  return { placed, rows: Math.max(1, free.length) };
}
