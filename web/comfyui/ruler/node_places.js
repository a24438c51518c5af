/**
 * The ruler of a node without a prompt box: problems of its inputs, the words of its prompts, and of one that places phrases or
 * prompts what a run brought, and in which steps they acted.
 */

import { CheckedNode } from "./checks.js";
import { createRuler } from "./draw.js";
import { sentence } from "./draw_places.js";
import { isLinked, sourceOf } from "./links.js";
import { addChoosing, chosenOf, writeWord } from "./offered.js";

/** The inputs whose values a view repeats, by the same names; each node has some of them. */
const INPUTS = ["phrase", "inside", "outside", "strength", "area", "start", "end", "unit"];

/** Shows the words of a node's CONDITIONING, and placed phrases and regions as of its last run. */
export class NodePlaces extends CheckedNode {
  #views = [];
  /** The same as text: a node that is run again without a change brings it again. */
  #told = "";
  #wasStale = false;
  /** What a sampling told before there were views: ComfyUI does not run unchanged nodes again, and sends what they
   * brought last (HAS_INTERMEDIATE_OUTPUT of nodes/places.py) at the end of the run, or an old one never. */
  #early = [];
  /** The part of it that is shown meanwhile. */
  #lone = null;

  constructor(node, rule, host) {
    super(node, rule, host, createRuler());
    addChoosing(this.drawing.element, (text, number) => this.#choose(text, number));
  }

  /** The node may have changed since its run: then what is shown is grey. */
  check() {
    super.check();
    if (this.#views.length && this.#wasStale !== this.#isStale()) this.show(true);
  }

  /** Show the views of a run. */
  executed(views, isSilent = false) {
    const told = JSON.stringify(views);
    if (told !== this.#told) this.#views = views.map((view) => ({ ...structuredClone(view), total: "" }));
    this.#told = told;
    for (const early of this.#early) this.#mark(early);
    this.begun();
    this.#lone = null;
    this.show(isSilent);
  }

  /** A run begins: what the one before told is not of its views. */
  begun() {
    this.#early = [];
  }

  /** Show the views of an earlier run, kept by the page, if the node still has the same values. */
  restored(views) {
    if (!isOf(this.node, views)) return;
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
    if (this.#mark(told) || this.#lone) this.show();
  }

  /** Note in the views where a phrase or region acted; whether it is there. */
  #mark({ node, place: { name, picture, ...acted } }) {
    const places = this.#views.flatMap((view) => view.places);
    const found = places.filter((place) => place.node === node && place.name === name);
    for (const place of found) Object.assign(place, { acted }, picture && { picture });
    return found.length > 0;
  }

  /** Whether a value comes from another node, which does not report its changes. */
  get isLinked() {
    return [...INPUTS, ...this.rule.checked].some((name) => isLinked(this.node, name));
  }

  #isStale() {
    return !isOf(this.node, this.#views);
  }

  /** Write a word of a text into the input that takes it. */
  #choose(text, number) {
    if (writeWord(this.node, this.rule.words, this.checks.words[text], number)) this.host.changed();
    this.check();
    this.show();
  }

  /** The texts: of the last run with its places, or those that are offered if they are others; and which words are chosen. */
  #sections() {
    const { words } = this.checks;
    const wordsOf = (view) => view.chunks.flatMap(({ chips }) => chips.map(({ text }) => text));
    const isSame = JSON.stringify(this.#views.map(wordsOf)) === JSON.stringify(words);
    const isOfRun = isSame || !words.length;
    const { name, isLines } = this.rule.words ?? {};
    const value = name && sourceOf(this.node, name)?.value;
    return {
      sections: (isOfRun ? this.#views : words.map(viewOf)).map((view) => ({ view, label: view.label ?? "" })),
      chosen: typeof value === "string" ? words.map((own) => chosenOf(value, own, isLines)) : [],
      isOfRun,
    };
  }

  show(isSilent = false) {
    const isOn = this.host.isOn();
    const isStale = (this.#wasStale = this.#isStale());
    const places = this.#views.flatMap((view) => view.places);
    const missed = places.filter(({ acted }) => acted && !acted.steps.length).map(sentence);
    const lone = this.#lone ? [this.#lone.text] : [];
    const { sections, chosen, isOfRun } = this.#sections();
    const isOld = isStale && isOfRun;
    this.drawing.show({
      sections: isOn ? sections : [],
      chosen: isOn ? chosen : [],
      problems: this.checks.rows,
      total: "",
      notes: !isOn ? [] : this.#lone && !this.#lone.isMissed ? lone : isOld ? ["as of the last run"] : [],
      message: this.#lone?.isMissed ? lone[0] : isOn ? "" : missed.join("; "),
      announcement: [...lone, ...new Set(places.map(sentence))].join(". "),
      isStale: isOld,
      isSilent,
    });
  }
}

/** A view of words that no run has read. */
function viewOf(words) {
  const plain = { note: "", weight: 1, ids: [0], start: 0, end: 0, joins: false, hidden: false, problems: [] };
  const chips = words.map((text) => ({ ...plain, text }));
  return { text: words.join(" "), chunks: [{ num_tokens: 0, capacity: null, has_break: false, chips }], issues: [], total: "" };
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
