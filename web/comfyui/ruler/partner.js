/** The other prompt of a sampler: the negative one for a node of the positive one, and the reverse. */

import { linkOf } from "./links.js";

/** Maximum number of nodes to examine. */
const MAX_NODES = 30;
const OTHER = { positive: "negative", negative: "positive" };

/**
 * Find the node with the other prompt, by way of nodes that hand a conditioning on.
 * @param {object} node A node that encodes.
 * @param {(node: object) => object[] | null} boxesOf Gives the prompt boxes of a node that encodes, null for others.
 * @returns {{node: object | null, isNegative: boolean}} It, if there is one in the same graph; and whether `node` itself is
 *   a sampler's negative prompt.
 */
export function partnerOf(node, boxesOf) {
  const { graph } = node;
  const queue = [node];
  for (const one of queue) {
    for (const { target_id: id, target_slot: slot } of linksFrom(one)) {
      const target = graph.getNodeById(id);
      const name = target?.inputs[slot]?.name;
      const other = target?.inputs.find((input) => input.name === OTHER[name]);
      if (other) return { node: encoderAt(graph, other, node, boxesOf), isNegative: name === "negative" };
      if (target && queue.length < MAX_NODES && !queue.includes(target)) queue.push(target);
    }
  }
  return { node: null, isNegative: false };
}

/** Links from a node of some types, by default those of a conditioning, or of anything from a reroute. */
export function linksFrom(node, types = ["CONDITIONING", "*"]) {
  const outputs = (node.outputs ?? []).filter(({ type }) => types.includes(type));
  return outputs.flatMap(({ links }) => links ?? []).map((id) => linkOf(node.graph, id)).filter(Boolean);
}

/** The node whose prompt reaches an input; null for none, several, or the given one. */
function encoderAt(graph, input, self, boxesOf) {
  let slot = input;
  for (let hops = 0; hops < MAX_NODES && slot?.link != null; hops += 1) {
    const origin = graph.getNodeById(linkOf(graph, slot.link)?.origin_id);
    if (!origin || origin === self || origin.mode) return null;
    if (boxesOf(origin)) return origin;
    const named = origin.inputs?.filter(({ name }) => name === input.name);
    const inputs = named?.length ? named : origin.inputs?.filter(({ type }) => type === "CONDITIONING" || type === "*");
    slot = inputs?.length === 1 ? inputs[0] : null;
  }
  return null;
}
