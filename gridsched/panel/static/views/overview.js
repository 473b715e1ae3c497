// The overview: devices, queues, slots, the timeline of grants.

import { h, put } from "/panel/dom.js";
import { known, watch } from "/panel/state.js";

/** @type {import("/panel/main.js").View} */
export const overview = {
  id: "overview",
  title: "Overview",
  mount(root) {
    const devices = h("ul");
    root.append(h("h2", {}, "Devices"), devices);
    return watch(() => put(devices, (known.status?.devices ?? []).map((/** @type {any} */ device) => h("li", {}, device.name))));
  },
};
