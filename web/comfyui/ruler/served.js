/** Prompt boxes of other nodes than ours that a Weighted CLIP serves: where their text is typed, and who reads it. */

import { SERVER, classOf, isClip, serverOf } from "./clips.js";
import { valueOf } from "./links.js";

/** Names of the prompt boxes of classes that are not ours. */
const texts = new Map();
/** Maximum number of graphs to examine, a subgraph counted as often as it stands in a workflow. */
const MAX_GRAPHS = 200;

/**
 * @typedef {object} Reader What reads a prompt box.
 * @property {object} node The node that encodes it.
 * @property {object[]} path The subgraph nodes through which that node's graph is reached.
 * @property {object} settings The Weighted CLIP that says how.
 * @property {string} id The id of the encoding node in a run: "12:7".
 */

/** Note the prompt boxes of a class that is not ours, as the server describes it: of several lines, on a node that takes a CLIP. */
export function noteTexts(definition) {
  const { required = {}, optional = {} } = definition.input ?? {};
  const inputs = Object.entries({ ...required, ...optional });
  const isBox = ([, [type, options]]) => type === "STRING" && options?.multiline && !options.forceInput;
  if (inputs.some(([, [type]]) => isClip(type))) texts.set(definition.name, inputs.filter(isBox).map(([name]) => name));
}

/** Names of the prompt boxes of a node that is not ours. */
export const textsOf = (node) => texts.get(classOf(node)) ?? [];

/**
 * Find the prompt boxes that are served.
 * @param {object} root The workflow's graph.
 * @returns {Map<object, Map<string, Reader[]>>} By the node on which they are typed, and by the name of the widget there,
 *   their readers: one, but where a subgraph stands in several places, or several nodes read one text. A promoted box is
 *   typed on the outermost subgraph node.
 */
export function servedBoxes(root) {
  const all = nodesWithPaths(root);
  const boxes = new Map();
  if (!all.some(({ node }) => classOf(node) === SERVER)) return boxes;
  for (const { node, path } of all) {
    const names = textsOf(node);
    const settings = names.length ? serverOf(node, path)?.node : null;
    for (const name of names) {
      const source = valueOf(node, name, path);
      const isTypedHere = source && (source.node === node || source.node.isSubgraphNode?.());
      if (!isTypedHere) continue;
      const typed = boxes.get(source.node) ?? new Map();
      const readers = typed.get(source.widget.name) ?? [];
      const id = [...path, node].map((one) => one.id).join(":");
      boxes.set(source.node, typed.set(source.widget.name, [...readers, { node, path, settings, id }]));
    }
  }
  for (const [holder, typed] of boxes) {
    for (const [name, readers] of typed) if (!areServedAlike(readers)) typed.delete(name);
    if (!typed.size) boxes.delete(holder);
  }
  return boxes;
}

const areServedAlike = ([first, ...others]) => first.settings && others.every(({ settings }) => settings === first.settings);

/** All nodes of a graph and its subgraphs, each with its path, as often as they are run. */
export function nodesWithPaths(root, start = []) {
  const found = [];
  const graphs = [{ graph: root, path: start }];
  for (const { graph, path } of graphs) {
    for (const node of graph?.nodes ?? []) {
      found.push({ node, path });
      const isInner = node.isSubgraphNode?.() && !path.includes(node) && graphs.length < MAX_GRAPHS;
      if (isInner) graphs.push({ graph: node.subgraph, path: [...path, node] });
    }
  }
  return found;
}
