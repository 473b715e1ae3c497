// Which views there are, which one is shown, how the connection is, and what the top of the page offers.

import { h, mark, put, say } from "/panel/dom.js";
import { key } from "/panel/api.js";
import { follow, known, watch } from "/panel/state.js";
import { askForKey, toast } from "/panel/ui.js";
import { chat } from "/panel/views/chat.js";
import { log } from "/panel/views/log.js";
import { models } from "/panel/views/models.js";
import { overview } from "/panel/views/overview.js";
import { settings } from "/panel/views/settings.js";
import { setup } from "/panel/views/setup.js";
import { work } from "/panel/views/work.js";

/**
 * A view. `mount` fills `root` and gives what ends it: a function that stops its watching.
 * @typedef {{id: string, title: string, mount: (root: HTMLElement) => () => void}} View
 */

/** @type {View[]} */
const VIEWS = [overview, models, chat, work, log, settings, setup];

const THEMES = ["system", "light", "dark"];
const SIGNS = /** @type {Record<string, string>} */ ({ system: "◐", light: "○", dark: "●" });
const THEME = "gridsched.theme";

const main = element("main");
const nav = element("views");
let end = () => {};

/** @param {string} id */
function element(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

function show() {
  const view = VIEWS.find((each) => `#${each.id}` === location.hash) ?? VIEWS[0];
  end();
  put(main);
  put(nav, VIEWS.map((each) => h("a", { href: `#${each.id}`, "aria-current": each === view ? "page" : null }, each.title)));
  document.title = `${view.title} – gridsched`;
  main.dataset.view = view.id;
  end = view.mount(main);
}

function told() {
  if (known.connected) return "connected";
  if (known.refused) return known.refused.status === 401 ? "a key is wanted" : known.refused.message;
  return known.wasConnected ? "no connection; trying again …" : "connecting …";
}

function theme() {
  const named = (/** @type {string} */ chosen) => {
    put(button, `${SIGNS[chosen]} `, h("span", { class: "wide" }, chosen));
    mark(button, "aria-label", `Theme: ${chosen}`);
    mark(button, "title", `Theme: ${chosen}`);
  };
  const button = h("button", { type: "button", class: "quiet", onclick: () => {
    const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % THEMES.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem(THEME, next);
    } catch {
      // it holds for this page alone
    }
    named(next);
    window.dispatchEvent(new Event("themechange"));
  } });
  named(document.documentElement.dataset.theme ?? "system");
  return button;
}

function keys() {
  const button = h("button", { type: "button", class: "quiet", onclick: () => askForKey() });
  const named = () => say(button, key.get() ? "Key: set" : "Key");
  key.watch(named);
  named();
  return button;
}

let version = "";

/** A page that is older than its server says so, once. */
function compare() {
  const now = known.status?.version ?? "";
  if (!version) version = now;
  const banner = element("banner");
  if (!now || now === version || banner.hasChildNodes()) return;
  const reload = h("button", { type: "button", onclick: () => location.reload() }, "Reload");
  put(banner, h("p", {}, `This page is of version ${version}; the server is ${now} by now.`), reload);
}

function connection() {
  const place = element("connection");
  say(place, told());
  mark(place, "data-state", known.connected ? "on" : known.refused ? "refused" : "off");
  compare();
}

let asked = "";
/** A server that wants a key is asked for with one, once for each answer. */
function wantKey() {
  const refused = known.refused;
  if (!refused || refused.status !== 401 || asked === key.get() + refused.message) return;
  asked = key.get() + refused.message;
  askForKey(refused.message);
}

put(element("tools"), keys(), theme());
element("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", () => {
  show();
  main.focus({ preventScroll: true });
  window.scrollTo(0, 0);
});
watch(connection);
watch(wantKey);
show();
follow({ restarted: () => toast("The server was started again.") });
