/** The lines of a Weighted CLIP: which prompt boxes it has served in the last run, and their problems. */

import { CheckedNode } from "./checks.js";
import { createRuler } from "./draw.js";
import { counted } from "./words.js";

/** Shows what became of the prompt boxes behind a node. */
export class NodeServer extends CheckedNode {
  /** Problems of each box of the last run that had any, by the id of the node that encodes it. */
  #boxes = new Map();
  /** Whether a run has begun of which nothing was told yet. */
  #isNewRun = false;
  /** Lines of the node itself. */
  #lines = [];
  /** Where weights acted in the last sampling. */
  #weighed = "";

  constructor(node, rule, host) {
    super(node, rule, host, createRuler());
  }

  /** The node has run. */
  executed(lines) {
    this.#lines = lines;
    this.show();
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
    this.show();
  }

  /** A sampling is over: say where weights acted. */
  weighed(text) {
    this.#weighed = `last sampling: ${text}`;
    this.show();
  }

  show() {
    const number = this.#boxes.size;
    const count = number ? [`last run: ${counted(number, "prompt")}`] : [];
    this.drawing.show({
      sections: [],
      problems: [...this.checks.rows, ...this.#lines.map((message) => ({ message, label: "" })), ...[...this.#boxes.values()].flat()],
      notes: this.host.isOn() ? [...count, this.#weighed].filter(Boolean) : [],
      isSilent: true,
    });
  }
}
