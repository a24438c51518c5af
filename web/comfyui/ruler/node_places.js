/** The ruler of a node that places phrases: what a run brought, and in which steps they acted. */

import { createRuler } from "./draw.js";
import { sentence } from "./draw_places.js";
import { isLinked, sourceOf } from "./links.js";

/** The inputs whose values a view repeats, by the same names. */
const INPUTS = ["phrase", "inside", "outside", "area", "start", "end", "unit"];

/** Shows the words and placed phrases of a node's CONDITIONING as of its last run. */
export class NodePlaces {
  #node;
  #host;
  #views = [];
  /** The same as text: a node that is run again without a change brings it again. */
  #told = "";
  #wasStale = false;

  /**
   * @param {object} node The node.
   * @param {import("./requests.js").Rule} _ The rule for its class.
   * @param {import("./node_ruler.js").Host} host The page.
   */
  constructor(node, _, host) {
    this.#node = node;
    this.#host = host;
    this.drawing = createRuler();
  }

  /** The node may have changed since its run: then what is shown is grey. */
  check() {
    if (this.#views.length && this.#wasStale !== this.#isStale()) this.#show(true);
  }

  /** Show the views of a run. */
  executed(views, isSilent = false) {
    const told = JSON.stringify(views);
    if (told !== this.#told) this.#views = views.map((view) => ({ ...structuredClone(view), total: "" }));
    this.#told = told;
    this.#show(isSilent);
  }

  /** Show the views of an earlier run, kept by the page, if the node still has the same values. */
  restored(views) {
    if (isOf(this.#node, views)) this.executed(views, true);
  }

  /**
   * A sampling is over.
   * @param {string} node Id of the node that has placed a phrase: this one, or one before it.
   * @param {{phrase: string, steps: number[], num_steps: number, picture: number[][] | null}} place The phrase and the
   *   steps in which it acted.
   */
  acted(node, { phrase, picture, ...acted }) {
    const places = this.#views.flatMap((view) => view.places);
    const found = places.filter((place) => place.node === node && place.phrase === phrase);
    for (const place of found) Object.assign(place, { acted }, picture && { picture });
    if (found.length) this.#show();
  }

  /** The ruler was switched on or off. */
  switched() {
    this.#show(true);
  }

  /** The node is gone. */
  remove() {
    this.drawing.remove();
  }

  /** Whether a value comes from another node, which does not report its changes. */
  get isLinked() {
    return INPUTS.some((name) => isLinked(this.#node, name));
  }

  /** Its chips are not changed by hand. */
  placeOf() {
    return null;
  }

  #isStale() {
    return !isOf(this.#node, this.#views);
  }

  #show(isSilent = false) {
    const isOn = this.#host.isOn();
    const isStale = (this.#wasStale = this.#isStale());
    const places = this.#views.flatMap((view) => view.places);
    const missed = places.filter(({ acted }) => acted && !acted.steps.length).map(sentence);
    this.drawing.show({
      sections: isOn ? this.#views.map((view) => ({ view, label: view.label })) : [],
      total: "",
      notes: isOn && isStale ? ["as of the last run"] : [],
      message: isOn ? "" : missed.join("; "),
      announcement: [...new Set(places.map(sentence))].join(". "),
      isStale,
      isSilent,
    });
  }
}

/** Whether views are of a node's present values; what another node gives is not known. */
function isOf(node, views) {
  const own = views.flatMap((view) => view.places).find((place) => place.is_own);
  if (!own) return true;
  const isSame = (name) => {
    const source = sourceOf(node, name);
    const trimmed = typeof source?.value === "string" ? source.value.trim() : source?.value;
    return !source || trimmed === own[name];
  };
  return INPUTS.every(isSame) && (isLinked(node, "mask") || !own.has_mask);
}
