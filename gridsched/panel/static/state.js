// What the page knows: the server's status and the lines of its decision log, kept up to date by one stream; and who is told.

import { events, key, send } from "/panel/api.js";

const AGAIN_MS = 1000;
const SILENT_MS = 15000;
const KEPT_LINES = 20000;

/**
 * `count` is how many lines there ever were, of which `lines` are the last; `skew` is how far the server's clock is ahead
 * of this one, in milliseconds.
 * @typedef {{status: any, lines: any[], count: number, skew: number, connected: boolean, wasConnected: boolean,
 *   refused: import("/panel/api.js").Refused|null}} Known
 */

/** @type {Known} */
export const known = { status: null, lines: [], count: 0, skew: 0, connected: false, wasConnected: false, refused: null };

/** @type {Set<() => void>} */
const watchers = new Set();
let isTold = false;

/** Call this after something has changed, at most once a frame. Gives a function that ends it. @param {() => void} watcher */
export function watch(watcher) {
  watchers.add(watcher);
  watcher();
  return () => void watchers.delete(watcher);
}

/** The server's clock, in milliseconds. */
export function now() {
  return Date.now() + known.skew;
}

function changed() {
  if (isTold) return;
  isTold = true;
  const tell = () => {
    isTold = false;
    for (const watcher of watchers) {
      try {
        watcher();
      } catch (fault) {
        console.error(fault); // the others are told all the same
      }
    }
  };
  if (document.visibilityState === "visible") requestAnimationFrame(tell);
  else setTimeout(tell, AGAIN_MS); // nobody looks, and no frame is drawn
}

/**
 * Follow the server for as long as the page lives; one that has gone is waited for, and asked for what it has said
 * meanwhile. `restarted` is called when another run of it has begun since the page first heard of it.
 * @param {{restarted: () => void}} told
 */
export async function follow({ restarted }) {
  let last = "";
  for (;;) {
    const ending = new AbortController();
    const unwatch = key.watch(() => ending.abort());
    let silence = 0;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => ending.abort(), SILENT_MS);
    };
    try {
      heard();
      /** @type {Record<string, string>} */
      const headers = last ? { "Last-Event-ID": last } : {};
      const answer = await send("GET", "/api/events?status=1", undefined, headers, ending.signal);
      known.connected = known.wasConnected = true;
      known.refused = null;
      changed();
      for await (const each of events(answer)) {
        heard();
        if (each.event === "status") take(JSON.parse(each.data));
        else {
          last = each.id || last;
          add(JSON.parse(each.data), restarted);
        }
        changed();
      }
    } catch (fault) {
      known.refused = /** @type {any} */ (fault).status ? /** @type {any} */ (fault) : null;
    }
    clearTimeout(silence);
    unwatch();
    known.connected = false;
    changed();
    await again(known.refused !== null);
  }
}

let firstSeen = Infinity;

/** @param {any} status */
function take(status) {
  known.status = status;
  if (firstSeen === Infinity) firstSeen = Date.parse(status.time);
  const skew = Date.parse(status.time) - Date.now();
  if (Number.isFinite(skew)) known.skew = skew;
}

/** @param {any} line @param {() => void} restarted */
function add(line, restarted) {
  if (line.event === "start" && Date.parse(line.time) > firstSeen) restarted();
  known.lines.push(line);
  known.count += 1;
  if (known.lines.length > KEPT_LINES) known.lines.splice(0, known.lines.length - KEPT_LINES);
}

/**
 * A moment; after a refusal a longer one, which another key ends.
 * @param {boolean} isRefused
 */
function again(isRefused) {
  return /** @type {Promise<void>} */ (new Promise((resolve) => {
    const go = () => {
      clearTimeout(timer);
      unwatch();
      resolve();
    };
    const timer = setTimeout(go, isRefused ? 30 * AGAIN_MS : AGAIN_MS);
    const unwatch = key.watch(go);
  }));
}
