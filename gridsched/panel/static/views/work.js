// What is under way: jobs that run, loads and other operations, batches and downloads with their progress; and the hub.

import { ask } from "/panel/api.js";
import { h, mark, put, rows, say } from "/panel/dom.js";
import { size, span } from "/panel/format.js";
import { known, watch } from "/panel/state.js";
import { button, cell, confirm, fail, table, toast } from "/panel/ui.js";
import { hub } from "/panel/views/hub.js";
import { cancel, explain } from "/panel/views/explain.js";

const LOOK_MS = 2000;
const OVER = new Set(["completed", "failed", "expired", "cancelled"]);
const SHOWN = 50;

/** A bar for how far something has come, with its words. @param {string} label */
function progress(label) {
  const bar = /** @type {HTMLProgressElement} */ (h("progress", { max: 1, "aria-label": label }));
  const text = h("span", { class: "soft" });
  return { element: h("div", { class: "progress" }, bar, text), set: (/** @type {number|null} */ part, /** @type {string} */ words) => {
    if (part === null) bar.removeAttribute("value");
    else mark(bar, "value", Math.min(1, Math.max(0, part)));
    say(text, words);
  } };
}

/** @param {any} first */
function runningRow(first) {
  const about = h("span");
  const since = h("span");
  const element = h("tr", {}, cell("job", String(first.job)), cell("class", first.class), cell("model", first.model), cell("step", about), cell("runs for", since),
    h("td", {}, h("div", { class: "row" }, button("Explain", () => explain(first.job), { "aria-label": `Explain job ${first.job}` }),
      button("Cancel", () => cancel(first.job, `${first.class} ${first.kind} for ${first.model}`), { "aria-label": `Cancel job ${first.job}` }))));
  return { element, update: (/** @type {any} */ each) => {
    say(about, `${each.kind}${each.steps > 1 ? ` ${each.step}/${each.steps}` : ""}`);
    say(since, `${span(each.running_s)}${each.rest_s === null ? "" : `, about ${span(each.rest_s)} more`}`);
  } };
}

/** @param {any} first */
function operationRow(first) {
  const bar = progress(`${first.verb} ${first.id}`);
  const state = h("span", { class: "tag" });
  const end = button("Cancel", async () => {
    await ask("DELETE", `/api/jobs/${encodeURIComponent(first.id)}`);
    toast(`${first.id} is cancelled.`);
  }, { "aria-label": `Cancel ${first.id}` });
  const element = h("tr", {}, cell("operation", first.id), cell("what", `${first.verb.replaceAll("_", " ")} ${first.arguments?.model ?? first.arguments?.repo ?? ""}`), cell("state", state), cell("progress", bar.element), h("td", {}, end));
  return { element, update: (/** @type {any} */ each) => {
    say(state, each.state);
    const isOver = each.state !== "running";
    bar.set(isOver ? 1 : each.total ? each.done / each.total : null, each.error?.message ?? each.text);
    end.hidden = isOver;
  } };
}

/** @param {any} first */
function batchRow(first) {
  const bar = progress(`Batch ${first.id}`);
  const state = h("span", { class: "tag" });
  const end = button("Cancel", async () => {
    if (!(await confirm(`Cancel ${first.id}?`, h("p", {}, "Lines that have their answer keep it; the others are not asked any more."), "Cancel the batch", { danger: true }))) return;
    await ask("POST", `/v1/batches/${encodeURIComponent(first.id)}/cancel`, {});
  }, { "aria-label": `Cancel ${first.id}` });
  const element = h("tr", {}, cell("batch", h("code", {}, first.id)), cell("asks", first.endpoint), cell("state", state), cell("progress", bar.element), h("td", {}, end));
  return { element, update: (/** @type {any} */ each) => {
    const { total, completed, failed } = each.request_counts ?? { total: 0, completed: 0, failed: 0 };
    say(state, each.status);
    const why = each.errors?.data?.[0]?.message;
    bar.set(total ? (completed + failed) / total : OVER.has(each.status) ? 1 : null, why ?? `${completed} of ${total} answered${failed ? `, ${failed} failed` : ""}`);
    end.hidden = OVER.has(each.status) || each.status === "cancelling";
  } };
}

