// A small chat on the real path: the same request that every client sends, streamed; and how long each part of it took.

import { events, send } from "/panel/api.js";
import { h, mark, put, say } from "/panel/dom.js";
import { span } from "/panel/format.js";
import { known, watch } from "/panel/state.js";
import { fail } from "/panel/ui.js";
import { everyModel } from "/panel/views/models.js";
import { CLASSES } from "/panel/views/queues.js";

const LARGEST_IMAGE_BYTES = 8 * 1024 * 1024;

/** The conversation outlives the view. @type {{role: string, content: any, text: string, image?: string, about?: string}[]} */
let turns = [];
const chosen = { model: "", class: "interactive", system: "" };

/** @param {string} label @param {HTMLElement} input */
function field(label, input) {
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input);
}

/** @param {any} turn */
function turnElement(turn) {
  const text = h("p", {}, turn.text);
  const about = h("p", { class: "figures-line" }, turn.about ?? "");
  const who = turn.role === "user" ? "You" : "Model";
  const image = turn.image ? h("img", { src: turn.image, alt: "The picture that goes with it" }) : null;
  return { text, about, element: h("article", { class: `turn ${turn.role}`, "aria-label": who }, image, text, about) };
}

/** What an answer's frames add. @param {string} data @returns {{text: string, thought: string, tokens: number|null, error: string}} */
function read(data) {
  if (data === "[DONE]") return { text: "", thought: "", tokens: null, error: "" };
  const frame = JSON.parse(data);
  const delta = frame.choices?.[0]?.delta ?? {};
  return { text: delta.content ?? "", thought: delta.reasoning_content ?? "", tokens: frame.usage?.completion_tokens ?? null, error: frame.error?.message ?? "" };
}

/**
 * Send the conversation and put the answer into its turn, as it comes.
 * @param {any} turn
 * @param {ReturnType<typeof turnElement>} shown
 * @param {AbortSignal} signal
 */
async function answer(turn, shown, signal) {
  const began = performance.now();
  const system = chosen.system.trim() ? [{ role: "system", content: chosen.system }] : [];
  const messages = [...system, ...turns.filter((each) => each !== turn && each.content).map(({ role, content }) => ({ role, content }))];
  const body = { model: chosen.model, messages, stream: true, stream_options: { include_usage: true } };
  const response = await send("POST", "/v1/chat/completions", body, { "X-Class": chosen.class }, signal);
  const job = response.headers.get("x-gridsched-job-id");
  let first = 0;
  let frames = 0;
  let tokens = 0;
  let isWhole = false;
  const unwatch = watch(() => {
    if (!first) say(shown.about, waiting(job));
  });
  try {
    for await (const each of events(response)) {
      const { text, thought, tokens: counted, error } = read(each.data);
      if (error) throw new Error(error);
      if (each.data === "[DONE]") isWhole = true;
      if (text || thought) {
        first ||= performance.now();
        frames += 1;
      }
      tokens = counted ?? tokens;
      turn.text += text;
      say(shown.text, turn.text);
      turn.content = turn.text;
    }
    if (!isWhole) throw new Error("the answer broke off");
  } finally {
    unwatch();
    turn.about = figures(response, began, first || performance.now(), tokens || frames);
    say(shown.about, turn.about);
  }
}

/** What a job that has no answer yet waits for. @param {string|null} job */
function waiting(job) {
  const found = (known.status?.waiting ?? []).find((/** @type {any} */ each) => String(each.job) === job);
  return found ? `waits: ${found.reason} (${found.rule})${found.estimate_s === null ? "" : `, about ${span(found.estimate_s)}`}` : "reads the question …";
}

/** @param {Response} response @param {number} began @param {number} first @param {number} tokens */
function figures(response, began, first, tokens) {
  const seconds = (performance.now() - first) / 1000;
  const rate = tokens > 1 && seconds > 0 ? `, ${(tokens / seconds).toFixed(1)} tokens/s` : "";
  const who = response.headers.get("x-gridsched-model") ?? chosen.model;
  const job = response.headers.get("x-gridsched-job-id");
  const word = response.headers.get("x-gridsched-class") ?? chosen.class;
  return `${who}, ${word}, job ${job ?? "–"}: first token after ${span((first - began) / 1000)}${rate}`;
}

/** A picture as a data URL. @param {File} file @returns {Promise<string>} */
function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(String(reader.result)));
    reader.addEventListener("error", () => reject(new Error(`${file.name} cannot be read`)));
    reader.readAsDataURL(file);
  });
}

