// Every setting there is: its value, where that comes from, what it takes for a change to hold; one changed at a time.

import { ask } from "/panel/api.js";
import { h, put, say } from "/panel/dom.js";
import { button, cell, confirm, dialog, table, toast } from "/panel/ui.js";

const NAMED = new Set(["models", "families"]);
const HOLDS = /** @type {Record<string, string>} */ ({
  "now": "at once", "model restart": "when its model is idle, and loaded anew", "server restart": "after a start of the server", "watchdog restart": "after a start of the watchdog",
});

/** A value as the file would have it. @param {any} value */
export function shown(value) {
  if (value === null || value === undefined) return "–";
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** @typedef {{way: string[], value: any}} Leaf */

/** Every value with the way to it. @param {any} value @param {string[]} way @returns {Leaf[]} */
function leaves(value, way = []) {
  const isInner = value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length > 0;
  return isInner ? Object.entries(value).flatMap(([name, inner]) => leaves(inner, [...way, name])) : [{ way, value }];
}

/** What of a table is said of a key or, where nothing is, of what holds it. @param {any} words @param {string[]} way @returns {string} */
function nearest(words, way) {
  for (let end = way.length; end > 0; end -= 1) {
    const name = way.slice(0, end).join(".");
    if (Object.hasOwn(words, name)) return words[name];
  }
  return "";
}

/** The same as the reference has it: NAME for each name. @param {string[]} way */
function general(way) {
  return NAMED.has(way[0]) && way.length > 1 ? [way[0], "NAME", ...way.slice(2)] : way;
}

/** What the schema says of a setting. @param {any} schema @param {string[]} way @returns {string} */
function meaning(schema, way) {
  const opened = (/** @type {any} */ part) => {
    const inner = part?.$ref ? part : (part?.anyOf ?? []).find((/** @type {any} */ each) => each.$ref);
    return inner ? schema.$defs[inner.$ref.split("/").at(-1)] : part;
  };
  let part = schema;
  let said = "";
  for (const name of way) {
    const section = opened(part);
    const next = section?.properties && Object.hasOwn(section.properties, name) ? section.properties[name] : section?.additionalProperties;
    if (!next || typeof next !== "object") break;
    part = next;
    said = part.description ?? said;
  }
  return said;
}

/** A text as a value: JSON where it is that, else the text itself. @param {string} text */
function meant(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** @param {string[]} way @param {any} value */
function nested(way, value) {
  return way.reduceRight((inner, name) => Object.fromEntries([[name, inner]]), value);
}

/** Have one setting changed. @param {Leaf} leaf @param {string} about @param {boolean} isSaid @param {() => void} saved */
async function change(leaf, about, isSaid, saved) {
  const name = leaf.way.join(".");
  const input = /** @type {HTMLInputElement} */ (h("input", { id: "setting-value", class: "mono", autofocus: true, autocomplete: "off", spellcheck: "false", value: leaf.value === null ? "null" : shown(leaf.value) }));
  const answer = await dialog(name, (close) => [h("p", { class: "soft" }, about),
    h("form", { onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); close("set"); } }, h("label", { for: "setting-value" }, "Value"), input)],
  (close) => [
    isSaid ? h("button", { type: "button", onclick: () => close("unset") }, "Back to the default") : null,
    h("button", { type: "button", onclick: () => close("") }, "Cancel"),
    h("button", { type: "button", class: "primary", onclick: () => close("set") }, "Next"),
  ]);
  if (!answer) return;
  const asked = answer === "unset" ? { unset: [leaf.way] } : { set: nested(leaf.way, meant(input.value)) };
  const plan = await ask("PATCH", "/api/config?dry_run=1", asked);
  if (plan.harms && !(await confirm(`Change ${name}?`, h("p", {}, plan.text, "."), "Change it"))) return;
  const done = await ask("PATCH", "/api/config", asked);
  toast(done.text);
  saved();
}

/**
 * The table of settings. Gives what takes the configuration as the server tells it, and whether it may be changed.
 * @param {Element} root
 * @param {() => void} saved
 */
export function effective(root, saved) {
  const { element, body } = table("Settings", ["setting", "value", "from", "a change holds", ""]);
  const filter = /** @type {HTMLInputElement} */ (h("input", { id: "settings-filter", type: "search", autocomplete: "off" }));
  const count = h("p", { class: "soft", role: "status" });
  /** @type {any} */
  let told = null;
  /** @type {any} */
  let schema = null;
  let before = "";
  let isAllowed = false;
  const draw = () => {
    const sought = filter.value.trim().toLowerCase();
    const all = leaves(told.settings);
    const found = all.filter((each) => each.way.join(".").toLowerCase().includes(sought));
    put(body, found.map((each) => {
      const name = each.way.join(".");
      const from = Object.hasOwn(told.sources, name) ? told.sources[name] : "";
      const about = schema ? meaning(schema, each.way) : "";
      const effect = schema ? nearest(schema["x-takes-effect"], general(each.way)) : "";
      const edit = button("Change", () => change(each, about, from.startsWith("line"), saved), { class: "quiet", disabled: !isAllowed, "aria-label": `Change ${name}` });
      return h("tr", {}, cell("setting", h("div", {}, h("b", { class: "mono" }, name), h("p", { class: "soft" }, about))), cell("value", h("code", {}, shown(each.value))),
        cell("from", from || "the default"), cell("holds", HOLDS[effect] ?? effect), h("td", {}, edit));
    }));
    say(count, `${found.length} of ${all.length} settings`);
  };
  filter.addEventListener("input", () => told && draw());
  root.append(h("div", { class: "section-head" }, h("h2", {}, "Every setting")),
    h("div", { class: "filters" }, h("div", { class: "field" }, h("label", { for: "settings-filter" }, "Named"), filter), count), h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Every setting" }, element));
  return { allow: (/** @type {boolean} */ allowed) => {
    isAllowed = allowed;
    if (told) draw();
  }, take: async (/** @type {any} */ now) => {
    told = now;
    schema ??= await ask("GET", "/api/config/schema").catch(() => null);
    const said = JSON.stringify([now.settings, now.sources, schema !== null]);
    if (said === before) return;
    before = said;
    draw();
  } };
}
