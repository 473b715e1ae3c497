// Whether the set-up is well, what to do where it is not, and how clients are connected.

import { ask, key } from "/panel/api.js";
import { h, mark, put, say } from "/panel/dom.js";
import { button } from "/panel/ui.js";
import { connect } from "/panel/views/connect.js";

const TONES = /** @type {Record<string, string>} */ ({ ok: "tag good", note: "tag warn", problem: "tag bad" });

/** @param {any} each */
function finding(each) {
  return h("li", { class: "finding", "data-state": each.state, "data-about": each.about },
    h("span", { class: TONES[each.state] ?? "tag" }, each.state),
    h("b", {}, each.about),
    h("div", {}, each.text.split("\n").map((/** @type {string} */ line) => h("p", {}, line)),
      each.do ? h("p", { class: "soft" }, "To do: ", each.do) : null));
}

/** What was found. Gives what looks anew. @param {Element} root */
function checks(root) {
  const verdict = h("p", { role: "status" });
  const list = h("ul", { class: "findings card" });
  const look = async () => {
    try {
      const told = await ask("GET", "/api/setup");
      mark(verdict, "class", told.ok ? "good" : "bad");
      say(verdict, told.ok ? "Nothing is wrong." : `${told.text[0].toUpperCase()}${told.text.slice(1)}.`);
      put(list, told.findings.map(finding));
    } catch (fault) {
      mark(verdict, "class", "bad");
      say(verdict, /** @type {Error} */ (fault).message);
    }
    list.hidden = !list.hasChildNodes();
  };
  root.append(h("div", { class: "section-head" }, h("h2", {}, "Set-up"), verdict, button("Check again", look)), list,
    h("p", { class: "soft" }, "On the server's machine ", h("code", {}, "gridsched doctor"), " looks from outside as well, also before a start."));
  list.hidden = true;
  return look;
}

/** @type {import("/panel/main.js").View} */
export const setup = {
  id: "setup",
  title: "Set-up",
  mount(root) {
    const first = h("section", { class: "section" });
    const second = h("section", { class: "section" });
    root.append(h("div", { class: "stack" }, first, second));
    const look = checks(first);
    const again = () => {
      look();
      connect(second);
    };
    again();
    return key.watch(again);
  },
};
