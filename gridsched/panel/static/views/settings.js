// The configuration: its file as a text, every setting with what holds, and the API keys.

import { ask } from "/panel/api.js";
import { h, say } from "/panel/dom.js";
import { watch, known } from "/panel/state.js";
import { button, confirm, toast } from "/panel/ui.js";
import { editor } from "/panel/views/editor.js";
import { effective } from "/panel/views/effective.js";
import { keys } from "/panel/views/keys.js";
import { wanting } from "/panel/views/scopes.js";

const LOOK_MS = 5000;

/** What is asked of the whole server. */
async function restart() {
  const text = h("p", {}, "Answers that run are finished first; nobody new is taken meanwhile. Models are loaded again when they are asked for.");
  if (!(await confirm("Start the server again?", text, "Start it again", { danger: true }))) return;
  const told = await ask("POST", "/api/restart");
  toast(told.text ?? "The server ends, and is started again by whatever runs it.");
}

/** @type {import("/panel/main.js").View} */
export const settings = {
  id: "settings",
  title: "Settings",
  mount(root) {
    const parts = ["file", "all", "keys"].map((each) => h("section", { class: "section", "data-part": each }));
    const fault = h("p", { class: "bad", role: "status" });
    const waiting = h("div", { class: "row" }, h("p", { class: "warn" }), button("Start the server again", restart));
    const why = h("div", { hidden: true });
    const news = h("div", { class: "note", hidden: true }, fault, waiting);
    root.append(h("div", { class: "stack" }, news, why, parts));
    const table = effective(parts[1], () => look());
    const text = editor(parts[0], () => look());
    const look = async () => {
      try {
        const told = await ask("GET", "/api/config");
        text.take(told);
        table.take(told);
      } catch (refused) {
        text.fail(/** @type {Error} */ (refused));
      }
    };
    const timer = setInterval(() => document.visibilityState === "visible" && look(), LOOK_MS);
    const ends = [keys(parts[2]), wanting("admin", why, "Changing the configuration", (isAllowed) => {
      why.hidden = isAllowed;
      text.allow(isAllowed);
      table.allow(isAllowed);
      look();
    }), watch(() => {
      const status = known.status;
      fault.hidden = !status?.config_error;
      say(fault, status?.config_error ? `The file is not what runs: ${status.config_error}` : "");
      const names = status?.config_needs_restart ?? [];
      waiting.hidden = names.length === 0;
      news.hidden = fault.hidden && waiting.hidden;
      say(/** @type {Element} */ (waiting.firstElementChild), `Only after a start of the server: ${names.join(", ")}.`);
    })];
    return () => {
      clearInterval(timer);
      for (const end of ends) end();
    };
  },
};
