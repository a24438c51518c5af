/** Rulers on nodes that are not ours: where a Weighted CLIP serves their boxes, or their user has asked for one. */

import { servedBoxes } from "./served.js";

/** Puts rulers on such nodes, and takes them off. */
export class ForeignRulers {
  #page;
  /** What `addRuler` has made, by node. */
  #made = new WeakMap();
  /** The boxes that are served. */
  #served = new Map();

  /**
   * @param {object} page
   * @param {() => object} page.root Gives the workflow's graph.
   * @param {() => import("./requests.js").Rule} page.serverRule Gives the rule for the node that serves.
   * @param {(node: object) => import("./requests.js").Rule | null} page.stockRuleOf Gives the rule for a node whose user has
   *   asked for a ruler.
   * @param {(node: object, rule: object) => {ruler: object, attach: (rule: object) => void, detach: () => void}} page.addRuler
   *   Gives a node a ruler, with functions to let it follow another rule, and to take it off.
   */
  constructor(page) {
    this.#page = page;
  }

  /** Look at the links of the workflow again. */
  look() {
    const before = this.#served;
    this.#served = servedBoxes(this.#page.root());
    for (const node of new Set([...before.keys(), ...this.#served.keys()])) {
      if (!areSame(before.get(node), this.#served.get(node))) this.update(node);
    }
  }

  /** Show or hide the ruler of a node. */
  update(node) {
    const rule = this.#ruleOf(node);
    const made = this.#made.get(node);
    if (!rule) made?.detach();
    else if (made) made.attach(rule);
    else this.#made.set(node, this.#page.addRuler(node, rule));
  }

  /** Whether a node has boxes that are served. */
  isServed(node) {
    return this.#served.has(node);
  }

  /**
   * Rulers of the boxes that a node encodes.
   * @param {string} id Id of the node in a run.
   * @returns {{ruler: object, reader: import("./served.js").Reader}[]}
   */
  readersOf(id) {
    const found = [];
    for (const [node, boxes] of this.#served) {
      const readers = [...boxes.values()].find((all) => all.some((one) => one.id === id));
      if (readers) found.push({ ruler: this.#made.get(node).ruler, reader: readers[0] });
    }
    return found;
  }

  #ruleOf(node) {
    const readers = this.#served.get(node);
    if (!readers) return this.#page.stockRuleOf(node);
    const texts = node.widgets.map(({ name }) => name).filter((name) => readers.has(name));
    return { ...this.#page.serverRule(), texts, readers };
  }
}

/** Whether boxes have the same readers. */
function areSame(some, others) {
  if (some?.size !== others?.size) return false;
  const isSame = (one, other) => one.node === other?.node && one.settings === other.settings && one.id === other.id;
  const areAlike = (all, rest) => all.length === rest?.length && all.every((one, at) => isSame(one, rest[at]));
  return [...some].every(([name, readers]) => areAlike(readers, others.get(name)));
}
