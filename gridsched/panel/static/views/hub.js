// The hub: repositories by their name, what of each would fit here, and what is fetched from it.

import { ask } from "/panel/api.js";
import { h, put, say } from "/panel/dom.js";
import { size } from "/panel/format.js";
import { button, cell, dialog, table, toast } from "/panel/ui.js";
import { consent } from "/panel/views/operation.js";

/** @param {string} repo @param {any} offer @param {(result: string) => void} close */
function fetcher(repo, offer, close) {
  return button("Fetch", async () => {
    const file = offer.files[0]?.path;
    if (!(await consent("/api/downloads", { repo, file }, `Fetch ${offer.name}?`, "Fetch it"))) return;
    await ask("POST", "/api/downloads", { repo, file });
    close("");
    toast(`${offer.name} is being fetched.`);
  }, { "aria-label": `Fetch ${offer.name}` });
}

/** @param {string} repo */
async function details(repo) {
  const told = await ask("GET", `/api/hub/repos/${repo.split("/").map(encodeURIComponent).join("%2F")}`);
  await dialog(repo, (close) => {
    const { element, body } = table(`Models of ${repo}`, ["model", "quantization", "size", "fits here", ""]);
    put(body, told.models.map((/** @type {any} */ offer) => h("tr", {}, cell("model", offer.name), cell("quantization", offer.quantization || "–"), cell("size", size(offer.size_bytes)),
      cell("fits here", fits(told.context_fit, offer.name)),
      h("td", {}, offer.missing.length ? h("span", { class: "warn" }, `incomplete: ${offer.missing.join(", ")}`) : fetcher(repo, offer, close)))));
    return told.models.length ? element : h("p", {}, "It holds no GGUF file.");
  }, undefined, { wide: true });
}

/** The longest context with which a model would fit, as one line. @param {any[]} context_fit @param {string} name */
function fits(context_fit, name) {
  const own = context_fit.find((each) => each.name === name);
  if (!own) return "–";
  if (own.problem) return own.problem;
  const best = own.rows.filter((/** @type {any} */ each) => each.fits !== "never").at(-1);
  if (!best) return "never";
  return `with ${best.ctx.toLocaleString()} tokens${best.fits === "now" ? "" : ", once nothing else runs"} (${size(best.total_bytes)})`;
}

/** @param {Element} root */
export function hub(root) {
  const words = /** @type {HTMLInputElement} */ (h("input", { type: "search", id: "hub-words", placeholder: "qwen3 8b gguf", autocomplete: "off" }));
  const { element, body } = table("Repositories", ["repository", "downloads", "likes", ""]);
  const about = h("p", { class: "soft", role: "status" }, "Nothing is asked of the hub before you search.");
  const search = button("Search", async () => {
    say(about, "The hub is asked …");
    try {
      const told = await ask("GET", `/api/hub/search?q=${encodeURIComponent(words.value)}`);
      put(body, told.repos.map((/** @type {any} */ each) => h("tr", {}, cell("repository", each.id, each.gated ? h("span", { class: "tag" }, "gated") : null), cell("downloads", each.downloads.toLocaleString()), cell("likes", each.likes.toLocaleString()),
        h("td", {}, button("Look", () => details(each.id), { "aria-label": `Look at ${each.id}` })))));
      element.hidden = told.repos.length === 0;
      say(about, told.repos.length ? `${told.repos.length} found.` : "Nothing was found.");
    } catch (fault) {
      say(about, /** @type {Error} */ (fault).message);
      throw fault;
    }
  });
  element.hidden = true;
  root.append(h("section", { class: "section" }, h("h2", {}, "Fetch a model from the hub"),
    h("form", { class: "filters", onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); search.click(); } }, h("div", { class: "field" }, h("label", { for: "hub-words" }, "Words of its name, or PUBLISHER/NAME"), words), search), about, element));
}
