// Devices that are somebody else's for now: who has which, for how long; taken and given back from here.

import { ask } from "/panel/api.js";
import { h, put, say } from "/panel/dom.js";
import { span } from "/panel/format.js";
import { known, watch } from "/panel/state.js";
import { button, confirm, toast } from "/panel/ui.js";
import { carryOut, consent } from "/panel/views/operation.js";

/** @param {any} device */
function leased(device) {
  const lease = device.lease;
  return h("li", {}, h("b", {}, device.name), ` ${lease.state === "held" ? "is held by" : `(${lease.state}) for`} ${lease.owner}`,
    lease.left_s === null ? "" : `, for ${span(lease.left_s)} more`, " ",
    button("Give it back", async () => {
      if (!(await confirm(`Give ${device.name} back?`, h("p", {}, `${lease.owner} has it now; it may still be using it.`), "Give it back", { danger: true }))) return;
      await ask("DELETE", `/api/leases/${encodeURIComponent(device.name)}`);
      toast(`${device.name} is given back.`);
    }, { "aria-label": `Give ${device.name} back` }));
}

/** Gives what ends it. @param {Element} root */
export function leases(root) {
  const list = h("ul", { class: "plain" });
  const none = h("p", { class: "soft" }, "Every device is gridsched's.");
  const device = /** @type {HTMLSelectElement} */ (h("select", { id: "lease-device" }));
  const owner = /** @type {HTMLInputElement} */ (h("input", { id: "lease-owner", required: true, maxlength: 100, placeholder: "ComfyUI", autocomplete: "off" }));
  const minutes = /** @type {HTMLInputElement} */ (h("input", { id: "lease-minutes", type: "number", min: 1, max: 10080, value: 60, required: true }));
  const about = h("p", { class: "soft", role: "status" });
  const take = button("Lease it", async () => {
    if (!(owner.reportValidity() && minutes.reportValidity())) return;
    const asked = { devices: device.value, owner: owner.value.trim(), ttl_s: Number(minutes.value) * 60 };
    if (!(await consent("/api/leases", asked, `Lease ${device.value}?`, "Lease it"))) return;
    try {
      const told = await carryOut("/api/leases", asked, (text) => say(about, text));
      toast(`${told.devices.join(" and ")} is ${told.owner}'s for ${minutes.value} min.`);
    } finally {
      say(about, "");
    }
  });
  root.append(h("h2", {}, "Leases"), h("p", { class: "soft" }, "A whole device for another program: what is loaded there goes, and comes back afterwards."), none, list,
    h("div", { class: "filters" }, field("Device", device), field("For", owner), field("Minutes", minutes), take), about);
  let before = "";
  return watch(() => {
    const devices = known.status?.devices ?? [];
    const held = devices.filter((/** @type {any} */ each) => each.lease);
    const now = JSON.stringify([devices.map((/** @type {any} */ each) => each.name), held.map((/** @type {any} */ each) => [each.name, each.lease.owner, each.lease.state, span(each.lease.left_s)])]);
    if (now === before) return;
    before = now;
    const chosen = device.value;
    put(device, devices.map((/** @type {any} */ each) => h("option", { value: each.name, selected: each.name === chosen }, each.name)));
    put(list, held.map(leased));
    none.hidden = held.length > 0;
  });
}

/** @param {string} label @param {HTMLElement} input */
function field(label, input) {
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input);
}
