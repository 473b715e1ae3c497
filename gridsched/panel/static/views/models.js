// The models: how each stands and what it takes; load, unload, pin, delete; and the devices that are somebody else's.

import { ask, key } from "/panel/api.js";
import { h, mark, put, rows, say } from "/panel/dom.js";
import { size, span } from "/panel/format.js";
import { known, watch } from "/panel/state.js";
import { button, cell, confirm, dialog, fail, table, toast } from "/panel/ui.js";
import { leases } from "/panel/views/leases.js";
import { carryOut, consent, showRefusal } from "/panel/views/operation.js";

const COLUMNS = ["model", "state", "memory", "context", "can", ""];
const FITS = /** @type {Record<string, string>} */ ({ now: "fits now", if_idle: "fits once idle ones have gone", never: "never fits" });
const PAGE = 200;

/** @param {string} name */
function of(name) {
  return `/api/models/${encodeURIComponent(name)}`;
}

/**
 * Load a model; what harms is asked first, a refusal shows its sums.
 * @param {any} model
 * @param {Record<string, any>} asked
 * @param {(text: string) => void} tell
 */
async function load(model, asked, tell) {
  const path = `${of(model.id)}/load`;
  try {
    if (!(await consent(path, asked, `Load ${model.id}?`, "Load it"))) return;
    const told = await carryOut(path, asked, tell);
    toast(`${told.model} is ready on ${told.devices.join(" and ")}: ${told.ctx_size.toLocaleString()} tokens in ${told.parallel} slots, ${size(told.bytes)}.`);
  } catch (fault) {
    await showRefusal(fault, `${model.id} was not loaded`);
  } finally {
    tell("");
  }
}

/** @param {any} model @param {(text: string) => void} tell */
async function unload(model, tell) {
  const path = `${of(model.id)}/unload`;
  try {
    if (!(await consent(path, {}, `Unload ${model.id}?`, "Unload it"))) return;
    const told = await carryOut(path, {}, tell);
    toast(told.instance === null ? `${told.model} was not loaded.` : `${told.model} is gone: ${size(told.freed_bytes)} are free again.`);
  } finally {
    tell("");
  }
}

/** @param {any} model */
async function pin(model) {
  const told = await ask("POST", `${of(model.id)}/${model.pinned ? "unpin" : "pin"}`, {});
  toast(told.pinned ? `${told.model} is pinned: it is kept loaded.` : `${told.model} is pinned no more.`);
  if (told.note) toast(told.note);
}

/** @param {any} model */
async function remove(model) {
  if (!(await confirm(`Delete ${model.id}?`, h("p", {}, `Its files (${size(model.size_bytes)}) are deleted from the disk.`), "Delete the files", { danger: true }))) return;
  await ask("DELETE", of(model.id));
  toast(`${model.id} is deleted.`);
}

/** The launches there are for a model, each to be loaded. @param {any} model @param {(text: string) => void} tell */
async function options(model, tell) {
  const told = (await ask("GET", `/api/options?model=${encodeURIComponent(model.id)}`)).models[0];
  const { element, body } = table(`Ways to load ${model.id}`, ["context", "slots", "memory", "where", "now", ""]);
  await dialog(`Ways to load ${model.id}`, (close) => {
    put(body, (told?.rows ?? []).map((/** @type {any} */ each) => h("tr", {},
      cell("context", `${each.ctx.toLocaleString()} a slot`, " ", each.configured ? h("span", { class: "tag" }, "configured") : null, each.loaded ? h("span", { class: "tag" }, "loaded") : null),
      cell("slots", String(each.parallel)), cell("memory", size(each.total_bytes)), cell("where", each.devices.join(" + ") || "–"),
      cell("now", each.fits_now ? "fits" : each.fits_if_idle ? `once gone: ${each.evictions.map((/** @type {any} */ one) => one.model ?? one).join(", ") || "idle ones"}` : each.reason ?? "no"),
      h("td", {}, each.fits_now || each.fits_if_idle ? h("button", { type: "button", "aria-label": `Load with ${each.ctx} tokens a slot`, onclick: () => {
        close("");
        const { model: _, ...asked } = each.load_args;
        load(model, asked, tell).catch(fail);
      } }, "Load") : null))));
    return told?.rows?.length ? element : h("p", {}, told?.unavailable ?? "There is no way to load it.");
  }, undefined, { wide: true });
}

