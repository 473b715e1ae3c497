// The three queues, and who waits, with the rule that holds it; a job is explained or cancelled from here.

import { h, mark, rows, say } from "/panel/dom.js";
import { span } from "/panel/format.js";
import { known } from "/panel/state.js";
import { button, cell, table } from "/panel/ui.js";
import { cancel, explain } from "/panel/views/explain.js";

const AT_FIRST = 8;
const AT_FIRST_ON_A_PHONE = 3;

export const CLASSES = ["interactive", "background", "batch"];
const ABOUT = /** @type {Record<string, string>} */ ({
  interactive: "first, at once",
  background: "when nobody chats, or in its turn",
  batch: "when nothing else waits, or in its turn",
});

/** One class's card. */
function card() {
  const name = h("h3", { class: "class-name" });
  const about = h("p", { class: "soft" });
  const waiting = h("dd");
  const running = h("dd");
  const oldest = h("dd");
  const figures = h("dl", { class: "figures" },
    h("div", {}, h("dt", {}, "waiting"), waiting), h("div", {}, h("dt", {}, "running"), running), h("div", {}, h("dt", {}, "longest wait"), oldest));
  const element = h("li", {}, h("div", {}, name, about), figures);
  return { element, update: (/** @type {{name: string, queue: any}} */ each) => {
    mark(element, "class", `card queue class-${each.name}`);
    say(name, each.name);
    say(about, ABOUT[each.name] ?? "");
    say(waiting, each.queue.length);
    say(running, each.queue.running);
    say(oldest, span(each.queue.oldest_wait_s));
  } };
}

/** A waiting job's row. @param {any} first */
function waitingRow(first) {
  const number = h("td", { "data-label": "job" });
  const job_class = h("span", { class: `class-name class-${first.class}` }, h("span", { class: "swatch" }), first.class);
  const model = h("span");
  const waited = h("span");
  const estimate = h("span");
  const reason = h("span");
  const rule = h("span", { class: "tag" });
  let about = "";
  const element = h("tr", {}, number, cell("class", job_class), cell("model", model), cell("waits", waited), cell("runs in", estimate),
    cell("because", h("span", {}, reason, " ", rule)),
    h("td", {}, h("div", { class: "row" },
      button("Explain", () => explain(first.job), { "aria-label": `Explain job ${first.job}` }),
      button("Cancel", () => cancel(first.job, about), { "aria-label": `Cancel job ${first.job}` }))));
  return { element, update: (/** @type {any} */ each) => {
    about = `${each.class} ${each.kind} for ${each.model}, which waits because ${each.reason}`;
    say(number, each.steps > 1 ? `${each.job}, step ${each.step}/${each.steps}` : each.job);
    say(model, each.model);
    say(waited, span(each.waited_s));
    say(estimate, each.estimate_s === null ? "–" : `about ${span(each.estimate_s)}`);
    say(reason, each.reason);
    say(rule, each.rule);
  } };
}

/** The queues of a status. Gives what takes one. @param {Element} root */
export function queues(root) {
  const cards = h("ul", { class: "cards" });
  root.append(cards);
  /** @type {(items: any[]) => void} */
  const set = rows(cards, (each) => each.name, card);
  return (/** @type {any} */ status) => {
    set(CLASSES.map((name) => ({ name, queue: status.queues[name] })));
  };
}

/** Who waits. Gives what takes a status. @param {Element} root */
export function waiting(root) {
  const { element, body } = table("Jobs that wait", ["job", "class", "model", "waits", "runs in", "because", ""]);
  const none = h("p", { class: "soft" }, "Nobody waits.");
  const more = h("p", { class: "soft" });
  let most = window.matchMedia("(max-width: 640px)").matches ? AT_FIRST_ON_A_PHONE : AT_FIRST;
  const all = h("button", { type: "button", onclick: () => {
    most = Infinity;
    if (known.status) update(known.status);
  } });
  root.append(none, element, h("div", { class: "row" }, all, more));
  /** @type {(items: any[]) => void} */
  const setRows = rows(body, (each) => String(each.job), waitingRow);
  const update = (/** @type {any} */ status) => {
    const listed = status.waiting.length;
    const length = CLASSES.reduce((sum, name) => sum + status.queues[name].length, 0);
    setRows(status.waiting.slice(0, most));
    element.hidden = listed === 0;
    none.hidden = !element.hidden;
    all.hidden = listed <= most;
    say(all, `Show all ${listed}`);
    more.hidden = length <= listed;
    say(more, `${length - listed} more wait behind these.`);
  };
  return update;
}
