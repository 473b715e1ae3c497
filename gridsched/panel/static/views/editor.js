// The configuration's file as a text: edited, checked as a start would check it, and saved. What was typed is kept until
// it is saved or thrown away, whichever view is shown.

import { Refused, ask } from "/panel/api.js";
import { h, put, say } from "/panel/dom.js";
import { button, cell, confirm, table, toast } from "/panel/ui.js";
import { shown } from "/panel/views/effective.js";

const PLACED = /^.*?:(\d+):(\d+): (.*)$/s;

/** What is typed and not saved: null for nothing. `base` is the file's text that it was made of. */
const draft = { text: /** @type {string|null} */ (null), base: "", sha256: "" };

window.addEventListener("beforeunload", (event) => {
  if (draft.text !== null) event.preventDefault();
});

/** A fault, with the line that it is at where one is named. @param {string} text @returns {{line: number, text: string}} */
export function placed(text) {
  const found = PLACED.exec(text);
  return found ? { line: Number(found[1]), text: found[3] } : { line: 0, text };
}

/** What a change comes to. @param {any} plan */
function consequences(plan) {
  const { element, body } = table("What changes", ["setting", "from", "to"]);
  const { changes = [], restarts = [], needs_restart = [] } = plan.details;
  put(body, changes.map((/** @type {any} */ each) =>
    h("tr", {}, cell("setting", each.key), cell("from", shown(each.before)), cell("to", shown(each.after)))));
  return [
    changes.length ? element : h("p", {}, plan.text),
    restarts.length ? h("p", { class: "warn" }, `Loaded anew when they are idle: ${restarts.join(", ")}.`) : null,
    needs_restart.length ? h("p", { class: "warn" }, `Only after a start of the server: ${needs_restart.join(", ")}.`) : null,
    h("p", { class: "soft" }, "A copy of the file as it was is kept beside it."),
  ];
}

/** The lines' numbers beside a text, those with a fault marked. @param {HTMLTextAreaElement} area */
function numbers(area) {
  const place = h("div", { class: "numbers", "aria-hidden": "true" });
  area.addEventListener("scroll", () => (place.scrollTop = area.scrollTop));
  /** @type {Set<number>} */
  let bad = new Set();
  let before = "";
  const draw = () => {
    const count = area.value.split("\n").length;
    const now = `${count}: ${[...bad].join()}`;
    if (now === before) return;
    before = now;
    put(place, Array.from({ length: count }, (_, at) => h("span", { class: bad.has(at + 1) ? "bad" : null }, at + 1)));
    place.scrollTop = area.scrollTop;
  };
  return { place, draw, mark: (/** @type {number[]} */ lines) => {
    bad = new Set(lines);
    draw();
  } };
}

/** Put the cursor on a line. @param {HTMLTextAreaElement} area @param {number} line */
function goTo(area, line) {
  const lines = area.value.split("\n");
  const from = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
  area.focus();
  area.setSelectionRange(from, from + (lines[line - 1]?.length ?? 0));
  area.scrollTop = Math.max(0, (line - 4) * parseFloat(getComputedStyle(area).lineHeight));
}

/** What is wrong, each with a way to its line. @param {{line: number, text: string}[]} faults @param {HTMLTextAreaElement} area */
function listed(faults, area) {
  return [h("p", { class: "bad" }, "The server would refuse this file, so it is not saved:"),
    h("ul", { class: "plain" }, faults.map((each) => h("li", { class: "row" },
      each.line ? h("button", { type: "button", onclick: () => goTo(area, each.line) }, `line ${each.line}`) : null, h("span", {}, each.text))))];
}

/** That somebody else has saved the file meanwhile. @param {() => void} keep @param {() => void} giveWay */
function overtaken(keep, giveWay) {
  return [h("p", {}, "Somebody has changed the file meanwhile; what you typed is kept here."),
    h("div", { class: "row" }, h("button", { type: "button", onclick: keep }, "Keep mine, and save it over theirs"), h("button", { type: "button", onclick: giveWay }, "Show theirs"))];
}

/**
 * The editor. Gives what takes the configuration as the server tells it, and whether it may be changed.
 * @param {Element} root
 * @param {() => void} saved
 */
