/** The ruler of one node: when to ask, what to show. */

import { areaOf, fixedText, replaceText } from "./boxes.js";
import { clipOf } from "./clip_family.js";
import { createRuler } from "./draw.js";
import { isGenerationData, isPicture, split, splitText } from "./generation_data.js";
import { hostText, ofPart, withComments } from "./host_text.js";
import { isLinked, sourceOf } from "./links.js";
import { partnerOf } from "./partner.js";
import { readerOf, requestsOf, widgetOf } from "./requests.js";
import { whenText } from "./words.js";
import { bracketBeingWritten, withoutProblems } from "./writing.js";

/** Milliseconds without a change before the server is asked. */
const QUIET_TIME = 100;
/** Weights of compel that no token has. */
const OF_SECTIONS = /\.(?:and|blend)\(/u;

/**
 * @typedef {object} Host Functions of the page that a ruler needs.
 * @property {(body: string, signal: AbortSignal) => Promise<object[]>} ask Views for a request.
 * @property {(request: object) => Promise<{text: string, issues: string[]}>} convert A prompt in another syntax.
 * @property {(body: string, signal: AbortSignal) => Promise<{problems: object[], words: string[][]}>} check Problems of a node.
 * @property {(text: string) => Promise<{prompt: string, negative: string, settings: object, problems: string[]}>} takeApart
 *   Generation data.
 * @property {(text: string) => Promise<void>} drawAgain Opens our template with generation data.
 * @property {(node: object) => import("./boxes.js").Box[] | null} boxesOf The prompt boxes of a node that encodes.
 * @property {() => void} changed Says that the workflow was changed.
 * @property {() => boolean} isOn Whether the ruler is switched on.
 */

/** Follows a node's widgets and links, asks the server, and shows its answer or the result of a run. */
export class NodeRuler {
  #node;
  #rule;
  #host;
  /** The last reading of the node, and the same as text. */
  #read = { boxes: [], hasChoice: false, notes: [], origins: [], obstacle: "", clipNote: "" };
  /** The text encoders reported by runs, by their CLIP. */
  #told = new Map();
  #key = "";
  #timer = 0;
  #asked = new AbortController();
  /** The texts shown, and whether they came from a run. */
  #sections = [];
  #isFromRun = false;
  /** Whether nothing was shown yet: a workflow that is opened is not read out. */
  #isNew = true;
  /** Note on where its weights acted in the last sampling, until something changes. */
  #weighed = "";
  /** Losses of a conversion, until something changes. */
  #lost = "";
  /** Settings of generation data that was split, by their names, until something changes. */
  #settings = [];
  #content = null;
  /** For each section the bracket that was being written when it was drawn. */
  #brackets = [];

  /**
   * @param {object} node The node.
   * @param {import("./requests.js").Rule} rule The rule for its class.
   * @param {Host} host The page.
   */
  constructor(node, rule, host) {
    this.#node = node;
    this.#rule = rule;
    this.#host = host;
    this.drawing = createRuler();
  }

  /** Another rule holds: that of a node that serves its boxes. */
  follow(rule) {
    this.#rule = rule;
    this.switched();
  }

  /** Check the node again; asks only if a relevant value has changed. */
  check() {
    if (!this.#node.graph || !this.#hasChanged() || !this.#host.isOn()) return;
    this.#stop();
    this.#timer = setTimeout(() => this.#ask(), QUIET_TIME);
  }

  /**
   * Show the views of a run, unless the text has changed since it was queued.
   * @param {object[]} views The views.
   * @param {import("./served.js").Reader} [reader] What has read them, if it is not our node itself.
   */
  executed(views, reader) {
    this.#note(views, reader);
    this.check();
    const { hasChoice, obstacle } = this.#read;
    if (hasChoice || obstacle || this.#isOfThisText(views)) this.#showRun(this.#ownViews(views, reader), { reader });
  }

  /** Show the views of an earlier run, kept by the page, if it had the same text. */
  restored(views) {
    if (this.#isOfThisText(views)) this.#note(views);
    this.check();
    if (this.#isOfThisText(views)) this.#showRun(views, { isSilent: true });
  }

  /** Remember which text encoder a run has reported. */
  #note(views, { node, path } = { node: this.#node }) {
    this.#told.set(clipOf(node, path).key, views[0]?.encoder ?? "");
  }

  /** The views of boxes on this node: a node that is served may have others elsewhere. */
  #ownViews(views, reader) {
    const own = reader && views.filter((view) => this.#isOfThisText([view]));
    return own?.length ? own : views;
  }

  /** A sampling is over: say where the weights of the node acted, until it changes. */
  weighed(text) {
    this.check();
    this.#weighed = `last sampling: ${text}`;
    if (this.#content) this.#show(this.#content);
  }

  /** Names of the node's prompt boxes. */
  get texts() {
    return this.#rule.isStock ? [] : this.#rule.texts;
  }

  /** Reading of a prompt box, as far as it is known. */
  readingOf(name) {
    const valueOf = (...names) => widgetOf(readerOf(this.#node, this.#rule, name).settings, ...names)?.value;
    return { syntax: valueOf("syntax", "from") ?? this.#sections[0]?.view.syntax, chunking: valueOf("chunking") };
  }

  /** Whether a relevant value comes from another node, which does not report its changes. */
  get isLinked() {
    return Boolean(this.#rule.readers) || [...this.#rule.texts, ...this.#rule.counts].some((name) => isLinked(this.#node, name));
  }

  /**
   * The boxes in which the text of a section is changed; that of a linked text is on the node that it comes from.
   * @param {number} index Which section.
   * @returns {import("./weight_input.js").Place | null} Null if it cannot be changed by hand.
   */
  placeOf(index) {
    const sources = this.#sourcesOf(index);
    // what the page takes out of a text before it is sent has no place in the view
    const isAsTyped = ({ value, isPrompt }) => !isPrompt || hostText(value).text === value;
    if (this.#rule.isStock || !sources.length || !sources.every(isAsTyped)) return null;
    return { boxes: boxesAt(sources), syntax: this.#sections[index].view.syntax };
  }

  /** The sources of the boxes with the text of a section; none if it is computed. */
  #sourcesOf(index) {
    const section = this.#sections[index];
    if (!section?.names.length || this.#read.obstacle) return [];
    const sources = section.names.map((name) => sourceOf(this.#node, name));
    return sources.every((source) => source?.places.length === 1) ? sources : [];
  }

  /** Convert the prompt of a section from another syntax to that of the node. */
  async #convert(index, from) {
    const place = this.placeOf(index);
    if (!place) return;
    const text = String(place.boxes[0].widget.value);
    const { settings } = readerOf(this.#node, this.#rule, this.#sections[index].names[0]);
    const request = { text, from, to: place.syntax, is_cleaned: widgetOf(settings, "cleaning")?.value !== "none" };
    const comments = widgetOf(settings, "comments")?.value;
    if (comments) request.comments = comments;
    let lost = "";
    try {
      const converted = await this.#host.convert(request);
      if (place.boxes.some(({ widget }) => widget.value !== text)) return; // typed on meanwhile
      lost = converted.issues.join(" ");
      for (const box of place.boxes) replaceText(box, { start: 0, end: text.length, text: converted.text });
      this.#host.changed();
    } catch (error) {
      lost = error.message;
    }
    this.check();
    this.#lost = lost;
    if (this.#content) this.#show(this.#content);
  }

  /** Put the prompts in the generation data of a section into this node's box and its partner's, and list the settings. */
  async #split(index) {
    const boxes = boxesAt(this.#sourcesOf(index));
    if (!boxes.length) return;
    try {
      const done = await split(boxes, () => this.#partnerOf(boxes), this.#host);
      if (!done) return;
      this.check();
      this.#lost = done.lost;
      this.#settings = done.settings;
    } catch (error) {
      this.check();
      this.#lost = error.message;
      this.#settings = [];
    }
    if (this.#content) this.#show(this.#content);
  }

  /** Open our template with the generation data of a section. */
  async #drawAgain(index) {
    const { text } = this.#sections[index].view;
    try {
      await this.#host.drawAgain(text);
    } catch (error) {
      this.#lost = error.message;
      this.#show(this.#content);
    }
  }

  /** The node with the other prompt, whose boxes are others than these. */
  #partnerOf(boxes) {
    const partner = partnerOf(this.#node, this.#host.boxesOf);
    const others = partner.node && this.#host.boxesOf(partner.node);
    const isShared = others?.some(({ widget }) => boxes.some((box) => box.widget === widget));
    return isShared ? { ...partner, node: null } : partner;
  }

  /** The button that splits generation data; null if this text is none, or not to be changed. */
  #splitText() {
    const index = this.#sections.findIndex(({ view }) => isGenerationData(view));
    const boxes = this.#rule.isStock ? [] : boxesAt(this.#sourcesOf(index));
    return boxes.length ? splitText(this.#partnerOf(boxes)) : null;
  }

  /** Write in the prompt of a section what its problems offer, in one step. */
  #fix(index, issues) {
    const place = this.placeOf(index);
    const { text } = this.#sections[index].view;
    if (!place || place.boxes.some(({ widget }) => widget.value !== text)) return; // typed on meanwhile
    for (const box of place.boxes) replaceText(box, fixedText(text, issues));
    this.#host.changed();
    this.check();
  }

  /** The caret has moved in a prompt box, or left it: a bracket may be done, so that its problems are told. */
  caretMoved() {
    const isAsTyped = ({ view }, index) => this.placeOf(index)?.boxes.every(({ widget }) => widget.value === view.text);
    if (!this.#sections.length || !this.#sections.every(isAsTyped)) return; // an answer is about to come
    if (JSON.stringify(this.#bracketsNow()) !== JSON.stringify(this.#brackets)) this.#show(this.#content);
  }

  /** For each section the bracket that is being written, or null. */
  #bracketsNow() {
    const areas = (index) => this.placeOf(index)?.boxes.map(areaOf) ?? [];
    return this.#sections.map((_, index) => areas(index).map(bracketBeingWritten).find(Boolean) ?? null);
  }

  /** The server answers again: ask what it did not answer. */
  reconnected() {
    if (!this.#content?.isStale) return;
    this.#key = "";
    this.check();
  }

  /** The ruler was switched on or off. */
  switched() {
    this.#stop();
    this.#key = "";
    if (this.#host.isOn()) this.check();
    else this.#show({ sections: this.#isFromRun ? this.#sections : [], isFromRun: this.#isFromRun });
  }

  /** The node is gone. */
  remove() {
    this.#stop();
    this.drawing.remove();
  }

  /** Read the node; returns whether it has changed. */
  #hasChanged() {
    const clips = this.#rule.texts.map((name) => {
      const { node, path } = readerOf(this.#node, this.#rule, name);
      const clip = clipOf(node, path);
      return { ...clip, encoder: this.#told.get(clip.key) ?? clip.encoder };
    });
    // behind a node that serves, weights act in all of them
    const noteOf = ({ note }) => (this.#rule.readers ? note.replace(" and may take no weights", "") : note);
    const clipNote = clips.map(noteOf).find(Boolean) ?? "";
    this.#read = { ...requestsOf(this.#node, this.#rule, clips), clipNote };
    const before = this.#key;
    this.#key = JSON.stringify(this.#read);
    if (this.#key !== before) {
      this.#weighed = this.#lost = "";
      this.#settings = [];
    }
    return this.#key !== before;
  }

  /** A view as it is drawn: without problems of a bracket that is being written, and with the comments of its box. */
  #drawn(view, bracket, views) {
    const { comments = [] } = this.#read.boxes.find(({ text }) => text === view.text) ?? {};
    const ofText = views.filter(({ text }) => text === view.text);
    return withComments(bracket ? withoutProblems(view, bracket) : view, ofPart(view, ofText, comments));
  }

  #isOfThisText(views) {
    return views.some((view) => this.#read.boxes.some((box) => box.text === view.text));
  }

  #stop() {
    clearTimeout(this.#timer);
    this.#asked.abort();
  }

  async #ask() {
    this.#hasChanged(); // a workflow that is loaded gets its links last
    const { boxes, obstacle } = this.#read;
    const asked = (this.#asked = new AbortController());
    if (obstacle) {
      this.#show({ sections: [], isSilent: this.#isNew });
      return;
    }
    try {
      // boxes with the same text are asked for, and shown, once
      const bodies = [...new Set(boxes.map((box) => box.body))];
      const answers = await Promise.all(bodies.map((body) => this.#host.ask(body, asked.signal)));
      if (asked.signal.aborted) return;
      this.#show({ sections: this.#labelled(answers.flat()), isSilent: this.#isNew });
    } catch (error) {
      if (asked.signal.aborted) return;
      this.#show({ sections: this.#sections, isFromRun: this.#isFromRun, isStale: true, message: error.message });
    }
  }

  #showRun(views, { reader, isSilent = false }) {
    this.#stop();
    // the boxes of a subgraph may be read by several nodes
    const isOther = (name) => readerOf(this.#node, this.#rule, name).id !== reader.id;
    const others = reader ? this.#sections.filter(({ names }) => names.length && names.every(isOther)) : [];
    this.#show({ sections: this.#labelled([...views, ...others.map(({ view }) => view)]), isFromRun: true, isSilent });
  }

  #show(content) {
    const { sections, isFromRun = false, isStale = false, message = "", isSilent = false } = content;
    this.#content = content;
    this.#sections = sections;
    this.#isFromRun = isFromRun;
    this.#isNew = false;
    const isOn = this.#host.isOn();
    const isEditable = sections.some((section, at) => this.placeOf(at));
    this.#brackets = this.#bracketsNow();
    const brackets = this.#brackets;
    const { notes, origins, obstacle, clipNote } = this.#read;
    const ofRun = [obstacle && "as of the last run", ...origins, this.#weighed].filter(Boolean);
    const ofNode = [obstacle, ...origins, ...notes, this.#weighed].filter(Boolean);
    const text = this.#splitText();
    const ofScheme = this.#isSchemeIdle() ? ["no weight here: nothing to change"] : this.#servers();
    const views = sections.map(({ view }) => view);
    this.drawing.show({
      sections: sections.map((one, at) => ({ ...one, view: this.#drawn(one.view, brackets[at], views) })),
      hasChips: isOn,
      hasScheme: this.#rule.hasScheme,
      how: widgetOf(this.#node, "how")?.value,
      notes: !isOn ? [] : [...(isFromRun ? ofRun : ofNode), ...ofScheme],
      message: message || this.#lost || (isOn && !isFromRun && !sections.some(({ view }) => view.encoder) ? clipNote : ""),
      settings: this.#settings,
      isStale,
      isSilent,
      isEditable,
      ...(isEditable && {
        onConvert: (section, from) => this.#convert(section, from),
        onFix: (section, issues) => this.#fix(section, issues),
      }),
      ...(text && { splitText: text, onSplit: (section) => this.#split(section) }),
      ...(sections.some(({ view }) => isPicture(view)) && { onDrawAgain: (section) => this.#drawAgain(section) }),
    });
  }

  /** How the nodes that serve weigh. */
  #servers() {
    const all = new Set([...(this.#rule.readers?.values() ?? [])].map(([{ settings }]) => settings));
    return [...all].map((node) => `weighted by ${node.title}: ${widgetOf(node, "scheme")?.value}`);
  }

  /** Whether another scheme than the first was chosen for words without weights. */
  #isSchemeIdle() {
    const scheme = widgetOf(this.#node, "scheme");
    const views = this.#sections.map(({ view }) => view);
    const chips = views.flatMap(({ chunks }) => chunks.flatMap((chunk) => chunk.chips));
    const isPlain = chips.every(({ weight }) => weight === 1) && !views.some(({ text }) => OF_SECTIONS.test(text));
    return this.#rule.hasScheme && scheme?.value !== scheme?.options?.values?.[0] && chips.length > 0 && isPlain;
  }

  /** The views with a label each, if there are several or a node has several prompt boxes. */
  #labelled(views) {
    const names = this.#rule.texts;
    if (names.length === 1) {
      // a text of several, as of Sweep Weights, is not in the box as it stands
      return views.map((view) => (view.label ? { view, label: view.label, names: [] } : { view, label: whenText(view, views), names }));
    }
    const sections = views.map((view, index) => {
      const same = this.#read.boxes.filter((box) => box.text === view.text).map((box) => box.name);
      // of linked texts only the order is known: a run reads the last box's first
      const guess = views.length === names.length ? [names[names.length - 1 - index]] : [];
      return { view, label: (this.#read.obstacle || !same.length ? guess : same).join(", "), names: same };
    });
    return sections.sort((a, b) => names.indexOf(a.label.split(",")[0]) - names.indexOf(b.label.split(",")[0]));
  }
}

/** The boxes at which sources end, each once. */
const boxesAt = (sources) => [...new Map(sources.map(({ places: [box] }) => [box.widget, box])).values()];
