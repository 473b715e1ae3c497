// Which views there are, which one is shown, and how the connection is.

import { h, put } from "/panel/dom.js";
import { follow, known, watch } from "/panel/state.js";
import { overview } from "/panel/views/overview.js";

/**
 * A view. `mount` fills `root` and gives what ends it: a function that stops its watching.
 * @typedef {{id: string, title: string, mount: (root: HTMLElement) => () => void}} View
 */

/** @type {View[]} */
const VIEWS = [overview];

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const nav = /** @type {HTMLElement} */ (document.getElementById("views"));
const connection = /** @type {HTMLElement} */ (document.getElementById("connection"));
let end = () => {};

function show() {
  const view = VIEWS.find((each) => `#${each.id}` === location.hash) ?? VIEWS[0];
  end();
  put(main);
  put(nav, VIEWS.map((each) => h("a", { href: `#${each.id}`, "aria-current": each === view ? "page" : null }, each.title)));
  document.title = `${view.title} – gridsched`;
  end = view.mount(main);
}

window.addEventListener("hashchange", show);
watch(() => put(connection, known.connected ? "connected" : known.refused ? known.refused.message : "no connection; trying again …"));
show();
follow();
