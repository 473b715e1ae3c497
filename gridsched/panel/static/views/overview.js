// The overview: devices, queues, processes, and the timeline of who had them.

import { h, say } from "/panel/dom.js";
import { clock } from "/panel/format.js";
import { known, watch } from "/panel/state.js";
import { deviceBars } from "/panel/views/bars.js";
import { queues, waiting as whoWaits } from "/panel/views/queues.js";
import { slots } from "/panel/views/slots.js";
import { timeline } from "/panel/views/timeline.js";

/** @param {string} title */
function section(title) {
  return h("section", { class: "section" }, title ? h("h2", {}, title) : null);
}

/** What concerns all of the server, in a sentence. @param {any} status */
function news(status) {
  if (known.refused) return `The server refuses: ${known.refused.message}. This is how it stood at ${clock(status.time)}.`;
  if (!known.connected) return `The server does not answer; this is how it stood at ${clock(status.time)}.`;
  if (status.draining) return "The server takes nobody new: it ends when whoever runs has finished.";
  if (status.config_error) return `The configuration on disk is not what runs: ${status.config_error}`;
  if (status.config_needs_restart.length) return `After a restart these settings hold: ${status.config_needs_restart.join(", ")}`;
  return "";
}

/** @type {import("/panel/main.js").View} */
export const overview = {
  id: "overview",
  title: "Overview",
  mount(root) {
    const waiting = h("p", { class: "soft" }, "Waiting for the server's status …");
    const banner = h("p", { class: "warn", role: "status" });
    const [devices, jobs, times] = [section("Devices"), section("Queues"), section("")];
    const [processes, waits] = [section("Processes"), section("Who waits")];
    const all = h("div", { class: "stack" }, banner, devices, jobs, times, processes, waits);
    root.append(waiting, all);
    const update = [deviceBars(devices), queues(jobs), whoWaits(waits), slots(processes)];
    const end = timeline(times);
    /** @type {any} */
    let shown = null;
    const unwatch = watch(() => {
      waiting.hidden = known.status !== null;
      all.hidden = known.status === null;
      if (known.status === null) return;
      say(banner, news(known.status));
      banner.hidden = !banner.textContent;
      if (shown === known.status) return; // lines of the log come much oftener
      shown = known.status;
      for (const each of update) each(shown);
    });
    return () => {
      unwatch();
      end();
    };
  },
};