export function editor(root, saved) {
  const area = /** @type {HTMLTextAreaElement} */ (h("textarea", { id: "config-text", class: "mono", spellcheck: "false", autocapitalize: "off", wrap: "off", rows: 18, "aria-describedby": "config-said" }));
  const beside = numbers(area);
  const path = h("code", {});
  const unsaved = h("span", { class: "tag warn", hidden: true }, "not saved");
  const said = h("div", { id: "config-said", role: "status" });
  const meanwhile = h("div", { class: "note", role: "status", hidden: true });
  const hint = h("p", { class: "warn", role: "status", hidden: true });
  /** @type {any} */
  let told = null;
  let isAllowed = false;
  let isHidden = false;

  const tell = (/** @type {any[]} */ ...content) => put(said, content);
  const warn = (/** @type {string} */ text) => {
    hint.hidden = !text;
    say(hint, text);
  };
  const clean = () => {
    draft.text = null;
    beside.mark([]);
    buttons();
  };
  const buttons = () => {
    const isDirty = draft.text !== null;
    area.readOnly = !isAllowed || isHidden;
    for (const each of [check, save]) /** @type {HTMLButtonElement} */ (each).disabled = !isAllowed || !isDirty || isHidden;
    /** @type {HTMLButtonElement} */ (discard).disabled = !isDirty;
    /** @type {HTMLButtonElement} */ (reload).disabled = !isAllowed;
    unsaved.hidden = !isDirty;
  };
  const refused = (/** @type {any} */ fault) => {
    if (!(fault instanceof Refused) || fault.code !== "config_invalid") throw fault;
    const faults = (fault.details.faults ?? [fault.message]).map(placed);
    beside.mark(faults.map((/** @type {{line: number}} */ each) => each.line));
    tell(listed(faults, area));
  };
  const plan = () => ask("PATCH", "/api/config?dry_run=1", { text: area.value });
  const check = button("Check", async () => {
    try {
      const found = await plan();
      beside.mark([]);
      tell(h("p", { class: "good" }, "It would be taken over."), consequences(found));
    } catch (fault) {
      refused(fault);
    }
  });
  const save = button("Save", async () => {
    const text = area.value;
    try {
      const found = await plan();
      if (!(await confirm("Save the configuration?", consequences(found), "Save it"))) return;
      const done = await ask("PATCH", "/api/config", { text, ...(draft.sha256 ? { expected_sha256: draft.sha256 } : {}) });
      draft.base = text;
      draft.sha256 = done.sha256;
      if (area.value === text) clean();
      tell(h("p", { class: "good" }, `${done.written ? "Saved" : "It was like that already"}: ${done.text}.`));
      saved();
    } catch (fault) {
      if (fault instanceof Refused && fault.code === "conflict") saved();
      refused(fault);
    }
  }, { class: "primary" });
  const discard = button("Throw away", async () => {
    if (!(await confirm("Throw away what is not saved?", h("p", {}, "The file's own text is shown again."), "Throw it away", { danger: true }))) return;
    clean();
    tell();
    if (told) take(told);
  });
  const reload = button("Read the file again", async () => {
    const done = await ask("POST", "/api/config/reload", {});
    toast(done.text ?? "The configuration was read again.");
    saved();
  });
  const changed = () => {
    if (draft.text === null || told?.sha256 === draft.sha256) {
      meanwhile.hidden = true;
      return;
    }
    if (!meanwhile.hidden) return;
    meanwhile.hidden = false;
    put(meanwhile, overtaken(() => {
      draft.sha256 = told.sha256;
      meanwhile.hidden = true;
    }, () => discard.click()));
  };
  /** @param {any} now */
  const take = (now) => {
    told = now;
    say(path, now.exists ? now.path : `${now.path} (not there yet)`);
    isHidden = now.text !== null && !now.text_is_whole;
    if (draft.text === null) {
      draft.base = now.text ?? "";
      draft.sha256 = now.sha256;
      if (area.value !== draft.base) area.value = draft.base;
    } else if (area.value !== draft.text) {
      area.value = draft.text;
    }
    warn(isHidden ? "Secrets in it are hidden, so it cannot be saved as a whole from here: change single settings below."
      : isAllowed && now.text === null ? "The file is no YAML, so it is not shown: a secret could stand in it. Mend it on the server's machine, or write it anew here." : "");
    changed();
    beside.draw();
    buttons();
  };
  area.addEventListener("input", () => {
    draft.text = area.value === draft.base ? null : area.value;
    beside.mark([]);
    buttons();
    changed();
  });
  area.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "s") {
      event.preventDefault();
      if (!/** @type {HTMLButtonElement} */ (save).disabled) save.click();
    }
  });
  root.append(h("div", { class: "section-head" }, h("h2", {}, h("label", { for: "config-text" }, "Configuration")), path, unsaved), hint, meanwhile,
    h("div", { class: "editor" }, beside.place, area), h("div", { class: "row" }, save, check, discard, reload), said);
  buttons();
  return { take, allow: (/** @type {boolean} */ allowed) => {
    isAllowed = allowed;
    buttons();
  }, fail: (/** @type {Error} */ fault) => warn(fault.message) };
}