/** @type {import("/panel/main.js").View} */
export const chat = {
  id: "chat",
  title: "Chat",
  mount(root) {
    const model = /** @type {HTMLSelectElement} */ (h("select", { id: "chat-model", onchange: () => pick() }));
    const job_class = /** @type {HTMLSelectElement} */ (h("select", { id: "chat-class", onchange: () => (chosen.class = job_class.value) }, CLASSES.map((each) => h("option", { value: each, selected: each === chosen.class }, each))));
    const system = /** @type {HTMLInputElement} */ (h("input", { id: "chat-system", value: chosen.system, autocomplete: "off", oninput: () => (chosen.system = system.value) }));
    const question = /** @type {HTMLTextAreaElement} */ (h("textarea", { id: "chat-question", rows: 3 }));
    const picture = /** @type {HTMLInputElement} */ (h("input", { id: "chat-image", type: "file", accept: "image/png,image/jpeg,image/webp,image/gif" }));
    const withPicture = field("Picture", picture);
    const place = h("div", { class: "turns", role: "log", "aria-label": "The conversation", tabindex: "0" });
    const go = h("button", { type: "submit", class: "primary" }, "Send");
    const stop = /** @type {HTMLButtonElement} */ (h("button", { type: "button", disabled: true, onclick: () => running?.abort() }, "Stop"));
    const clear = h("button", { type: "button", onclick: () => {
      running?.abort();
      turns = [];
      empty();
    } }, "Begin anew");
    /** @type {AbortController|null} */
    let running = null;
    /** @type {Map<string, any>} */
    const able = new Map();
    const pick = () => {
      chosen.model = model.value;
      withPicture.hidden = !able.get(model.value)?.capabilities.includes("vision");
    };
    const empty = () => put(place, h("p", { class: "soft" }, "What is sent here takes the same way as every client's request: it waits, loads its model and is answered by the rules of its class. Choose background to see it wait."));
    const submit = async () => {
      const text = question.value.trim();
      if (!text || running || !chosen.model) return;
      try {
        const file = withPicture.hidden ? undefined : picture.files?.[0];
        if (file && file.size > LARGEST_IMAGE_BYTES) throw new Error(`${file.name} is larger than 8 MiB`);
        const image = file ? await dataUrl(file) : undefined;
        const content = image ? [{ type: "text", text }, { type: "image_url", image_url: { url: image } }] : text;
        const asked = { role: "user", content, text, image };
        const told = { role: "assistant", content: "", text: "" };
        if (turns.length === 0) put(place);
        turns.push(asked, told);
        const shown = turnElement(told);
        place.append(turnElement(asked).element, shown.element);
        place.scrollTop = place.scrollHeight;
        question.value = picture.value = "";
        running = new AbortController();
        stop.disabled = false;
        mark(go, "aria-busy", "true");
        await answer(told, shown, running.signal).catch((fault) => {
          const why = running?.signal.aborted ? "stopped" : fault.message;
          told.content ||= "";
          shown.element.append(h("p", { class: running?.signal.aborted ? "soft" : "bad" }, why));
          if (!running?.signal.aborted && fault.status === 401) fail(fault);
        });
      } catch (fault) {
        fail(fault);
      } finally {
        running = null;
        stop.disabled = true;
        mark(go, "aria-busy", null);
      }
    };
    question.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        void submit();
      }
    });
    root.append(h("section", { class: "chat" },
      h("div", { class: "section" }, h("h2", {}, "Chat"), h("div", { class: "filters" }, field("Model", model), field("Class", job_class), field("System prompt", system), withPicture)),
      place,
      h("form", { class: "ask", onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); void submit(); } },
        field("Message (Enter sends, Shift+Enter begins a line)", question), h("div", { class: "row" }, go, stop, clear))));
    if (turns.length === 0) empty();
    else put(place, turns.map((each) => turnElement(each).element));
    everyModel().then((models) => {
      for (const each of models) if (each.capabilities.includes("chat") && !each.unavailable) able.set(each.id, each);
      put(model, [...able.values()].map((each) => h("option", { value: each.id, selected: each.id === chosen.model }, `${each.id}${each.state === "ready" ? " (ready)" : ""}`)));
      if (able.size === 0) put(place, h("p", {}, "There is no model that can chat yet. Set-up says how to get one."));
      pick();
    }).catch((fault) => put(place, h("p", { class: "bad" }, fault.message)));
    return () => running?.abort();
  },
};
