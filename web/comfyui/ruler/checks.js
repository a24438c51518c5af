/** The problems of a node's inputs while they are typed, and the words of its prompts, which the server finds (nodes/base/checks.py). */

import { sourceOf } from "./links.js";
import { MAX_BYTES } from "./requests.js";
import { pictureSizeOf, sourcesOf } from "./sources.js";

/** Milliseconds without a change before the server is asked. */
const QUIET_TIME = 100;

/**
 * @typedef {object} Problem
 * @property {string} message What it is.
 * @property {string} input The input that it is about, or "".
 * @property {boolean} is_refused Whether a run would refuse it.
 */

/** Follows the inputs of a node, and asks the server when they change. */
export class Checks {
  #node;
  #rule;
  #host;
  #changed;
  #body = "";
  #timer = 0;
  #asked = new AbortController();
  /** @type {Problem[]} */
  problems = [];
  /** @type {string[][]} */
  words = [];

  /**
   * @param {object} node The node.
   * @param {import("./requests.js").Rule} rule The rule for its class.
   * @param {import("./node_ruler.js").Host} host The page.
   * @param {() => void} changed Called with a new answer.
   */
  constructor(node, rule, host, changed) {
    this.#node = node;
    this.#rule = rule;
    this.#host = host;
    this.#changed = changed;
  }

  /** Check the node again; asks only if something has changed. */
  check() {
    if (!this.#rule.checked.length || !this.#node.graph || !this.#host.isOn()) return;
    const body = this.#request();
    if (body === this.#body) return;
    this.#body = body;
    this.stop();
    this.#timer = setTimeout(() => this.#ask(), QUIET_TIME);
  }

  /** The ruler was switched on or off, or the server is back: forget what was asked. */
  forget() {
    this.stop();
    this.#body = "";
    if (!this.#host.isOn()) this.#take({ problems: [], words: [] });
    else this.check();
  }

  /** End timers and requests. */
  stop() {
    clearTimeout(this.#timer);
    this.#asked.abort();
  }

  /** The problems as rows of a ruler: each with the name of its input as the node shows it. */
  get rows() {
    const named = (name) => this.#node.widgets?.find((one) => one.name === name) ?? this.#node.inputs?.find((one) => one.name === name);
    return this.problems.map(({ message, input }) => ({ message, label: named(input)?.label ?? input }));
  }

  async #ask() {
    this.#body = this.#request(); // a workflow that is loaded gets its links last
    const asked = (this.#asked = new AbortController());
    try {
      const answer = await this.#host.check(this.#body, asked.signal);
      if (!asked.signal.aborted) this.#take(answer);
    } catch {
      // what is said meanwhile may be old; the ruler of a prompt says why there is nothing newer
      if (!asked.signal.aborted) this.#take({ problems: [], words: this.words });
    }
  }

  #take({ problems, words }) {
    this.problems = problems;
    this.words = words;
    this.#changed();
  }

  /** The request as JSON; without what stands before the node, where that is too long. */
  #request() {
    const values = {};
    for (const name of this.#rule.checked) {
      const source = sourceOf(this.#node, name);
      if (source && source.value !== undefined) values[name] = source.value;
    }
    const asked = { node: this.#rule.id, values };
    const size = pictureSizeOf(this.#node);
    const whole = JSON.stringify({ ...asked, links: sourcesOf(this.#node, this.#rule.checked), ...(size && { size }) });
    return new TextEncoder().encode(whole).length > MAX_BYTES ? JSON.stringify(asked) : whole;
  }
}

/** The ruler of a node without a prompt box: it shows the problems of the node's inputs, and by `show` what its kind has to say. */
export class CheckedNode {
  /**
   * @param {object} node The node.
   * @param {import("./requests.js").Rule} rule The rule for its class.
   * @param {import("./node_ruler.js").Host} host The page.
   * @param {object} drawing The element of the ruler with what draws it.
   */
  constructor(node, rule, host, drawing) {
    Object.assign(this, { node, rule, host, drawing });
    this.checks = new Checks(node, rule, host, () => this.show());
  }

  /** The node may have changed. */
  check() {
    this.checks.check();
  }

  /** The ruler was switched on or off. */
  switched() {
    this.checks.forget();
    this.show(true);
  }

  /** The server answers again. */
  reconnected() {
    this.checks.forget();
  }

  /** The node is gone. */
  remove() {
    this.checks.stop();
    this.drawing.remove();
  }

  /** Its chips are not changed by hand. */
  placeOf() {
    return null;
  }
}