/** @param {any} first */
function downloadRow(first) {
  const bar = progress(`Download ${first.id}`);
  const state = h("span", { class: "tag" });
  const end = button("Cancel", async () => {
    if (!(await confirm(`Cancel the download of ${first.repo}?`, h("p", {}, "What has come is kept: the next download goes on from there."), "Cancel it", { danger: true }))) return;
    const told = await ask("DELETE", `/api/downloads/${encodeURIComponent(first.id)}`);
    toast(told.text);
  }, { "aria-label": `Cancel the download of ${first.repo}` });
  const element = h("tr", {}, cell("from", first.repo), cell("files", first.files.join(", ")), cell("state", state), cell("progress", bar.element), h("td", {}, end));
  return { element, update: (/** @type {any} */ each) => {
    const isUnderWay = each.operations.length > 0;
    say(state, each.state);
    const rate = each.bytes_per_s ? `, ${size(each.bytes_per_s)}/s` : "";
    const rest = each.rest_s !== null && isUnderWay ? `, about ${span(each.rest_s)} more` : "";
    bar.set(each.size_bytes ? each.done_bytes / each.size_bytes : isUnderWay ? null : 1, `${size(each.done_bytes)} of ${size(each.size_bytes)}${rate}${rest}${each.text ? `: ${each.text}` : ""}`);
    end.hidden = !isUnderWay;
  } };
}

/**
 * A titled table that says so when it is empty.
 * @param {Element} root @param {string} title @param {string} empty @param {string[]} columns @param {(item: any) => string} nameOf
 * @param {(item: any) => any} make
 */
function part(root, title, empty, columns, nameOf, make) {
  const { element, body } = table(title, columns);
  const none = h("p", { class: "soft" }, empty);
  root.append(h("section", { class: "section" }, h("h2", {}, title), none, element));
  element.hidden = true;
  /** @type {(items: any[]) => void} */
  const set = rows(body, nameOf, make);
  return {
    set: (/** @type {any[]} */ items) => {
      set(items.slice(0, SHOWN));
      element.hidden = items.length === 0;
      none.hidden = !element.hidden;
      say(none, empty);
    },
    refuse: (/** @type {any} */ fault) => {
      set([]);
      element.hidden = true;
      none.hidden = false;
      say(none, fault.message);
    },
  };
}

/** @type {import("/panel/main.js").View} */
export const work = {
  id: "work",
  title: "Work",
  mount(root) {
    const place = h("div", { class: "stack" });
    root.append(place);
    const running = part(place, "Jobs that run", "Nothing runs.", ["job", "class", "model", "step", "runs for", ""], (each) => String(each.job), runningRow);
    const operations = part(place, "Loads and other operations", "None is under way.", ["operation", "what", "state", "progress", ""], (each) => each.id, operationRow);
    const batches = part(place, "Batches", "There is no batch. POST /v1/files and /v1/batches make one.", ["batch", "asks", "state", "progress", ""], (each) => each.id, batchRow);
    const downloads = part(place, "Downloads", "Nothing is being fetched.", ["from", "files", "state", "progress", ""], (each) => each.id, downloadRow);
    hub(place);
    let isOver = false;
    const look = async () => {
      const [jobs, listed, fetched] = await Promise.allSettled([ask("GET", "/api/jobs?limit=50"), ask("GET", "/v1/batches?limit=50"), ask("GET", "/api/downloads?limit=50")]);
      if (isOver) return;
      if (jobs.status === "fulfilled") {
        running.set(jobs.value.running);
        operations.set([...jobs.value.operations].reverse());
      } else running.refuse(jobs.reason);
      if (listed.status === "fulfilled") batches.set(listed.value.data);
      else batches.refuse(listed.reason);
      if (fetched.status === "fulfilled") downloads.set(fetched.value.downloads);
      else downloads.refuse(fetched.reason);
    };
    let isLooking = false;
    const lookOnce = async () => {
      if (isLooking) return;
      isLooking = true;
      await look().catch(fail);
      isLooking = false;
    };
    const timer = setInterval(lookOnce, LOOK_MS);
    let before = -1;
    const unwatch = watch(() => {
      if (known.count === before) return;
      before = known.count;
      void lookOnce();
    });
    return () => {
      isOver = true;
      clearInterval(timer);
      unwatch();
    };
  },
};
