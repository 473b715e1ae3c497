// The processes and their slots: who is answered where.

import { h, mark, put, rows, say } from "/panel/dom.js";
import { size, span } from "/panel/format.js";

/**
 * The jobs by slot: whoever had one keeps it.
 * @param {Map<number, number>} taken
 * @param {any[]} jobs
 * @param {number} total
 * @returns {any[]}
 */
function seated(taken, jobs, total) {
  const seats = Array.from({ length: Math.max(total, jobs.length) }, () => /** @type {any} */ (null));
  const before = new Map(taken);
  taken.clear();
  for (const job of jobs) {
    const place = before.get(job.job);
    if (place !== undefined && place < seats.length) seats[place] = job;
  }
  for (const job of jobs) if (!seats.includes(job)) seats[seats.indexOf(null)] = job;
  seats.forEach((job, place) => job && taken.set(job.job, place));
  return seats;
}

/** A process's card. */
function card() {
  const name = h("h3");
  const tags = h("span", { class: "row last" });
  const about = h("p", { class: "soft" });
  const slots = h("ul", { class: "slots" });
  const element = h("li", { class: "card" }, h("div", { class: "card-head" }, name, tags), slots, about);
  let shown = "";
  /** @type {Map<number, number>} */
  const taken = new Map();
  /** @type {(items: {place: number, job: any}[]) => void} */
  const setSlots = rows(slots, (each) => String(each.place), () => {
    const slot = h("li");
    return { element: slot, update: ({ job }) => {
      mark(slot, "class", job ? `slot busy class-${job.class}` : "slot");
      mark(slot, "title", job ? job.text : null);
      say(slot, job ? `${job.class} ${job.job}${job.steps > 1 ? ` · ${job.step}/${job.steps}` : ""} · ${span(job.running_s)}` : "free");
    } };
  });
  return { element, update: (/** @type {{instance: any, jobs: any[]}} */ { instance, jobs }) => {
    say(name, instance.model);
    const said = JSON.stringify([instance.state, instance.tier, instance.paused]);
    if (said !== shown) {
      put(tags, h("span", { class: instance.state === "ready" ? "tag good" : "tag warn" }, instance.state === "starting" ? "loading" : instance.state),
        h("span", { class: "tag" }, instance.tier), instance.paused ? h("span", { class: "tag warn" }, "paused") : null);
    }
    shown = said;
    const seats = seated(taken, jobs, instance.slots.total);
    setSlots(seats.map((job, place) => ({ place, job })));
    const expires = instance.expires_s === null ? "" : `, unloaded in ${span(instance.expires_s)} if it stays idle`;
    const idle = instance.slots.busy ? "" : `, idle for ${span(instance.idle_s)}`;
    say(about, `${instance.slots.busy} of ${instance.slots.total} slots busy on ${instance.devices.join(", ")}; ${size(instance.reserved_bytes)}, ${instance.ctx_size} tokens of context${idle}${expires}`);
  } };
}

/** The processes of a status. Gives what takes one. @param {Element} root */
export function slots(root) {
  const list = h("ul", { class: "cards" });
  const none = h("p", { class: "soft" }, "No model is loaded: the first request for one loads it.");
  const failed = h("ul");
  root.append(list, none, failed);
  /** @type {(items: any[]) => void} */
  const set = rows(list, (each) => String(each.instance.id), card);
  /** @type {(items: any[]) => void} */
  const setFailed = rows(failed, (each) => each.name, () => {
    const element = h("li", { class: "bad" });
    return { element, update: (each) => say(element, `${each.name} does not load: ${each.reason} (tried again in ${span(each.retry_after_s)})`) };
  });
  return (/** @type {any} */ status) => {
    set(status.instances.map((/** @type {any} */ instance) => ({ instance, jobs: status.running.filter((/** @type {any} */ job) => job.instance === instance.id) })));
    none.hidden = status.instances.length > 0;
    setFailed(Object.entries(status.failed).map(([name, each]) => ({ name, .../** @type {any} */ (each) })));
  };
}
