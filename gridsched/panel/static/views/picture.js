// How the timeline is drawn: lanes, bars and an axis on a canvas, and which bar is where.

import { now } from "/panel/state.js";
import { CLASSES } from "/panel/views/queues.js";
import { packed } from "/panel/views/spans.js";

/** @typedef {import("/panel/views/spans.js").Span} Span */

const LABEL = 17;
const BAR = 9;
const GAP = 2;
const BETWEEN = 7;
const AXIS = 22;
const MODE = 8;
const LABELLED = 26;
const LEAST_WIDTH = 1.5;
const REACH = 4;
const FASTEST_MS = 60;
const CALM_MS = 1000;
const SHARE = 4;

/**
 * @typedef {{label: string, kind: string, class: string, placed: [Span, number][], rows: number}} Lane
 * @typedef {{span: Span, x: number, y: number, width: number, height: number}} Box
 */

export class Picture {
  /** @param {HTMLCanvasElement} canvas @param {import("/panel/views/spans.js").Spans} spans */
  constructor(canvas, spans) {
    this.canvas = canvas;
    this.spans = spans;
    this.seconds = 300;
    /** @type {Span|null} */
    this.chosen = null;
    /** @type {Box[]} */
    this.boxes = [];
    /** @type {Record<string, string>} */
    this.colours = {};
    this.width = 0;
  }

  /** Another stretch of time. @param {number} seconds */
  show(seconds) {
    this.seconds = seconds;
    this.draw();
  }

  /** Draw it as time goes on, where somebody looks. Gives what ends that. */
  live() {
    let frame = 0;
    let drawn = 0;
    const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    const recolour = () => {
      this.colours = {};
      this.draw();
    };
    const tick = (/** @type {number} */ at) => {
      const pause = calm.matches ? CALM_MS : Math.max(FASTEST_MS, (1000 * this.seconds) / Math.max(1, this.width));
      if (at - drawn >= pause) {
        const began = performance.now();
        this.draw();
        drawn = at + SHARE * (performance.now() - began); // most of the time is left to whoever looks
      }
      frame = requestAnimationFrame(tick);
    };
    const sized = new ResizeObserver(() => this.draw());
    sized.observe(this.canvas);
    dark.addEventListener("change", recolour);
    window.addEventListener("themechange", recolour);
    frame = requestAnimationFrame(tick);
    return () => {
      cancelAnimationFrame(frame);
      sized.disconnect();
      dark.removeEventListener("change", recolour);
      window.removeEventListener("themechange", recolour);
    };
  }

  /** The bar at a place, or near it. @param {number} x @param {number} y */
  at(x, y) {
    let best = null;
    let distance = REACH;
    for (const box of this.boxes) {
      if (y < box.y - 1 || y > box.y + box.height + 1) continue;
      const away = Math.max(box.x - x, x - box.x - box.width, 0);
      if (away < distance) {
        best = box.span;
        distance = away;
      }
    }
    return best;
  }

  /** The grant before or after the chosen one, as they began. @param {number} step */
  neighbour(step) {
    const found = this.spans.grants.filter((each) => (each.end ?? Infinity) >= now() - this.seconds * 1000);
    const index = this.chosen ? found.indexOf(this.chosen) : -1;
    if (index < 0) return found.at(-1) ?? null;
    return found[Math.min(found.length - 1, Math.max(0, index + step))];
  }

  /** @returns {Lane[]} */
  lanes() {
    const from = now() - this.seconds * 1000;
    const shown = (/** @type {Span} */ each) => (each.end ?? Infinity) >= from;
    /** @type {Map<string, Span[]>} */
    const found = new Map();
    const put = (/** @type {string} */ name, /** @type {Span} */ each) => {
      const list = found.get(name);
      if (list) list.push(each);
      else found.set(name, [each]);
    };
    for (const each of this.spans.modes) if (shown(each)) put(`0\npeople chat on ${each.device}\nmode\n`, each);
    for (const each of this.spans.loads) if (shown(each)) put(`1\nloads\nload\n`, each);
    if (this.spans.gone.some((each) => each.at >= from) && ![...found.keys()].some((each) => each.startsWith("1"))) found.set("1\nloads\nload\n", []);
    for (const each of this.spans.grants) {
      if (shown(each)) put(`${2 + CLASSES.indexOf(each.class)}\n${each.class} · ${each.model}\ngrant\n${each.class}`, each);
    }
    return [...found.keys()].sort().map((name) => {
      const [, label, kind, job_class] = name.split("\n");
      return { label, kind, class: job_class, ...packed(found.get(name) ?? []) };
    });
  }

  draw() {
    const lanes = this.lanes();
    const heights = lanes.map((lane) => LABEL + (lane.kind === "mode" ? MODE : lane.rows * (BAR + GAP)) + BETWEEN);
    const height = Math.max(80, heights.reduce((sum, each) => sum + each, 0) + AXIS);
    const context = this.sized(height);
    if (!context) return;
    const end = now();
    const scale = this.width / (this.seconds * 1000);
    this.boxes = [];
    this.axis(context, height, end, scale);
    let y = 0;
    for (const [index, lane] of lanes.entries()) {
      this.lane(context, lane, y, end, scale);
      y += heights[index];
    }
    if (!lanes.length) this.words(context, "Nothing has run in this time.", 0, 30);
  }

