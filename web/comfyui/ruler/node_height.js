/**
 * Height of a node with a ruler: as high as its user made it, plus the height of the ruler. So the prompt box
 * keeps its height whatever the ruler shows.
 */

import { after } from "./wrap.js";

/** ComfyUI's space around the text of a box on the canvas: margins of 10 and padding of 2 pixels, above and below. */
const AROUND_TEXT = 24;
/** Pixels that the boxes of a new node share at least: 84 of text if there is one, 40 each if there are two. */
const boxesHeight = (number) => (number > 1 ? 64 * number : 108);
/** Pixels that ComfyUI gives a box on a new node that has no free room. */
const LEAST_BOX = 50;
/** Property of a saved node whose height is that without the ruler. Nodes of older files do not have it. */
const APART = "weighted_clip_height_without_ruler";
/** Frames in which Nodes 2.0 has drawn a new node. */
const MAX_FRAMES = 60;
/** Frames in which it may still show the boxes of a node that had the same id before. */
const STALE_FRAMES = 4;
/** Frames after which the height of a new node is its user's. */
const SETTLED_FRAMES = 12;
/** Changes of the height of a new node until its boxes have what they need; it may not be able to become lower. */
const MAX_CHANGES = 3;

/** Makes a node as high as its ruler needs, and its text boxes high enough when it is new. */
export class NodeHeight {
  #node;
  /** Pixels of the node's height that are the ruler's. */
  #ruler = 0;
  /** The rest when it was last changed. */
  #rest = NaN;
  /** Whether the height is of an older file, in which the ruler's is already counted. */
  #isCounted = false;
  /** Whether it was of such a file. */
  #isOlder = false;
  #isNew;
  /** The height of the node before the ruler was redrawn, as long as the page does not know it. */
  #before = null;

  /** Whether it is a node of ours; boxes of others are left as high as they are. */
  #isOurs;

  /**
   * @param {object} node A node that has all its widgets; one of ours was not read from a file yet.
   * @param {boolean} isOurs Whether it is one of ours.
   */
  constructor(node, isOurs) {
    this.#node = node;
    this.#isOurs = this.#isNew = isOurs;
    const [width, height] = node.size;
    const number = this.#boxes().length;
    if (isOurs) node.setSize([width, height + boxesHeight(number) - number * LEAST_BOX]);
    after(node, "onConfigure", (saved) => this.#configured(saved));
    after(node, "onSerialize", (saved) => this.#serialized(saved));
  }

  /** To be called before the ruler is drawn: Nodes 2.0 makes room for it by itself when a box can give none. */
  remember() {
    if (this.#before !== null) return;
    this.#before = this.#node.size[1];
    requestAnimationFrame(() => requestAnimationFrame(() => (this.#before = null)));
  }

  /**
   * The ruler has another height.
   * @param {number} ruler Pixels.
   * @param {boolean} isOther False where it shows the same and the node has another width: then the user is changing
   *   the node's size, and what is left is the box's.
   * @param {boolean} isLate True where the node has the same width too: on the canvas of front end 1.58 a ruler has its
   *   own only after it was drawn.
   */
  follow(ruler, isOther, isLate) {
    const [width, height] = this.#node.size;
    const isToGrow = isLate ? !this.#isOlder : isOther && !this.#isCounted;
    if (ruler !== this.#ruler && isToGrow) {
      this.#rest = this.#without(this.#before ?? height);
      this.#node.setSize([width, this.#rest + ruler]);
    }
    this.#ruler = ruler;
    this.#before = null;
    if (ruler) this.#isCounted = false;
  }

  /**
   * The node is in a graph: in Nodes 2.0 only its drawing tells how high the boxes are. They lack some pixels, or have
   * those of inputs that it does not show.
   */
  added(frame = 0, changes = 0) {
    if (!this.#isNew || !globalThis.LiteGraph?.vueNodesMode) return;
    const boxes = [...document.querySelectorAll(`[data-node-id="${this.#node.id}"] textarea`)];
    const shown = boxes.filter((box) => box.clientHeight);
    const least = boxesHeight(shown.length) / shown.length - AROUND_TEXT;
    // free room is shared by all boxes alike
    const lack = Math.max(...shown.map((box) => lackOf(box, least))) * shown.length;
    // `follow` starts from the height before a ruler that is being drawn: the boxes would lose what they get now
    const isReady = frame >= STALE_FRAMES && shown.length && this.#before === null;
    if (frame > (isReady ? SETTLED_FRAMES : MAX_FRAMES) || changes > MAX_CHANGES) {
      this.#isNew = false;
      return;
    }
    if (isReady && lack) {
      this.#node.setSize([this.#node.size[0], this.#node.size[1] + lack]);
      this.#tellHistory();
    }
    requestAnimationFrame(() => (isReady && lack ? this.added(0, changes + 1) : this.added(frame + 1, changes)));
  }

  /** The page's history takes the height for that with which the node came: one Ctrl+Z undoes both. */
  #tellHistory() {
    const state = globalThis.app?.extensionManager?.workflow?.activeWorkflow?.changeTracker?.activeState;
    const graphs = [state, ...(state?.definitions?.subgraphs ?? [])];
    const graph = graphs.find((one) => one?.id === this.#node.graph?.id);
    const known = graph?.nodes?.find(({ id }) => String(id) === String(this.#node.id));
    if (known) known.size = [...this.#node.serialize().size];
  }

  /** A height of the node without the ruler: as it was, where less than a pixel has changed, as in Nodes 2.0. */
  #without(height) {
    const rest = height - this.#ruler;
    return Math.abs(rest - this.#rest) < 1 ? this.#rest : rest;
  }

  #boxes() {
    return this.#node.widgets.filter((widget) => widget.type === "customtext" && !widget.options.advanced);
  }

  #configured(saved) {
    this.#isNew = false;
    const isApart = Boolean(saved.properties?.[APART]);
    this.#isCounted = this.#isOlder = this.#isOurs && !isApart && !this.#ruler;
    if ((isApart || !this.#isOurs) && saved.size) this.#node.setSize([saved.size[0], saved.size[1] + this.#ruler]);
  }

  #serialized(saved) {
    if (this.#isCounted) return;
    if (this.#ruler) saved.size = [saved.size[0], this.#without(saved.size[1])];
    if (this.#isOurs) saved.properties = { ...saved.properties, [APART]: true };
  }
}

/** Pixels that a box lacks for so many of text. */
function lackOf(box, least) {
  const { paddingTop, paddingBottom } = getComputedStyle(box);
  return least + parseFloat(paddingTop) + parseFloat(paddingBottom) - box.clientHeight;
}
