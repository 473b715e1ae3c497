// The picture that explains the scheduler: who had the GPU when, by class and model, with loads, models that went, and the
// times in which people chat. Drawn on a canvas; read by pointer, by keys, and as a table.

import { h, mark, put, say } from "/panel/dom.js";
import { clock, span } from "/panel/format.js";
import { known, now, watch } from "/panel/state.js";
import { cell, table } from "/panel/ui.js";
import { explain } from "/panel/views/explain.js";
import { Picture } from "/panel/views/picture.js";
import { CLASSES } from "/panel/views/queues.js";
import { Spans } from "/panel/views/spans.js";

const WINDOWS = [[60, "1 min"], [300, "5 min"]];
const KEPT_MS = 6 * 60 * 1000;
const FORGET_EVERY = 500;
const IN_TABLE = 60;
const TABLE_MS = 2000;

/** What was read so far; it outlives the view, so that a look at another one loses nothing. */
const spans = new Spans();
let seen = 0;

function read() {
  const fresh = known.count - seen;
  if (fresh > 0) for (const line of known.lines.slice(-fresh)) spans.add(line);
  if (fresh > FORGET_EVERY || (known.count % FORGET_EVERY) + fresh > FORGET_EVERY) spans.forget(now() - KEPT_MS);
  seen = known.count;
}

/** @param {import("/panel/views/spans.js").Span} each */
export function words(each) {
  const end = each.end ?? now();
  const lasted = `${span((end - each.start) / 1000)}${each.end === null ? " so far" : ""}`;
  const from = `${clock(new Date(each.start).toISOString())}`;
  if (each.kind === "mode") return `People chatted on ${each.device} for ${lasted}, from ${from}`;
  if (each.kind === "load") return `${each.model} was loaded on ${each.device} in ${lasted}, from ${from}${each.how === "ready" || !each.how ? "" : ` (${each.how})`}`;
  const step = each.steps > 1 ? `, step ${each.step}/${each.steps}` : "";
  const waited = each.waited >= 1 ? `, after a wait of ${span(each.waited / 1000)}` : ", at once";
  const how = ["", "step", "complete"].includes(each.how) ? "" : ` (${each.how})`;
  return `Job ${each.job}, ${each.class}${step}: ${each.model}, ${lasted}${how}, from ${from}${waited} (${each.rule})`;
}

/** The grants as a table, newest first, for whoever does not see the picture. */
function asTable() {
  const { element, body } = table("Grants of the last minutes, newest first", ["from", "class", "job", "step", "model", "waited", "lasted"]);
  const details = h("details", {}, h("summary", {}, "The same as a table"), h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Grants as a table" }, element));
  let filled = 0;
  const fill = () => {
    if (!(/** @type {HTMLDetailsElement} */ (details).open) || Date.now() - filled < TABLE_MS) return;
    filled = Date.now();
    put(body, spans.grants.slice(-IN_TABLE).reverse().map((each) => h("tr", {},
      cell("from", clock(new Date(each.start).toISOString())), cell("class", each.class), cell("job", each.job), cell("step", `${each.step}/${each.steps}`),
      cell("model", each.model), cell("waited", span(each.waited / 1000)), cell("lasted", each.end === null ? "runs" : span((each.end - each.start) / 1000)))));
  };
  details.addEventListener("toggle", fill);
  return { details, fill };
}

function keysOf() {
  return h("ul", { class: "keys-of", "aria-label": "What is what" },
    CLASSES.map((name) => h("li", {}, h("span", { class: `swatch class-${name}` }), name)),
    h("li", {}, h("span", { class: "swatch loading" }), "a model loads"),
    h("li", {}, h("span", { class: "swatch gone" }), "a model goes"),
    h("li", {}, h("span", { class: "swatch people" }), "people chat"));
}

/** @param {(seconds: number) => void} choose @param {number} first */
function windowButtons(choose, first) {
  const buttons = WINDOWS.map(([seconds, name]) => h("button", { type: "button", "aria-pressed": String(seconds === first), onclick: () => {
    buttons.forEach((each, index) => mark(each, "aria-pressed", String(WINDOWS[index][0] === seconds)));
    choose(Number(seconds));
  } }, name));
  return h("div", { class: "row", role: "group", "aria-label": "How far back" }, buttons);
}

/** The picture. Gives what ends it. @param {Element} root */
export function timeline(root) {
  const canvas = /** @type {HTMLCanvasElement} */ (h("canvas", { "aria-hidden": "true" }));
  const readout = h("p", { class: "readout soft", "aria-live": "polite" });
  const frame = h("div", { class: "timeline card", tabindex: "0", role: "group", "aria-label": "Timeline of grants: arrow keys go from one to the next, Enter explains it" }, canvas);
  const picture = new Picture(canvas, spans);
  const help = "Point at a bar, or go through them with the arrow keys, to see what it is.";
  const choose = (/** @type {import("/panel/views/spans.js").Span|null} */ each) => {
    if (each === picture.chosen) return;
    picture.chosen = each;
    say(readout, each ? words(each) : help);
    picture.draw();
  };
  canvas.addEventListener("pointermove", (event) => choose(picture.at(event.offsetX, event.offsetY)));
  canvas.addEventListener("pointerdown", (event) => choose(picture.at(event.offsetX, event.offsetY)));
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && choose(null));
  frame.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (step) {
      event.preventDefault();
      choose(picture.neighbour(step));
    } else if (event.key === "Enter" && picture.chosen?.job) explain(picture.chosen.job).catch(() => say(readout, "That job is forgotten by now."));
    else if (event.key === "Escape") choose(null);
  });
  canvas.addEventListener("click", (event) => {
    const job = picture.at(event.offsetX, event.offsetY)?.job;
    if (job) explain(job).catch(() => say(readout, "That job is forgotten by now."));
  });
  const { details, fill } = asTable();
  root.append(h("div", { class: "section-head" }, h("h2", {}, "Who had the GPU"), windowButtons((seconds) => picture.show(seconds), picture.seconds)),
    keysOf(), frame, readout, details);
  say(readout, help);
  const unwatch = watch(() => {
    read();
    fill();
  });
  const stop = picture.live();
  return () => {
    unwatch();
    stop();
  };
}
