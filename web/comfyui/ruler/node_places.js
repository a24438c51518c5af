/** The ruler of a node that places phrases or prompts: what a run brought, and in which steps they acted. */

import { createRuler } from "./draw.js";
import { sentence } from "./draw_places.js";
import { isLinked, sourceOf } from "./links.js";

/** The inputs whose values a view repeats, by the same names; each node has some of them. */
const INPUTS = ["phrase", "inside", "outside", "strength", "area", "start", "end", "unit"];

/** Shows the words, placed phrases and regions of a node's CONDITIONING as of its last run. */
export class NodePlaces {
  #node;
  #host;
  #views = [];
  /** The same as text: a node that is run again without a change brings it again. */
  #told = "";
  #wasStale = false;
  /** What a sampling told before there were views: ComfyUI does not run unchanged nodes again, and sends what they
   * brought last (HAS_INTERMEDIATE_OUTPUT of nodes/places.py) at the end of the run, or an old one never. */
  #early = [];
  /** The part of it that is shown meanwhile. */
  #lone = null;

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
    for (const early of this.#early) this.#mark(early);
    this.begun();
    this.#lone = null;
    this.#show(isSilent);
  }

  /** A run begins: what the one before told is not of its views. */
  begun() {
    this.#early = [];
  }

  /** Show the views of an earlier run, kept by the page, if the node still has the same values. */
  restored(views) {
    if (!isOf(this.#node, views)) return;
    this.begun();
    this.executed(views, true);
  }

  /**
   * A sampling is over.
   * @param {{node: string, text: string, place: {name: string, steps: number[], num_steps: number,
   *   picture: number[][] | null}}} told What the server says of a phrase or region that this node, or one before it, has placed:
   *   its node, the steps in which it acted, and that in words.
   * @param {boolean} isOwn Whether it is of this node.
   */
  acted(told, isOwn) {
    if (!this.#views.length) this.#early.push(told);
    if (isOwn && !this.#views.length) this.#lone = { text: told.text, isMissed: !told.place.steps.length };
    if (this.#mark(told) || this.#lone) this.#show();
  }

  /** Note in the views where a phrase or region acted; whether it is there. */
  #mark({ node, place: { name, picture, ...acted } }) {
    const places = this.#views.flatMap((view) => view.places);
    const found = places.filter((place) => place.node === node && place.name === name);
    for (const place of found) Object.assign(place, { acted }, picture && { picture });
    return found.length > 0;
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
    const lone = this.#lone ? [this.#lone.text] : [];
    this.drawing.show({
      sections: isOn ? this.#views.map((view) => ({ view, label: view.label })) : [],
      total: "",
      notes: !isOn ? [] : this.#lone && !this.#lone.isMissed ? lone : isStale ? ["as of the last run"] : [],
      message: this.#lone?.isMissed ? lone[0] : isOn ? "" : missed.join("; "),
      announcement: [...lone, ...new Set(places.map(sentence))].join(". "),
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