/** A model's row. @param {any} first @param {() => void} changed */
function modelRow(first, changed) {
  let model = first;
  const named = h("b");
  const aliases = h("p", { class: "soft" });
  const state = h("span", { class: "tag" });
  const about = h("p", { class: "soft" });
  const memory = h("span");
  const context = h("span");
  const can = h("span");
  const tell = (/** @type {string} */ text) => {
    doing = text;
    say(about, text || standing(model));
  };
  let doing = "";
  const doer = (/** @type {string} */ label, /** @type {() => Promise<unknown>} */ act) => button(label, async () => {
    try {
      await act();
    } finally {
      changed();
    }
  }, { "aria-label": `${label} ${first.id}` });
  const loads = doer("Load", () => load(model, {}, tell));
  const ways = doer("Options", () => options(model, tell));
  const unloads = doer("Unload", () => unload(model, tell));
  const pins = doer("Pin", () => pin(model));
  const deletes = doer("Delete", () => remove(model));
  const element = h("tr", {}, cell("model", h("div", {}, named, aliases)), cell("state", h("div", {}, state, about)), cell("memory", memory),
    cell("context", context), cell("can", can), h("td", {}, h("div", { class: "row" }, loads, ways, unloads, pins, deletes)));
  return { element, update: (/** @type {any} */ each) => {
    model = each;
    const isHere = each.state !== "cold" && each.state !== "failed" && each.state !== "unavailable";
    const isOwn = !each.base;
    say(named, each.id);
    say(aliases, each.base ? `a name over ${each.base}` : each.aliases.join(", "));
    say(state, each.pinned ? `${each.state}, pinned` : each.state);
    mark(state, "data-state", each.state);
    say(about, doing || standing(each));
    say(memory, each.measured_bytes !== null ? `${size(each.measured_bytes)} (estimated ${size(each.estimated_bytes)})` : each.estimated_bytes !== null ? `${size(each.estimated_bytes)} estimated` : "–");
    say(context, each.ctx_per_slot ? `${each.ctx_per_slot.toLocaleString()} × ${each.parallel}` : "–");
    say(can, each.capabilities.join(", "));
    loads.hidden = !isOwn || isHere || each.state === "unavailable";
    ways.hidden = !isOwn || each.state === "unavailable";
    unloads.hidden = !isOwn || !isHere;
    pins.hidden = !isOwn || each.state === "unavailable";
    say(pins, each.pinned ? "Unpin" : "Pin");
    mark(pins, "aria-label", `${each.pinned ? "Unpin" : "Pin"} ${each.id}`);
    deletes.hidden = !isOwn || isHere || !isDownloaded.has(each.id);
  } };
}

/** The models that were downloaded here, and may be deleted. @type {Set<string>} */
const isDownloaded = new Set();

/** How a model stands, in words. @param {any} model */
function standing(model) {
  if (model.unavailable) return model.unavailable;
  if (model.failed) return `${model.failed.reason}; tried again in ${span(model.failed.retry_after_s)}`;
  const here = (known.status?.instances ?? []).filter((/** @type {any} */ each) => each.model === model.id);
  if (here.length === 0) return model.base ? "" : FITS[model.fits] ?? "";
  const one = here[0];
  const busy = `${one.slots.busy} of ${one.slots.total} slots busy`;
  if (one.state !== "ready") return `${one.state} for ${span(one.since_s)}`;
  if (one.slots.busy) return `tier ${one.tier}, ${busy}${one.paused ? ", paused" : ""}`;
  return `tier ${one.tier}, idle for ${span(one.idle_s)}${one.expires_s === null ? "" : `, goes in ${span(one.expires_s)}`}`;
}

/** All of them, however many pages that are. */
export async function everyModel() {
  /** @type {any[]} */
  const found = [];
  let cursor = "";
  do {
    const told = await ask("GET", `/api/models?limit=${PAGE}${cursor && `&cursor=${encodeURIComponent(cursor)}`}`);
    found.push(...told.models);
    cursor = told.next_cursor ?? "";
  } while (cursor);
  return found;
}

/** @type {import("/panel/main.js").View} */
export const models = {
  id: "models",
  title: "Models",
  mount(root) {
    const { element, body } = table("Models", COLUMNS);
    const search = /** @type {HTMLInputElement} */ (h("input", { type: "search", id: "model-search", autocomplete: "off" }));
    const none = h("p", { class: "soft" });
    /** @type {any[]} */
    let all = [];
    let isOver = false;
    /** @type {(items: any[]) => void} */
    const set = rows(body, (each) => each.id, (each) => modelRow(each, () => void refresh()));
    const show = () => {
      const word = search.value.trim().toLowerCase();
      const found = all.filter((each) => [each.id, ...each.aliases].some((name) => name.toLowerCase().includes(word)));
      set(found);
      element.hidden = found.length === 0;
      none.hidden = !element.hidden;
      say(none, all.length ? "No model has such a name." : "There is no model yet. Work → Downloads fetches one; Set-up says where models are looked for.");
    };
    const refresh = async () => {
      try {
        all = await everyModel();
        if (!isOver) show();
      } catch (fault) {
        if (!isOver) say(none, /** @type {Error} */ (fault).message), (none.hidden = false);
      }
    };
    const own = async () => {
      const told = await ask("GET", "/api/downloads");
      isDownloaded.clear();
      for (const each of told.downloads ?? []) for (const name of [each.model, ...(each.models ?? [])]) if (name) isDownloaded.add(name);
    };
    search.addEventListener("input", show);
    const place = h("section", { class: "section" });
    root.append(h("div", { class: "stack" }, h("section", { class: "section" }, h("div", { class: "section-head" }, h("h2", {}, "Models")),
      h("div", { class: "filters" }, h("div", { class: "field" }, h("label", { for: "model-search" }, "Find"), search)), none, element), place));
    const endLeases = leases(place);
    own().catch(() => {}).finally(refresh);
    let before = "";
    /** @type {any} */
    let shown = null;
    const unwatch = watch(() => {
      if (shown === known.status) return; // lines of the log come much oftener
      shown = known.status;
      const now = JSON.stringify((known.status?.instances ?? []).map((/** @type {any} */ each) => [each.model, each.state, each.tier, each.measured_bytes]));
      if (now !== before) {
        before = now;
        void refresh();
      } else show();
    });
    const unkey = key.watch(() => void refresh());
    return () => {
      isOver = true;
      unwatch();
      unkey();
      endLeases();
    };
  },
};
