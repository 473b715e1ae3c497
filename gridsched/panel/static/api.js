// Requests to the server: with the key, if one was given; refusals as Refused; the event stream, taken up again where it broke off.

const KEY = "gridsched.key";

/** What the server has refused, or that it could not be asked (status 0). `details` is `error.gridsched`. */
export class Refused extends Error {
  /** @param {number} status @param {string} code @param {string} message @param {any} [details] */
  constructor(status, code, message, details = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.details = details;
  }
}

/** @type {Set<() => void>} */
const watchers = new Set();
let kept = stored((storage) => storage.getItem(KEY)) ?? "";

/**
 * What this tab keeps; a browser that keeps nothing for pages is no fault.
 * @template T
 * @param {(storage: Storage) => T} use
 * @returns {T|undefined}
 */
function stored(use) {
  try {
    return use(sessionStorage);
  } catch {
    return undefined;
  }
}

/** The key that is sent; kept for this tab, until it is closed. `watch` tells of another, and gives what ends that. */
export const key = {
  get: () => kept,
  /** @param {string} word */
  set: (word) => {
    kept = word;
    stored((storage) => (word ? storage.setItem(KEY, word) : storage.removeItem(KEY)));
    for (const watcher of [...watchers]) watcher();
  },
  /** @param {() => void} watcher */
  watch: (watcher) => {
    watchers.add(watcher);
    return () => void watchers.delete(watcher);
  },
};

/** @returns {Record<string, string>} */
function credentials() {
  return key.get() ? { Authorization: `Bearer ${key.get()}` } : {};
}

/**
 * The whole answer, as JSON. Raises Refused.
 * @param {string} method
 * @param {string} path
 * @param {any} [body]
 * @param {Record<string, string>} [headers]
 */
export async function ask(method, path, body, headers = {}) {
  const answer = await send(method, path, body, headers);
  try {
    return await answer.json();
  } catch {
    throw new Refused(answer.status, "internal", "the answer is no JSON");
  }
}

/**
 * The answer, whose body is still to be read. Raises Refused for what is not 2xx.
 * @param {string} method
 * @param {string} path
 * @param {any} [body]
 * @param {Record<string, string>} [headers]
 * @param {AbortSignal} [signal]
 */
export async function send(method, path, body, headers = {}, signal) {
  /** @type {Record<string, string>} */
  const said = body === undefined ? {} : { "Content-Type": "application/json" };
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: { ...said, ...credentials(), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
    });
  } catch (fault) {
    if (signal?.aborted) throw fault;
    throw new Refused(0, "unreachable", "the server does not answer");
  }
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => null);
  const error = told?.error ?? {};
  throw new Refused(answer.status, error.code ?? "", error.message ?? `the server says ${answer.status}`, error.gridsched ?? {});
}

/**
 * The events of a server-sent stream, each with its name, its id and its data. Ends with the stream. `heard` is called
 * with whatever comes, be it a part of an event.
 * @param {Response} answer
 * @param {() => void} [heard]
 * @returns {AsyncGenerator<{event: string, id: string, data: string}>}
 */
export async function* events(answer, heard = () => {}) {
  const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let event = "";
  let id = "";
  /** @type {string[]} */
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard();
      rest += decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = lines.pop() ?? "";
      for (const raw of lines) {
        const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
        if (line === "") {
          if (data.length > 0) yield { event, id, data: data.join("\n") };
          event = "";
          data = [];
        } else if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        else if (line.startsWith("event:")) event = line.slice(6).trim();
        else if (line.startsWith("id:")) id = line.slice(3).trim();
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
