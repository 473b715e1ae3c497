// What the page knows: the server's status and the lines of its decision log, kept up to date by one stream; and who is told.

import { events, send } from "/panel/api.js";

const AGAIN_MS = 1000;
const KEPT_LINES = 5000;

/** @typedef {{status: any, lines: any[], connected: boolean, refused: import("/panel/api.js").Refused|null}} Known */

/** @type {Known} */
export const known = { status: null, lines: [], connected: false, refused: null };

/** @type {Set<() => void>} */
const watchers = new Set();
let isTold = false;

/** Call this after something has changed, at most once a frame. Gives a function that ends it. @param {() => void} watcher */
export function watch(watcher) {
  watchers.add(watcher);
  watcher();
  return () => watchers.delete(watcher);
}

function changed() {
  if (isTold) return;
  isTold = true;
  requestAnimationFrame(() => {
    isTold = false;
    for (const watcher of watchers) watcher();
  });
}

/** Follow the server for as long as the page lives; one that has gone is waited for. */
export async function follow() {
  let last = "";
  for (;;) {
    try {
      /** @type {Record<string, string>} */
      const headers = last ? { "Last-Event-ID": last } : {};
      const answer = await send("GET", "/api/events?status=1", undefined, headers);
      known.connected = true;
      known.refused = null;
      changed();
      for await (const each of events(answer)) {
        if (each.event === "status") known.status = JSON.parse(each.data);
        else {
          last = each.id || last;
          known.lines.push(JSON.parse(each.data));
          if (known.lines.length > KEPT_LINES) known.lines.splice(0, known.lines.length - KEPT_LINES);
        }
        changed();
      }
    } catch (fault) {
      known.refused = /** @type {any} */ (fault).status ? /** @type {any} */ (fault) : null;
    }
    known.connected = false;
    changed();
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}
