/**
 * What stands before a node that is edited: the nodes that its conditionings, masks and watches come from, as the server
 * reads them (hosts/comfy/placing/upstream.py), and the size of the picture that it is for.
 */

import { serverOf } from "./clips.js";
import { hostText } from "./host_text.js";
import { isLinked, originOf, pathsTo, valueOf } from "./links.js";
import { linksFrom } from "./partner.js";
import { textsOf } from "./served.js";

/** Types of links that are followed. */
const FOLLOWED = ["CONDITIONING", "MASK", "WEIGHTED_CLIP_WATCH"];
/** Maximum number of nodes to examine. */
const MAX_NODES = 30;
const VALUES = ["string", "number", "boolean"];

/**
 * @typedef {object} Source A node that a link comes from.
 * @property {string} type Type of the link.
 * @property {string} node Class of the node.
 * @property {string} output Name of the output.
 * @property {object} values Values of its widgets, without those that are computed or picked at random.
 * @property {Object<string, Source | null>} links Where its own links come from.
 * @property {{values: object, texts: string[]}} [served] Values of the Weighted CLIP that serves it, and names of its prompts.
 */

/**
 * The nodes that linked inputs without a widget come from.
 * @param {object} node A node.
 * @param {string[]} names Names of inputs.
 * @returns {Object<string, Source | null>} By the names of those that are linked; null where that is not known.
 */
export function sourcesOf(node, names) {
  const paths = pathsTo(node.graph);
  const linked = names.filter((name) => isLinked(node, name) && !node.widgets?.some((widget) => widget.name === name));
  const sources = linked.map((name) => {
    const found = paths.map((path) => ofInput(node, name, path, { nodes: MAX_NODES }));
    const isOne = found.length && new Set(found.map((one) => JSON.stringify(one))).size === 1;
    return [name, isOne ? found[0] : null];
  });
  return Object.fromEntries(sources);
}

function ofInput(node, name, path, left) {
  const { type } = node.inputs.find((slot) => slot.name === name);
  if (!FOLLOWED.includes(type) || (left.nodes -= 1) < 0) return null;
  const origin = originOf(node, name, path);
  if (!origin) return null;
  const inputs = (origin.node.inputs ?? []).filter((slot) => slot.link != null && FOLLOWED.includes(slot.type));
  const texts = textsOf(origin.node);
  const server = texts.length ? serverOf(origin.node, origin.path) : null;
  return {
    type,
    node: origin.node.comfyClass ?? origin.node.type,
    output: origin.node.outputs[origin.slot]?.name ?? "",
    values: valuesOf(origin.node, origin.path),
    links: Object.fromEntries(inputs.map((slot) => [slot.name, ofInput(origin.node, slot.name, origin.path, left)])),
    ...(server && { served: { values: valuesOf(server.node, server.path), texts } }),
  };
}

/**
 * Values of a node's widgets as a run would get them.
 * @param {object} node A node.
 * @param {object[]} path The subgraph nodes through which its graph is reached.
 * @returns {object} Those that are known, by name.
 */
function valuesOf(node, path) {
  const values = {};
  for (const { name, serialize } of node.widgets ?? []) {
    const source = serialize === false ? null : valueOf(node, name, path);
    const value = source?.widget.value;
    if (!VALUES.includes(typeof value)) continue;
    const read = source.isPrompt ? hostText(String(value)) : { text: value, hasChoice: false };
    if (!read.hasChoice) values[name] = read.text;
  }
  return values;
}

/**
 * Height and width of the picture that a node's conditioning is for, by way of the samplers behind it.
 * @param {object} node A node.
 * @returns {[number, number] | null} In pixels; null if it is not known, or there are several.
 */
export function pictureSizeOf(node) {
  const queue = [node];
  const sizes = [];
  for (const one of queue) {
    for (const { target_id: id } of linksFrom(one, ["CONDITIONING", "GUIDER", "*"])) {
      const target = one.graph.getNodeById(id);
      if (target?.inputs.some(({ name, type }) => name === "latent_image" && type === "LATENT")) sizes.push(sizeOf(target));
      else if (target && queue.length < MAX_NODES && !queue.includes(target)) queue.push(target);
    }
  }
  return new Set(sizes.map((size) => JSON.stringify(size))).size === 1 ? sizes[0] : null;
}

function sizeOf(sampler) {
  const [path, ...others] = pathsTo(sampler.graph);
  const origin = path && !others.length ? originOf(sampler, "latent_image", path) : null;
  const size = ["height", "width"].map((name) => origin && valueOf(origin.node, name, origin.path)?.widget.value);
  return size.every((side) => Number.isInteger(side) && side > 0) ? size : null;
}
