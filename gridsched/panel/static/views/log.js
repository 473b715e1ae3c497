// The decision log as it is written, with filters; and the last lines of each engine's own log.

import { ask } from "/panel/api.js";
import { h, mark, put, say } from "/panel/dom.js";
import { known, watch } from "/panel/state.js";
import { button, fail } from "/panel/ui.js";
import { lineElement } from "/panel/views/line.js";
import { everyModel } from "/panel/views/models.js";
import { CLASSES } from "/panel/views/queues.js";

const SHOWN = 500;
const NEAR = 24;

/** What was chosen; it outlives the view. */
const chosen = { class: "", event: "", model: "", job: "" };

/** @param {any} line */
function matches(line) {
  return (!chosen.class || line.class === chosen.class) && (!chosen.event || line.event === chosen.event)
    && (!chosen.model || String(line.model ?? "").toLowerCase().includes(chosen.model.toLowerCase())) && (!chosen.job || String(line.job ?? "") === chosen.job.trim());
}

/** @param {"class"|"event"|"model"|"job"} name @param {string} label @param {HTMLElement} input @param {() => void} changed */
function filter(name, label, input, changed) {
  input.id = `filter-${name}`;
  input.addEventListener("input", () => {
    chosen[name] = /** @type {HTMLInputElement} */ (input).value;
    changed();
  });
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input);
}

/** @param {Set<string>} events @param {HTMLElement} select */
function offer(events, select) {
  if (select.childElementCount === events.size + 1) return;
  put(select, h("option", { value: "" }, "all"), [...events].sort().map((each) => h("option", { value: each, selected: each === chosen.event }, each)));
}

/** The decisions. Gives what ends it. @param {Element} root */
function decisions(root) {
  const place = h("div", { class: "lines", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Decisions" });
  const count = h("p", { class: "soft" });
  const events = h("select");
  /** @type {Set<string>} */
  const words = new Set(chosen.event ? [chosen.event] : []);
  let seen = 0;
  let isPaused = false;
  const update = () => {
    if (isPaused) return;
    const fresh = Math.min(known.count - seen, known.lines.length);
    seen = known.count;
    if (!fresh) return;
    const isAtEnd = place.scrollHeight - place.scrollTop - place.clientHeight < NEAR;
    const lines = known.lines.slice(-fresh);
    for (const line of lines) words.add(line.event);
    offer(words, events);
    place.append(...lines.filter(matches).slice(-SHOWN).map(lineElement));
    while (place.childElementCount > SHOWN) place.firstElementChild?.remove();
    say(count, `${place.childElementCount} of ${known.lines.length} lines${place.childElementCount === SHOWN ? " (the newest)" : ""}`);
    if (isAtEnd) place.scrollTop = place.scrollHeight;
  };
  const again = () => {
    const wasPaused = isPaused;
    isPaused = false;
    put(place);
    seen = 0;
    update();
    isPaused = wasPaused;
    place.scrollTop = place.scrollHeight;
  };
  const pause = h("button", { type: "button", "aria-pressed": "false", onclick: () => {
    isPaused = !isPaused;
    mark(pause, "aria-pressed", String(isPaused));
    update();
  } }, "Pause");
  const classes = h("select", {}, h("option", { value: "" }, "all"), CLASSES.map((each) => h("option", { value: each, selected: each === chosen.class }, each)));
  root.append(h("h2", {}, "Decisions"), h("div", { class: "filters" },
    filter("class", "Class", classes, again), filter("event", "Event", events, again),
    filter("model", "Model", h("input", { type: "search", value: chosen.model, autocomplete: "off" }), again),
    filter("job", "Job", h("input", { type: "search", inputmode: "numeric", value: chosen.job, autocomplete: "off" }), again), pause), place, count);
  offer(words, events);
  const unwatch = watch(update);
  requestAnimationFrame(() => (place.scrollTop = place.scrollHeight));
  return unwatch;
}

/** The engines' logs. @param {Element} root */
function engines(root) {
  const select = /** @type {HTMLSelectElement} */ (h("select", { id: "log-of" }));
  const place = h("pre", { class: "lines scroll", tabindex: "0", role: "group", "aria-label": "Lines of the log" });
  let asked = 0;
  const read = async () => {
    const mine = ++asked;
    const told = await ask("GET", `/api/logs/${encodeURIComponent(select.value)}?lines=500`);
    if (mine !== asked) return; // another log was chosen meanwhile
    say(place, told.lines.length ? told.lines.join("\n") : "Nothing was written.");
    place.scrollTop = place.scrollHeight;
  };
  const names = async () => {
    const own = (await everyModel()).filter((each) => !each.base);
    const before = select.value; // what was chosen while they were asked for, too
    put(select, h("option", { value: "gateway" }, "gateway (this server)"),
      own.map((each) => h("option", { value: each.id, selected: each.id === before }, `${each.id}${each.state === "cold" ? "" : ` (${each.state})`}`)));
  };
  const refresh = button("Refresh", async () => {
    await names();
    await read();
  });
  select.addEventListener("change", () => void read().catch(fail));
  root.append(h("h2", {}, "Logs of the engines"), h("div", { class: "filters" }, h("div", { class: "field" }, h("label", { for: "log-of" }, "Log of"), select), refresh), place);
  refresh.click();
}

/** @type {import("/panel/main.js").View} */
export const log = {
  id: "log",
  title: "Log",
  mount(root) {
    const first = h("section", { class: "section" });
    const second = h("section", { class: "section" });
    root.append(h("div", { class: "stack" }, first, second));
    engines(second);
    return decisions(first);
  },
};
