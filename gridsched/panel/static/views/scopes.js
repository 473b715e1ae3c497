// What whoever looks may do, so that what he may not is not offered as if he might.

import { Refused, ask, key } from "/panel/api.js";
import { h, put } from "/panel/dom.js";
import { askForKey } from "/panel/ui.js";

const AGAIN_MS = 3000;

/** @type {Set<string>} */
let has = new Set();

/** Ask the server anew what the key of this tab may. Gives whether that is enough for a scope. @param {string} scope */
export async function may(scope) {
  try {
    const told = await ask("GET", "/api/connection");
    has = new Set(told.scopes);
  } catch (fault) {
    if (!(fault instanceof Refused) || fault.status === 0) throw fault;
    has = new Set();
  }
  return has.has(scope);
}

/**
 * Keep buttons disabled, with the reason in sight, as long as a scope is wanting. `told` is called with whether it is
 * there, at first and with each other key. Gives what ends it.
 * @param {string} scope
 * @param {Element} place
 * @param {string} what
 * @param {(isAllowed: boolean) => void} told
 */
export function wanting(scope, place, what, told) {
  let isEnded = false;
  let timer = 0;
  const look = async () => {
    clearTimeout(timer);
    let isAllowed = false;
    try {
      isAllowed = await may(scope);
    } catch {
      timer = setTimeout(look, AGAIN_MS); // nobody answers: that says nothing about the key
    }
    if (isEnded) return clearTimeout(timer);
    put(place, isAllowed ? null : h("p", { class: "row" },
      h("span", {}, `${what} needs the admin token, or a key of scope ${scope}.`),
      h("button", { type: "button", onclick: () => askForKey() }, "Enter a key")));
    told(isAllowed);
  };
  look();
  const unwatch = key.watch(look);
  return () => {
    isEnded = true;
    clearTimeout(timer);
    unwatch();
  };
}