  /** The canvas as large as its place, in the screen's own points. @param {number} height */
  sized(height) {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    if (!this.width) return null;
    const [wide, high] = [Math.round(this.width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== wide || this.canvas.height !== high) {
      this.canvas.width = wide;
      this.canvas.height = high;
      this.canvas.style.setProperty("height", `${height}px`);
    }
    const context = this.canvas.getContext("2d");
    context?.setTransform(ratio, 0, 0, ratio, 0, 0);
    context?.clearRect(0, 0, this.width, height);
    return context;
  }

  /** @param {string} name */
  colour(name) {
    if (!this.colours[name]) this.colours[name] = getComputedStyle(this.canvas).getPropertyValue(`--${name}`).trim() || "#888";
    return this.colours[name];
  }

  /** @param {CanvasRenderingContext2D} context @param {string} text @param {number} x @param {number} y */
  words(context, text, x, y) {
    context.font = `12px ${getComputedStyle(this.canvas).fontFamily}`;
    context.fillStyle = this.colour("soft");
    context.textBaseline = "alphabetic";
    context.fillText(text, x, y);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} height @param {number} end @param {number} scale */
  axis(context, height, end, scale) {
    const step = this.seconds > 120 ? (this.width < 500 ? 120 : 60) : this.width < 500 ? 20 : 10;
    context.strokeStyle = this.colour("line");
    context.lineWidth = 1;
    for (let at = Math.ceil((end / 1000 - this.seconds) / step) * step; at * 1000 <= end; at += step) {
      const x = Math.round(this.width - (end - at * 1000) * scale) + 0.5;
      if (x < LABELLED) continue;
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x, height - AXIS + 4);
      context.stroke();
      const moment = new Date(at * 1000);
      const text = [moment.getHours(), moment.getMinutes(), moment.getSeconds()].map((each) => String(each).padStart(2, "0")).join(":");
      if (x < this.width - LABELLED) this.words(context, text, x - 24, height - 6);
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {Lane} lane @param {number} y @param {number} end @param {number} scale */
  lane(context, lane, y, end, scale) {
    this.words(context, lane.label, 0, y + 12);
    const top = y + LABEL;
    /** @type {number[]} */
    const reached = [];
    for (const [span, row] of lane.placed) {
      const x = Math.max(0, this.width - (end - span.start) * scale);
      const right = this.width - (end - (span.end ?? end)) * scale;
      if (right <= reached[row] && span !== this.chosen) continue; // in less than a point of the screen behind another
      reached[row] = Math.ceil(right);
      const box = { span, x, y: top + row * (BAR + GAP), width: Math.max(LEAST_WIDTH, right - x), height: lane.kind === "mode" ? MODE : BAR };
      this.boxes.push(box);
      this.bar(context, lane, box);
    }
    if (lane.kind === "load") for (const each of this.spans.gone) this.moment(context, this.width - (end - each.at) * scale, top, each.model);
  }

  /** @param {CanvasRenderingContext2D} context @param {Lane} lane @param {Box} box */
  bar(context, lane, box) {
    const { x, y, width, height } = box;
    if (lane.kind === "grant") {
      context.fillStyle = this.colour(lane.class || "batch");
      const [left, right] = [Math.round(x), Math.round(x + width)];
      context.fillRect(left, y, Math.max(1, right - left), height); // on whole points, so that short ones are seen
    } else if (lane.kind === "mode") {
      context.fillStyle = this.colour("chatting");
      context.fillRect(x, y, width, height);
      context.strokeStyle = this.colour("interactive");
      context.strokeRect(x + 0.5, y + 0.5, Math.max(1, width - 1), height - 1);
    } else this.load(context, box);
    if (box.span === this.chosen) {
      context.strokeStyle = this.colour("ink");
      context.lineWidth = 2;
      context.strokeRect(x - 2, y - 2, width + 4, height + 4);
      context.lineWidth = 1;
    }
  }

  /** A load: stripes, and the model where there is room. @param {CanvasRenderingContext2D} context @param {Box} box */
  load(context, { span, x, y, width, height }) {
    context.save();
    context.strokeStyle = this.colour("good");
    context.strokeRect(x + 0.5, y + 0.5, Math.max(1, width - 1), height - 1);
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.beginPath();
    for (let at = x - height; at < x + width; at += 5) {
      context.moveTo(at, y + height);
      context.lineTo(at + height, y);
    }
    context.stroke();
    context.restore();
    const next = Math.min(...this.spans.loads.filter((each) => each !== span && each.start > span.start).map((each) => each.start), Infinity);
    const room = next === Infinity ? this.width - x - width : (next - (span.end ?? next)) * (this.width / (this.seconds * 1000));
    context.font = `11px ${getComputedStyle(this.canvas).fontFamily}`;
    if (context.measureText(span.model).width + 10 < room) this.words(context, span.model, x + width + 5, y + height);
  }

  /** A model that went. @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {string} model */
  moment(context, x, y, model) {
    if (x < 0 || !model) return;
    context.fillStyle = this.colour("bad");
    context.beginPath();
    context.moveTo(x - 5, y - 5);
    context.lineTo(x + 5, y - 5);
    context.lineTo(x, y + 4);
    context.fill();
  }
}
