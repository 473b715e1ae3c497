// What every view talks to a person with: questions, messages, buttons that are busy.

import { h, put } from "/panel/dom.js";
import { Refused, key } from "/panel/api.js";

const SHOWN_MS = 6000;
const MOST_MESSAGES = 5;
const SENDABLE = /^[\x21-\x7e]*$/;
const WANT_A_KEY = new Set(["invalid_api_key", "insufficient_scope", "remote_admin_requires_credential"]);

let count = 0;

/**
 * A dialog in front of everything: a title, what it says, and its buttons. `fill` gets a function that closes it and gives
 * its content; the last element of `buttons` is the one that does it. Resolves when it is closed, with what it was closed
 * with; "" for Escape.
 * @param {string} title
 * @param {(close: (result: string) => void) => any} fill
 * @param {(close: (result: string) => void) => any} [buttons]
 * @param {{wide?: boolean}} [options]
 * @returns {Promise<string>}
 */
export function dialog(title, fill, buttons, options = {}) {
  return new Promise((resolve) => {
    count += 1;
    const heading = h("h2", { id: `dialog-${count}` }, title);
    const box = /** @type {HTMLDialogElement} */ (h("dialog", { "aria-labelledby": heading.id, class: options.wide ? "wide" : null }));
    const close = (/** @type {string} */ result) => box.close(result);
    const actions = buttons ? buttons(close) : h("button", { type: "button", onclick: () => close("") }, "Close");
    box.append(h("div", { class: "dialog" }, heading, h("div", { class: "dialog-body" }, fill(close)), h("div", { class: "actions" }, actions)));
    const leave = () => close(""); // what it asks is about the view that was shown
    window.addEventListener("hashchange", leave);
    box.addEventListener("close", () => {
      window.removeEventListener("hashchange", leave);
      box.remove();
      if (document.activeElement === document.body) document.getElementById("main")?.focus({ preventScroll: true }); // what opened it is gone
      resolve(box.returnValue);
    });
    document.body.append(box);
    box.showModal();
  });
}

/**
 * Whether a person wants it. `content` says what comes of it; `yes` is the word on the button that does it.
 * @param {string} title
 * @param {any} content
 * @param {string} yes
 * @param {{danger?: boolean}} [options]
 * @returns {Promise<boolean>}
 */
export async function confirm(title, content, yes, options = {}) {
  const buttons = (/** @type {(result: string) => void} */ close) => [
    h("button", { type: "button", autofocus: true, onclick: () => close("") }, "Cancel"),
    h("button", { type: "button", class: options.danger ? "danger" : "primary", onclick: () => close("yes") }, yes),
  ];
  return (await dialog(title, () => content, buttons)) === "yes";
}

/**
 * A message at the edge of the page. A fault stays until it is closed.
 * @param {string} text
 * @param {{fault?: boolean, more?: any}} [options]
 */
export function toast(text, options = {}) {
  const place = /** @type {HTMLElement} */ (document.getElementById("toasts"));
  const note = h("li", { class: options.fault ? "fault" : null, role: options.fault ? "alert" : "status" }, h("p", {}, text), options.more);
  const end = () => note.remove();
  note.append(h("button", { type: "button", class: "quiet", "aria-label": "Close the message", onclick: end }, "×"));
  for (const other of place.children) if (other.firstElementChild?.textContent === text) other.remove();
  place.append(note);
  while (place.childElementCount > MOST_MESSAGES) place.firstElementChild?.remove();
  if (place.matches(":popover-open")) place.hidePopover();
  place.showPopover(); // in front of a dialog that is open, too
  if (!options.fault) setTimeout(end, SHOWN_MS);
}

/**
 * Tell of what has failed, in the server's words; where a key is wanted, with a way to enter one.
 * @param {any} fault
 */
export function fail(fault) {
  if (fault?.name === "AbortError") return;
  const said = fault instanceof Error ? fault.message : String(fault);
  const help = fault instanceof Refused ? fault.details?.do : null;
  const text = typeof help === "string" && !said.includes(help) ? `${said}. ${help}` : said;
  const wanted = fault instanceof Refused && WANT_A_KEY.has(fault.code);
  toast(text, { fault: true, more: wanted ? h("button", { type: "button", onclick: () => askForKey() }, "Enter a key") : null });
  if (!(fault instanceof Refused)) console.error(fault);
}

/**
 * A button that does something which takes a while: it is disabled meanwhile, and a failure is told.
 * @param {string|any[]} label
 * @param {() => Promise<unknown>} act
 * @param {Record<string, any>} [attributes]
 */
export function button(label, act, attributes = {}) {
  const element = /** @type {HTMLButtonElement} */ (
    h("button", { type: "button", ...attributes, onclick: async () => {
      if (element.getAttribute("aria-busy")) return;
      element.setAttribute("aria-busy", "true");
      try {
        await act();
      } catch (fault) {
        fail(fault);
      } finally {
        element.removeAttribute("aria-busy");
      }
    } }, label)
  );
  return element;
}

/** Ask for an API key or the admin token. It is kept in this tab alone. @param {string} [why] */
export async function askForKey(why = "") {
  if (document.querySelector("dialog[data-key]")) return;
  const input = /** @type {HTMLInputElement} */ (
    h("input", { type: "password", id: "key", autocomplete: "off", spellcheck: "false", autofocus: true, value: key.get(), "aria-describedby": "key-help" })
  );
  const asked = dialog(
    "Key",
    (close) => [
      why ? h("p", { class: "warn" }, why) : null,
      h("form", { onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); close("set"); } },
        h("label", { for: "key" }, "API key or admin token"), input),
      h("p", { id: "key-help", class: "soft" }, "The admin token is the file admin.token in the server's data directory. What you enter is kept in this tab until it is closed, and sent to this server alone."),
    ],
    (close) => [
      key.get() ? h("button", { type: "button", onclick: () => close("forget") }, "Forget it") : null,
      h("button", { type: "button", onclick: () => close("") }, "Cancel"),
      h("button", { type: "button", class: "primary", onclick: () => close("set") }, "Use it"),
    ],
  );
  document.querySelector("dialog:last-of-type")?.setAttribute("data-key", "");
  const result = await asked;
  const word = input.value.trim();
  if (result === "set" && !SENDABLE.test(word)) toast("That cannot be a key: keys are of letters, digits and signs, without a space.", { fault: true });
  else if (result === "set") key.set(word);
  if (result === "forget") key.set("");
}

/**
 * A table's frame: what it is, its columns, and the body that rows go into.
 * @param {string} caption
 * @param {string[]} columns
 */
export function table(caption, columns) {
  const body = h("tbody");
  const head = h("thead", {}, h("tr", {}, columns.map((each) => h("th", { scope: "col" }, each))));
  return { element: h("table", {}, h("caption", { class: "unseen" }, caption), head, body), body };
}

/**
 * A cell that says, on a narrow screen, which column it is of.
 * @param {string} column
 * @param {...any} children
 */
export function cell(column, ...children) {
  return h("td", { "data-label": column }, ...children);
}

/** An empty place, in words. @param {Element} element @param {string} text */
export function nothing(element, text) {
  put(element, h("p", { class: "soft" }, text));
}
