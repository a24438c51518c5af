/**
 * Source of an input's value: through reroutes, in and out of subgraphs, to a widget whose value is sent as it
 * is. By the rules of ComfyUI's front end 1.27 to 1.47 (resolveInput in ExecutableNodeDTO.ts, applyToGraph of
 * PrimitiveNode).
 */

import { keepsBraces } from "./host_text.js";

/** ComfyUI's nodes that output just the value of a widget. */
const PRIMITIVES = ["PrimitiveString", "PrimitiveStringMultiline", "PrimitiveInt", "PrimitiveFloat", "PrimitiveBoolean"];
const PRIMITIVE_WIDGET = "value";
/** Property of a PrimitiveNode that has the page replace parts of its value when it is sent. */
const REPLACES = "Run widget replace on values";
/** Maximum number of consecutive links and subgraphs to follow. */
const MAX_HOPS = 30;
/** Maximum number of places of a subgraph to examine. */
const MAX_PATHS = 20;
/** A node's mode in which it hands on what it is given. */
const BYPASSED = 4;
/** A link that ends nowhere: ComfyUI sends the value of the widget that it leads to. */
const NOTHING = Symbol("nothing");

/**
 * @typedef {object} Source Source of a value.
 * @property {*} value The value.
 * @property {boolean} isPrompt Whether the page takes comments and `{a|b}` out of it before it is sent.
 * @property {{node: object, widget: object}[]} places The widgets that hold it: one, but where a subgraph stands in
 *   several places of a workflow and each has a widget with the same value.
 */

/**
 * Follow the links of an input to the widget that its value comes from.
 * @param {object} node A node.
 * @param {string} name The name of one of its inputs, with a widget or without.
 * @returns {Source | null} Null if the value is computed, or differs between the places of a subgraph.
 */
export function sourceOf(node, name) {
  const paths = isLinked(node, name) ? pathsTo(node.graph) : [[]];
  const found = paths.map((path) => valueOf(node, name, path));
  const [first] = found;
  const isOther = (one) => !one || one.widget.value !== first.widget.value || one.isPrompt !== first.isPrompt;
  if (!first || found.some(isOther)) return null;
  const places = found.filter(({ widget }, at) => found.findIndex((one) => one.widget === widget) === at);
  return {
    value: first.widget.value,
    isPrompt: first.isPrompt,
    places: places.map((one) => ({ node: one.node, widget: one.widget })),
  };
}

/** Whether something is connected to an input, or to that of a widget. */
export const isLinked = (node, name) => slotOf(node, name)?.link != null;

const slotOf = (node, name) => node.inputs?.find((slot) => (slot.widget?.name ?? slot.name) === name);

/** The subgraph nodes, from the outermost in, through which a graph is reached: a list for each of its places. */
export function pathsTo(graph) {
  const root = graph.rootGraph ?? graph;
  if (root === graph) return [[]];
  const paths = [];
  const search = (one, path) => {
    for (const node of one.nodes ?? []) {
      if (paths.length === MAX_PATHS || path.length === MAX_HOPS) return;
      if (!node.isSubgraphNode?.()) continue;
      if (node.subgraph === graph) paths.push([...path, node]);
      search(node.subgraph, [...path, node]);
    }
  };
  search(root, []);
  return paths;
}

/**
 * The value of an input, by a path to the node's graph.
 * @param {object} node A node.
 * @param {string} name The name of one of its inputs.
 * @param {object[]} path The subgraph nodes through which its graph is reached.
 * @param {number} [hops] Number of links that may be followed.
 * @returns {{node: object, widget: object, isPrompt: boolean} | null} The widget that holds it, and whether the page takes
 *   comments and choices out of it; null if it is computed.
 */
export function valueOf(node, name, path, hops = MAX_HOPS) {
  const widget = node.widgets?.find((one) => one.name === name);
  const isPrompt = Boolean(widget?.dynamicPrompts) && !keepsBraces(node);
  const own = widget ? { node, widget, isPrompt } : null;
  const id = slotOf(node, name)?.link;
  if (id == null) return own;
  const link = linkOf(node.graph, id);
  const origin = link && node.graph.getNodeById(link.origin_id);
  if (origin?.type === "PrimitiveNode" && origin.widgets?.length) {
    // its value is put into our widget when the prompt is sent
    return origin.properties?.[REPLACES] ? null : { node: origin, widget: origin.widgets[0], isPrompt };
  }
  const found = ofLink(node.graph, link, path, hops);
  if (found === NOTHING) return own;
  if (!found || found.widget) return found;
  const isPrimitive = PRIMITIVES.includes(found.node.comfyClass ?? found.node.type);
  return isPrimitive ? valueOf(found.node, PRIMITIVE_WIDGET, found.path, found.hops) : null;
}

/**
 * The node that provides an input without a widget.
 * @param {object} node A node.
 * @param {string} name The name of one of its inputs.
 * @param {object[]} path The subgraph nodes through which its graph is reached.
 * @returns {{node: object, slot: number, path: object[]} | null} It, its output, and the way to its graph; null for none.
 */
export function originOf(node, name, path) {
  const id = slotOf(node, name)?.link;
  const found = id == null ? null : ofLink(node.graph, linkOf(node.graph, id), path, MAX_HOPS);
  return found?.slot === undefined ? null : found;
}

/** What a link comes from: the output of a node with its path, the widget of a subgraph, `NOTHING`, or null if unknown. */
function ofLink(graph, link, path, hops) {
  if (!link || !hops) return null;
  if (!link.originIsIoNode) return ofOutput(graph.getNodeById(link.origin_id), link.origin_slot, path, hops - 1);
  const outer = path.at(-1);
  const slot = outer?.inputs[link.origin_slot];
  if (!slot) return null;
  if (slot.link != null) return ofLink(outer.graph, linkOf(outer.graph, slot.link), path.slice(0, -1), hops - 1);
  const widget = slot._widget ?? outer.getWidgetFromSlot?.(slot);
  return widget ? { node: outer, widget, isPrompt: false } : NOTHING;
}

function ofOutput(node, slot, path, hops) {
  if (!node) return null;
  if (node.mode) {
    const link = node.mode === BYPASSED ? passedBy(node, slot)?.link : null;
    return link == null ? null : ofLink(node.graph, linkOf(node.graph, link), path, hops);
  }
  if (node.isSubgraphNode?.()) {
    const link = node.resolveSubgraphOutputLink(slot)?.link;
    return link ? ofLink(node.subgraph, link, [...path, node], hops) : NOTHING;
  }
  if (node.isVirtualNode) {
    const source = node.resolveVirtualOutput?.(slot);
    if (source) return source.node.graph === node.graph ? ofOutput(source.node, source.slot, path, hops - 1) : null;
    const link = node.getInputLink?.(slot);
    return link ? ofLink(node.graph, link, path, hops) : NOTHING;
  }
  return { node, slot, path, hops };
}

/** The input whose link a bypassed node hands on: that of the same number, or the first, of the type of an output. */
function passedBy({ inputs = [], outputs = [] }, slot) {
  const type = String(outputs[slot]?.type);
  const isLike = (input) => input && String(input.type).split(",").some((one) => type.split(",").includes(one));
  return isLike(inputs[slot]) ? inputs[slot] : (inputs.find((input) => input.type === type) ?? inputs.find(isLike));
}

/** A link by its id. */
export const linkOf = (graph, id) => graph.getLink?.(id) ?? graph.links?.[id];
