// Texts to be taken elsewhere: shown whole, and copied with one press.

import { h, say } from "/panel/dom.js";
import { toast } from "/panel/ui.js";

const SAID_MS = 2000;

/** Select what an element says, so that it can be copied by hand. @param {Element} element */
function select(element) {
  const range = document.createRange();
  range.selectNodeContents(element);
  const selection = getSelection();
  selection?.removeAllRanges();
  selection?.addRange(range);
}

/**
 * A text with a button that copies it. Where the browser does not let a page do that, it is selected instead.
 * @param {string} what
 * @param {Element} place
 */
export function copyButton(what, place) {
  const button = h("button", { type: "button", "aria-label": `Copy ${what}`, onclick: async () => {
    try {
      await navigator.clipboard.writeText(place.textContent ?? "");
    } catch {
      select(place);
      toast(`${what} is selected: this browser copies it with Ctrl+C only.`);
      return;
    }
    say(button, "Copied");
    setTimeout(() => say(button, "Copy"), SAID_MS);
  } }, "Copy");
  return button;
}

/** One line that is copied: a label, the text, the button. @param {string} label @param {string} text */
export function copied(label, text) {
  const place = h("code", {}, text);
  return h("div", { class: "copied" }, h("span", { class: "soft" }, label), place, copyButton(label, place));
}
