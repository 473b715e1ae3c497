// What the page knows: the server's status and the lines of its decision log, kept up to date by one stream; and who is told.

import { events, key, send } from "/panel/api.js";

const AGAIN_MS = 1000;
const REFUSED_MS = 30000;
const SILENT_MS = 15000;
const UNSEEN_MS = 60000;
const SHARE = 3;
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
let notBefore = 0;

/** Call this after something has changed: at most once a frame, and as often as leaves most of the time to whoever looks. Gives a function that ends it. @param {() => void} watcher */
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
    const began = performance.now();
    for (const watcher of watchers) {
      try {
        watcher();
      } catch (fault) {
        console.error(fault); // the others are told all the same
      }
    }
    notBefore = performance.now() + SHARE * (performance.now() - began);
  };
  if (!isSeen()) setTimeout(tell, AGAIN_MS); // nobody looks, and no frame is drawn
  else setTimeout(() => requestAnimationFrame(tell), Math.max(0, notBefore - performance.now()));
}

function isSeen() {
  return document.visibilityState === "visible";
}

/**
 * Ends a connection of a page that nobody has looked at for a while: a browser has six of them for all pages of a server, and
 * the seventh page would wait for ever. Gives what ends the watching.
 * @param {() => void} end
 */
function whileUnseen(end) {
  let timer = 0;
  const look = () => {
    clearTimeout(timer);
    if (!isSeen()) timer = setTimeout(end, UNSEEN_MS);
  };
  document.addEventListener("visibilitychange", look);
  look();
  return () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", look);
  };
}

/** When the page is looked at. @returns {Promise<void>} */
function seen() {
  return new Promise((resolve) => {
    const look = () => {
      if (!isSeen()) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    look();
  });
}

/**
 * Follow the server for as long as the page lives; one that has gone is waited for, and asked for what it has said
 * meanwhile, and nobody is asked while nobody looks. `restarted` is called when another run of it has begun since the page first heard of it.
 * @param {{restarted: () => void}} told
 */
export async function follow({ restarted }) {
  let last = "";
  for (;;) {
    const ending = new AbortController();
    const unwatch = key.watch(() => ending.abort());
    const look = whileUnseen(() => ending.abort());
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
      for await (const each of events(answer, heard)) {
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
    look();
    known.connected = false;
    changed();
    await again(known.refused !== null && known.refused.status < 500);
    await seen();
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
    const timer = setTimeout(go, isRefused ? REFUSED_MS : AGAIN_MS);
    const unwatch = key.watch(go);
  }));
}
