// All that is known of one job, as a dialog: how it stands, who keeps the memory, what would go for it, its story.

import { ask } from "/panel/api.js";
import { h } from "/panel/dom.js";
import { size, span } from "/panel/format.js";
import { confirm, dialog, toast } from "/panel/ui.js";
import { lineElement } from "/panel/views/line.js";

/** @param {number|string} job */
export async function explain(job) {
  const told = await ask("GET", `/api/jobs/${encodeURIComponent(job)}`);
  await dialog(`Job ${told.id}`, () => content(told), undefined, { wide: true });
}

/** Take a job out of its queue, or end it, once a person has said so. @param {number|string} job @param {string} about */
export async function cancel(job, about) {
  if (!(await confirm(`Cancel job ${job}?`, h("p", {}, about, ". Its client is told that it was cancelled."), "Cancel the job", { danger: true }))) return;
  await ask("DELETE", `/api/jobs/${encodeURIComponent(job)}`);
  toast(`Job ${job} is cancelled.`);
}

/** @param {any} told */
function content(told) {
  const waiting = told.waiting;
  return [
    h("p", {}, h("span", { class: "tag" }, told.state), " ", told.text),
    waiting ? h("p", {}, `Rule ${waiting.rule}: ${waiting.reason}. It has waited ${span(waiting.waited_s)}; ${
      waiting.estimate_s === null ? "when it runs nobody can say yet" : `it runs in about ${span(waiting.estimate_s)}`}.`) : null,
    waiting?.keepers.length ? part("Who keeps the memory", waiting.keepers.map((/** @type {any} */ each) =>
      `${each.model ?? (each.why.length ? each.device : "programs outside")}: ${size(each.bytes)} of ${each.device}${each.why.length ? ` (${each.why.join(", ")})` : ""}`)) : null,
    told.plan ? part(told.plan.live ? "What is being done" : "What would be done", [
      `load with ${told.plan.ctx_size} tokens of context in ${told.plan.parallel} slots`,
      ...Object.entries(told.plan.needs).map(([device, bytes]) => `takes ${size(/** @type {number} */ (bytes))} of ${device}`),
      ...told.plan.victims.map((/** @type {any} */ each) => `${each.model} goes: ${size(each.bytes)} (${each.why.join(", ")})`),
    ]) : null,
    h("h3", {}, "Its story"),
    told.story.length
      ? h("div", { class: "lines scroll", tabindex: "0", role: "group", "aria-label": "Its story" }, told.story.map(lineElement))
      : h("p", { class: "soft" }, "Nothing is remembered of it."),
  ];
}

/** @param {string} title @param {string[]} lines */
function part(title, lines) {
  return [h("h3", {}, title), h("ul", {}, lines.map((each) => h("li", {}, each)))];
}
