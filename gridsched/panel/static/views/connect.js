// How clients are connected: where to, and what to write for each.

import { ask } from "/panel/api.js";
import { h, put, say } from "/panel/dom.js";
import { CLASSES } from "/panel/views/queues.js";
import { copied, copyButton } from "/panel/views/copy.js";

const KEY = "YOUR_KEY";

/**
 * What is written, given the addresses, a model, a class and a key.
 * @typedef {{openai: string, anthropic: string, mcp: string, model: string, class: string, key: string}} Words
 */

/** @param {string} word */
const quoted = (word) => JSON.stringify(word);
/** For a shell. @param {string} word */
const shell = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** @type {Record<string, (words: Words) => string>} */
const SNIPPETS = {
  "OpenAI SDK, Python": (words) => `from openai import OpenAI

client = OpenAI(base_url=${quoted(words.openai)}, api_key=${quoted(words.key)})
answer = client.chat.completions.create(
    model=${quoted(words.model)},
    messages=[{"role": "user", "content": "Hello"}],
    extra_headers={"X-Class": ${quoted(words.class)}},
)
print(answer.choices[0].message.content)`,
  "OpenAI SDK, Node": (words) => `import OpenAI from "openai";

const client = new OpenAI({ baseURL: ${quoted(words.openai)}, apiKey: ${quoted(words.key)} });
const answer = await client.chat.completions.create(
  { model: ${quoted(words.model)}, messages: [{ role: "user", content: "Hello" }] },
  { headers: { "X-Class": ${quoted(words.class)} } },
);
console.log(answer.choices[0].message.content);`,
  "curl": (words) => `curl ${shell(`${words.openai}/chat/completions`)} \\
  -H 'Content-Type: application/json' \\
  -H ${shell(`Authorization: Bearer ${words.key}`)} \\
  -H ${shell(`X-Class: ${words.class}`)} \\
  -d ${shell(JSON.stringify({ model: words.model, messages: [{ role: "user", content: "Hello" }] }))}`,
  "Claude Code": (words) => `ANTHROPIC_BASE_URL=${shell(words.anthropic)} ANTHROPIC_API_KEY=${shell(words.key)} \\
  ANTHROPIC_MODEL=${shell(words.class === "interactive" ? words.model : `${words.model}@${words.class}`)} \\
  claude --disallowedTools Workflow`,
  "Anthropic SDK, Python": (words) => `from anthropic import Anthropic

client = Anthropic(base_url=${quoted(words.anthropic)}, api_key=${quoted(words.key)})
answer = client.messages.create(
    model=${quoted(words.model)},
    max_tokens=500,
    messages=[{"role": "user", "content": "Hello"}],
    extra_headers={"X-Class": ${quoted(words.class)}},
)
print(answer.content[0].text)`,
  "Tools for an agent (MCP)": (words) => `claude mcp add --transport http gridsched ${shell(words.mcp)} \\
  --header ${shell(`Authorization: Bearer ${words.key}`)}`,
};

/** @param {string} label @param {string} id @param {string[]} options */
function choice(label, id, options) {
  const select = /** @type {HTMLSelectElement} */ (h("select", { id }, options.map((each) => h("option", { value: each }, each))));
  return { select, field: h("div", { class: "field" }, h("label", { for: id }, label), select) };
}

/** What to do where there is no model yet. */
function firstModel() {
  return h("div", { class: "card" }, h("h3", {}, "The first model"),
    h("p", {}, "There is none yet. Look for one on the hub under ", h("a", { href: "#work" }, "Work"),
      ": it says which fits here, fetches it and serves it. Or name the folders where your GGUF files lie under ",
      h("a", { href: "#settings" }, "Settings"), " (", h("code", {}, "library: {dirs: [~/models]}"), ")."));
}

/** @param {Element} root @param {any} told @param {any[]} models */
function filled(root, told, models) {
  const chats = models.filter((each) => each.gridsched?.capabilities.includes("chat")).map((each) => each.id);
  const client = choice("Client", "connect-client", Object.keys(SNIPPETS));
  const model = choice("Model", "connect-model", chats.length ? chats : ["default"]);
  const job_class = choice("Class", "connect-class", CLASSES);
  if (chats.includes(told.default_model)) model.select.value = told.default_model;
  const snippet = h("code", {});
  const write = () => say(snippet, SNIPPETS[client.select.value]({
    openai: told.openai_base_url, anthropic: told.anthropic_base_url, mcp: told.mcp_url,
    model: model.select.value, class: job_class.select.value, key: told.wants_key ? KEY : "unused",
  }));
  for (const each of [client, model, job_class]) each.select.addEventListener("change", write);
  write();
  put(root, h("h2", {}, "Connect a client"), models.length ? null : firstModel(),
    h("div", { class: "card" }, copied("OpenAI's clients", told.openai_base_url), copied("Anthropic's clients", told.anthropic_base_url), copied("MCP", told.mcp_url),
      h("p", { class: "soft" }, told.wants_key ? "Every request needs an API key; they are made under " : "No key is needed on this machine; clients that want one take any word. Keys are made under ",
        h("a", { href: "#settings" }, "Settings"), ".")),
    h("div", { class: "filters" }, client.field, model.field, job_class.field),
    h("div", { class: "snippet" }, h("pre", { class: "lines", tabindex: "0", role: "group", "aria-label": "What to write" }, snippet), copyButton("what to write", snippet)));
}

/** @param {Element} root */
export async function connect(root) {
  put(root, h("h2", {}, "Connect a client"));
  try {
    const [told, listed] = await Promise.all([ask("GET", "/api/connection"), ask("GET", "/v1/models").catch(() => ({ data: [] }))]);
    filled(root, told, listed.data);
  } catch (fault) {
    root.append(h("p", { class: "bad" }, /** @type {Error} */ (fault).message));
  }
}
