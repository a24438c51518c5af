/** The widget that holds a ruler on a node. Without a value, so that nothing of it is saved or sent. */

import { areaOf, isShown } from "./boxes.js";
import { say } from "./language.js";
import { NodeHeight } from "./node_height.js";
import { after, before } from "./wrap.js";

/** Pixels around the ruler on the canvas, as around a text box. */
const MARGIN = 10;
/** Pixels between two widgets in Nodes 2.0. */
const GAP_IN_NODES_2 = 4;
/** In Nodes 2.0, the row of a widget. */
const ROW = ".lg-node-widget";
/** Values of a node's mode that keep it out of a run: muted, bypassed. */
const MODES_ASLEEP = [2, 4];

/**
 * Add the widget; it has no height until there is something to show.
 * @param {object} node The node.
 * @param {object} drawing The ruler, as draw.js makes it.
 * @param {() => HTMLCanvasElement} canvas Gives the canvas, which the wheel zooms.
 * @param {{box?: string, isOurs?: boolean}} [about] Name of the prompt box that it stands below, by default all other
 *   widgets; and whether the node is one of ours.
 * @returns {{start: () => void, stop: () => void, place: () => void, attach: (box?: string) => void, detach: () => void,
 *   isOff: () => boolean}}
 *   Begins and ends to follow the height of what it shows; puts it back where the page has lost it and fades it with its
 *   node, to be called now and then; puts it on the node again, below a box, and takes it off; and says whether it is off.
 */
export function addRulerWidget(node, drawing, canvas, { box, isOurs = true } = {}) {
  const { element, box: shown } = drawing;
  const options = { serialize: false, hideOnZoom: true, hideInPanel: true, margin: 0 };
  const widget = node.addDOMWidget("ruler", "weighted_clip_ruler", element, options);
  widget.serialize = false;
  Object.defineProperty(widget, "label", { get: () => say("Token ruler"), set: () => {}, configurable: true });
  const standBelow = listerOf(node, widget);
  if (box || node.isSubgraphNode?.()) standBelow(box);
  // of fixed height: with computeLayoutSize, Nodes 2.0 gives it half of a tall node's free space
  let height = 0;
  widget.computeSize = () => [0, height];
  widget.computeLayoutSize = undefined;

  const nodeHeight = new NodeHeight(node, isOurs);
  before(drawing, "show", () => nodeHeight.remember());

  const drawNode = () => node.graph && node.setDirtyCanvas(true, true);
  // the height follows what it shows, which wraps where the node is narrow
  let width = 0;
  let nodeWidth = 0;
  let wasNodes2 = false;
  const observer = new ResizeObserver(() => {
    drawing.refresh(); // it may have come to the page just now
    if (!shown.offsetHeight && shown.childElementCount) return; // not on the screen
    const isNodes2 = Boolean(globalThis.LiteGraph?.vueNodesMode);
    const isWrapped = Boolean(width && shown.offsetWidth && width !== shown.offsetWidth && isNodes2 === wasNodes2);
    // in Nodes 2.0 the node has its new width after the ruler
    const isLate = isWrapped && node.size[0] === nodeWidth && !isNodes2;
    wasNodes2 = isNodes2;
    width = shown.offsetWidth || width;
    nodeWidth = node.size[0];
    const margin = shown.offsetHeight ? MARGIN : 0;
    height = shown.offsetHeight ? shown.offsetHeight + 2 * MARGIN - 4 : 0; // the canvas adds 4
    widget.options.margin = margin;
    // on our own nodes Nodes 2.0 has had the room of the canvas from the start
    const room = isNodes2 && !isOurs ? GAP_IN_NODES_2 - 2 * MARGIN : 0;
    nodeHeight.follow(height && height + 4 + room, !isWrapped, isLate);
    drawNode();
    // the canvas makes room only while it draws, after the node's body
    requestAnimationFrame(() => requestAnimationFrame(drawNode));
  });

  // the wheel scrolls what is long; otherwise it is the canvas's
  element.addEventListener("wheel", (event) => {
    event.stopPropagation();
    const scrolled = event.target.closest(".wcr-scroll, .wcr-problems");
    if (scrolled && scrolled.scrollHeight > scrolled.clientHeight && !event.ctrlKey) return;
    event.preventDefault();
    canvas().dispatchEvent(new WheelEvent(event.type, event));
  });
  // Nodes 2.0 keeps what it has drawn for a node when another workflow, or a subgraph, has one of the same id
  const place = () => {
    shown.classList.toggle("wcr-asleep", MODES_ASLEEP.includes(node.mode));
    if (element.isConnected || !isShown(node) || widget.hidden) return;
    document.querySelector(`[data-node-id="${node.id}"] .weighted-clip-ruler`)?.replaceWith(element);
    // of a subgraph it draws promoted widgets alone
    const promoted = node.isSubgraphNode?.() && node.widgets.find(({ name }) => name === box);
    if (promoted && globalThis.LiteGraph?.vueNodesMode) areaOf({ node, widget: promoted })?.closest(ROW)?.append(element);
  };
  const start = () => {
    observer.observe(shown);
    nodeHeight.added();
  };
  const attach = (below) => {
    if (!widget.hidden && below === box) return;
    box = below;
    widget.hidden = false;
    standBelow(box);
    start();
    drawNode();
  };
  const detach = () => {
    if (widget.hidden) return;
    observer.disconnect();
    drawing.show({ sections: [] });
    widget.hidden = true;
    standBelow(null);
    element.remove();
    nodeHeight.follow(0, true, false);
    height = width = 0;
    drawNode();
  };
  return { start, stop: () => observer.disconnect(), place, attach, detach, isOff: () => Boolean(widget.hidden) };
}

/**
 * A function that puts a widget that is not saved below another one, given its name, or behind all, or with null takes it
 * away. A node is saved by the positions of its widgets but read without those that are not saved, so what is saved must
 * not have a gap in its place.
 */
function listerOf(node, widget) {
  const withWidget = (widgets, name) => {
    const others = widgets.filter((one) => one !== widget);
    if (name === null) return others;
    const place = others.findIndex((one) => one.name === name) + 1 || others.length;
    return [...others.slice(0, place), widget, ...others.slice(place)];
  };
  const get = node.isSubgraphNode?.() && Object.getOwnPropertyDescriptor(node, "widgets")?.get;
  if (get) {
    // a subgraph node makes the list of its inputs
    let below = null;
    const own = { get: () => withWidget(get.call(node), below), set: () => {} };
    Object.defineProperty(node, "widgets", { ...own, configurable: true, enumerable: true });
    return (name) => (below = name);
  }
  after(node, "onSerialize", ({ widgets_values: values }) => {
    const gap = node.widgets.indexOf(widget);
    if (values && gap >= 0 && !(gap in values)) values.splice(gap, 1);
  });
  return (name) => node.widgets.splice(0, node.widgets.length, ...withWidget(node.widgets, name));
}
