// Verbs that take a while: begun, followed until they end, and refused with their figures.

import { Refused, ask } from "/panel/api.js";
import { h } from "/panel/dom.js";
import { size, span } from "/panel/format.js";
import { confirm, dialog } from "/panel/ui.js";

const LOOK_MS = 400;

/**
 * Begin one and follow it to its end; `tell` is given its sentence whenever there is another. Gives its result. Raises Refused.
 * @param {string} path
 * @param {any} body
 * @param {(text: string) => void} [tell]
 */
export async function carryOut(path, body, tell = () => {}) {
  let told = await ask("POST", path, body);
  while (told.state === "running") {
    tell(told.text);
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    told = await ask("GET", `/api/jobs/${encodeURIComponent(told.id)}`);
  }
  if (told.error) throw new Refused(500, told.error.code, told.error.message, told.error.gridsched ?? {});
  return told.result ?? told;
}

/**
 * What a verb would do, asked first where that harms. True where it may be done.
 * @param {string} path
 * @param {any} body
 * @param {string} title
 * @param {string} yes
 */
export async function consent(path, body, title, yes) {
  const plan = await ask("POST", `${path}?dry_run=1`, body);
  if (!plan.harms) return true;
  return confirm(title, consequences(plan), yes, { danger: true });
}

/** What would come of it, for a person. @param {any} plan */
function consequences(plan) {
  return [
    h("p", {}, plan.text),
    plan.evicted.length ? h("ul", { class: "plain" }, plan.evicted.map((/** @type {any} */ each) =>
      h("li", {}, h("b", {}, each.model), ` goes and gives back ${size(each.bytes)}`, each.running_steps ? `; ${each.running_steps} running end first` : ""))) : null,
    plan.waiting_jobs.length ? h("p", {}, `${plan.waiting_jobs.length} waiting jobs are affected.`) : null,
    plan.seconds ? h("p", { class: "soft" }, `It takes about ${span(plan.seconds)}.`) : null,
  ];
}

/**
 * Show why a load was refused: the arithmetic where there is one, else the sentence.
 * @param {any} fault
 * @param {string} title
 */
export async function showRefusal(fault, title) {
  if (!(fault instanceof Refused) || !fault.details?.per_device) throw fault;
  await dialog(title, () => arithmetic(fault), undefined, { wide: true });
}

/** The sums of a refusal. @param {Refused} fault */
function arithmetic(fault) {
  const told = fault.details;
  return [
    h("p", { class: "bad" }, fault.message),
    sums("Needed and there, by device", ["device", "needed", "available", "missing"], told.per_device.map((/** @type {any} */ each) =>
      [each.device, size(each.required_bytes), size(each.available_bytes), size(each.short_bytes)])),
    told.estimate && Object.keys(told.estimate).length ? sums("What it takes", ["part", "bytes"], parts(told.estimate)) : null,
    told.holders?.length ? sums("Who has the memory", ["who", "device", "bytes", "how it stands"], told.holders.map((/** @type {any} */ each) =>
      [each.model ?? each.owner ?? "programs outside", each.device ?? "", size(each.bytes), stands(each)])) : null,
    h("ul", { class: "plain" },
      told.max_ctx_that_fits ? h("li", {}, `A context of ${told.max_ctx_that_fits.toLocaleString()} tokens would fit.`) : null,
      told.max_parallel_that_fits ? h("li", {}, `${told.max_parallel_that_fits} slots would fit.`) : null,
      told.retry_after_s ? h("li", {}, `It may fit in ${span(told.retry_after_s)}.`) : null,
      [...(told.suggestions ?? []), ...(told.notes ?? [])].map((each) => h("li", {}, each))),
  ];
}

/** How a holder stands. @param {any} holder @returns {string} */
function stands(holder) {
  const programs = (holder.programs ?? []).map((/** @type {any} */ each) => `${each.name} (${each.pid}): ${size(each.bytes)}`);
  return [holder.state, holder.tier, holder.busy ? "busy" : null, ...programs].filter(Boolean).join(", ");
}

/** The components of an estimate that take something. @param {any} estimate @returns {string[][]} */
function parts(estimate) {
  return Object.entries(estimate).flatMap(([name, value]) =>
    typeof value === "number" && value > 0 ? [[words(name), size(value)]] : []);
}

/** @param {string} name */
function words(name) {
  return name.replace(/_bytes$/, "").replaceAll("_", " ");
}

/** @param {string} caption @param {string[]} columns @param {string[][]} lines */
function sums(caption, columns, lines) {
  return h("table", { class: "sums" }, h("caption", {}, caption), h("thead", {}, h("tr", {}, columns.map((each) => h("th", { scope: "col" }, each)))),
    h("tbody", {}, lines.map((line) => h("tr", {}, line.map((each, at) => h("td", { "data-label": columns[at] }, each))))));
}
