// How elements are made: of texts and attributes, never of markup. Nothing else in the panel creates an element.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element. `on…` attributes are listeners, `class` and `data-…` as in HTML; null, undefined and false are left out.
 * Children are elements or texts; lists of them are taken apart.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...any} children
 * @returns {HTMLElement}
 */
export function h(tag, attributes = {}, ...children) {
  return /** @type {HTMLElement} */ (fill(document.createElement(tag), attributes, children));
}

/**
 * The same for SVG.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...any} children
 * @returns {SVGElement}
 */
export function s(tag, attributes = {}, ...children) {
  return /** @type {SVGElement} */ (fill(document.createElementNS(SVG, tag), attributes, children));
}

/**
 * @param {Element} element
 * @param {Record<string, any>} attributes
 * @param {any[]} children
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) {
      if (typeof value !== "function") throw new TypeError(`${name} takes a function`);
      element.addEventListener(name.slice(2), value);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

/**
 * Put these in the place of what an element holds.
 * @param {Element} element
 * @param {...any} children
 */
export function put(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
}
