/** The lines of a Weighted CLIP: which prompt boxes it has served in the last run, and their problems. */

import { Checks } from "./checks.js";
import { createRuler } from "./draw.js";
import { counted } from "./words.js";

/** Shows what became of the prompt boxes behind a node. */
export class NodeServer {
  #checks;
  #host;
  /** Problems of each box of the last run that had any, by the id of the node that encodes it. */
  #boxes = new Map();
  /** Whether a run has begun of which nothing was told yet. */
  #isNewRun = false;
  /** Lines of the node itself. */
  #lines = [];
  /** Where weights acted in the last sampling. */
  #weighed = "";

  /**
   * @param {object} node The node.
   * @param {import("./requests.js").Rule} rule The rule for its class.
   * @param {import("./node_ruler.js").Host} host The page.
   */
  constructor(node, rule, host) {
    this.#host = host;
    this.drawing = createRuler();
    this.#checks = new Checks(node, rule, host, () => this.#show());
  }

  /** The node may have changed. */
  check() {
    this.#checks.check();
  }

  /** The node has run. */
  executed(lines) {
    this.#lines = lines;
    this.#show();
  }

  /** A run begins. */
  begun() {
    this.#isNewRun = true;
  }

  /**
   * A box was encoded; some nodes encode it in several calls, or several boxes.
   * @param {string} id Id of the node that encodes it.
   * @param {string} title Its title.
   * @param {string[]} problems Its problems.
   */
  served(id, title, problems) {
    if (this.#isNewRun) {
      this.#boxes.clear();
      this.#weighed = "";
    }
    this.#isNewRun = false;
    const known = this.#boxes.get(id)?.map(({ message }) => message) ?? [];
    this.#boxes.set(id, [...new Set([...known, ...problems])].map((message) => ({ message, label: title })));
    this.#show();
  }

  /** A sampling is over: say where weights acted. */
  weighed(text) {
    this.#weighed = `last sampling: ${text}`;
    this.#show();
  }

  /** The ruler was switched on or off. */
  switched() {
    this.#checks.forget();
    this.#show();
  }

  /** The server answers again. */
  reconnected() {
    this.#checks.forget();
  }

  /** The node is gone. */
  remove() {
    this.#checks.stop();
    this.drawing.remove();
  }

  /** Its chips, of which there are none. */
  placeOf() {
    return null;
  }

  #show() {
    const number = this.#boxes.size;
    const count = number ? [`last run: ${counted(number, "prompt")}`] : [];
    this.drawing.show({
      sections: [],
      problems: [...this.#checks.rows, ...this.#lines.map((message) => ({ message, label: "" })), ...[...this.#boxes.values()].flat()],
      notes: this.#host.isOn() ? [...count, this.#weighed].filter(Boolean) : [],
      isSilent: true,
    });
  }
}
