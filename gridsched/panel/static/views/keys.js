// API keys: whose there are, one more, one less. A secret is shown once, when it is made.

import { ask } from "/panel/api.js";
import { h, put } from "/panel/dom.js";
import { button, cell, confirm, dialog, nothing, table, toast } from "/panel/ui.js";
import { copyButton } from "/panel/views/copy.js";
import { CLASSES } from "/panel/views/queues.js";
import { wanting } from "/panel/views/scopes.js";

const SCOPES = /** @type {Record<string, string>} */ ({
  inference: "ask models", read: "look", residency: "load, unload, pin", admin: "change the machine",
});

/** @param {any} each @param {() => Promise<void>} again */
function row(each, again) {
  const limits = [each.class ? `class ${each.class}` : "", each.max_class ? `at most ${each.max_class}` : "", each.models.length ? `only ${each.models.join(", ")}` : "",
    each.concurrency ? `${each.concurrency} at once` : "", each.queue_share ? `${Math.round(each.queue_share * 100)} % of a queue` : ""].filter(Boolean);
  const revoke = async () => {
    const text = h("p", {}, `Requests with it are refused from now on. Those that run may finish.`);
    if (!(await confirm(`Revoke the key ${each.name}?`, text, "Revoke it", { danger: true }))) return;
    const told = await ask("DELETE", `/api/keys/${encodeURIComponent(each.name)}`);
    toast(`The key ${each.name} is revoked. ${told.left ? `${told.left} left.` : "There are none left: on this machine nobody needs one."}`);
    await again();
  };
  return h("tr", {}, cell("name", h("b", {}, each.name)), cell("may", each.scopes.join(", ")), cell("limits", limits.join("; ") || "none"), cell("made", each.created.slice(0, 10)),
    h("td", {}, button("Revoke", revoke, { "aria-label": `Revoke the key ${each.name}` })));
}

/** Show the secret of a new key, this once. @param {any} told */
function shown(told) {
  const secret = h("code", { class: "secret" }, told.secret);
  return dialog(`The key ${told.name}`, () => [
    h("p", {}, "This is its secret. It is shown now and never again."),
    h("div", { class: "copied" }, secret, copyButton("the secret", secret)),
    told.warnings.map((/** @type {string} */ each) => h("p", { class: "warn" }, each)),
  ]);
}

/** @param {string} label @param {HTMLElement} input */
function field(label, input) {
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input);
}

/** @param {() => Promise<void>} again */
function form(again) {
  const name = /** @type {HTMLInputElement} */ (h("input", { id: "key-name", required: true, maxlength: 64, autocomplete: "off", placeholder: "tom" }));
  const scopes = Object.keys(SCOPES).map((each) => /** @type {HTMLInputElement} */ (h("input", { type: "checkbox", id: `scope-${each}`, value: each, checked: each === "inference" || each === "read" })));
  const most = /** @type {HTMLSelectElement} */ (h("select", { id: "key-class" }, h("option", { value: "" }, "any"), CLASSES.map((each) => h("option", { value: each }, each))));
  const models = /** @type {HTMLInputElement} */ (h("input", { id: "key-models", autocomplete: "off", placeholder: "all" }));
  const add = async () => {
    if (!name.reportValidity()) return;
    const asked = /** @type {Record<string, any>} */ ({ name: name.value.trim(), scopes: scopes.filter((each) => each.checked).map((each) => each.value) });
    if (most.value) asked.max_class = most.value;
    const named = models.value.split(",").map((each) => each.trim()).filter(Boolean);
    if (named.length) asked.models = named;
    const told = await ask("POST", "/api/keys", asked);
    name.value = models.value = "";
    await shown(told);
    await again();
  };
  const go = button("Make a key", add, { class: "primary" });
  return h("form", { class: "filters", onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); go.click(); } },
    field("For", name), h("fieldset", { class: "row" }, h("legend", {}, "It may"), scopes.map((each) => h("label", { for: each.id }, each, ` ${SCOPES[each.value]}`))),
    field("Highest class", most), field("Models, by commas", models), go);
}

/** Gives what ends it. @param {Element} root */
export function keys(root) {
  const why = h("div", {});
  const place = h("div", { class: "section" });
  const list = async () => {
    const { keys } = await ask("GET", "/api/keys");
    const { element, body } = table("API keys", ["name", "may", "limits", "made", ""]);
    put(body, keys.map((/** @type {any} */ each) => row(each, list)));
    const none = h("div", {});
    if (!keys.length) nothing(none, "There are none: on this machine nobody needs one. From the first on everybody does.");
    put(place, keys.length ? element : none, form(list));
  };
  root.append(h("h2", {}, "API keys"), why, place);
  return wanting("admin", why, "Seeing and making keys", (isAllowed) => {
    put(place);
    if (isAllowed) list().catch((fault) => nothing(place, fault.message));
  });
}
