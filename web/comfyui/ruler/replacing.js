/** Putting nodes of one class in the place of others, with their links, values and looks. */

import { linkOf } from "./links.js";

/** Pixels by which a new node grows when it is drawn: a ruler with a line of chips and a note, and in Nodes 2.0 its higher rows. */
const GROWTH = 110;
const GROWTH_IN_NODES_2 = 150;
const TITLE_HEIGHT = 30;

/**
 * Replace nodes. Inputs, widgets and outputs are matched by name. The page is to be told once, when all are there: what
 * happens until then is one change, which one Ctrl+Z undoes.
 * @param {object[]} nodes The nodes.
 * @param {string} type The class of the new ones.
 */
export function replaceNodes(nodes, type) {
  for (const node of nodes) replaceNode(node, LiteGraph.createNode(type));
}

function replaceNode(old, fresh) {
  const { graph } = old;
  fresh.pos = [...old.pos];
  for (const name of ["mode", "color", "bgcolor"]) if (old[name] !== undefined) fresh[name] = old[name];
  if (old.title !== old.constructor.title) fresh.title = old.title;
  if (old.flags.collapsed) fresh.flags.collapsed = true;
  graph.add(fresh);
  fresh.setSize([Math.max(old.size[0], fresh.size[0]), fresh.size[1]]);
  for (const widget of fresh.widgets) {
    const former = old.widgets?.find(({ name }) => name === widget.name);
    if (former && widget.serialize !== false) widget.value = former.value;
  }
  const links = (ids) => (ids ?? []).map((id) => linkOf(graph, id)).filter(Boolean);
  for (const { name, link: id } of old.inputs) {
    const slot = fresh.inputs.findIndex((input) => input.name === name);
    for (const link of slot < 0 ? [] : links([id].filter((one) => one != null))) {
      if (link.originIsIoNode) graph.inputNode.slots[link.origin_slot].connect(fresh.inputs[slot], fresh, link.parentId);
      else graph.getNodeById(link.origin_id).connect(link.origin_slot, fresh, slot, link.parentId);
    }
  }
  for (const { name, links: ids } of old.outputs) {
    const slot = fresh.outputs.findIndex((output) => output.name === name);
    for (const link of slot < 0 ? [] : links([...(ids ?? [])])) {
      if (link.targetIsIoNode) graph.outputNode.slots[link.target_slot].connect(fresh.outputs[slot], fresh, link.parentId);
      else fresh.connect(slot, graph.getNodeById(link.target_id), link.target_slot, link.parentId);
    }
  }
  graph.remove(old);
  const growth = globalThis.LiteGraph?.vueNodesMode ? GROWTH_IN_NODES_2 : GROWTH;
  if (!fresh.flags.collapsed) makeRoom(fresh, old.size[1], growth);
}

/**
 * Move the nodes below one down as far as its greater height needs.
 * @param {object} fresh The node.
 * @param {number} formerHeight Height at which the others stand below it.
 * @param {number} growth Pixels by which it will yet grow.
 */
export function makeRoom(fresh, formerHeight, growth) {
  const [left, top] = fresh.pos;
  const isBelow = ({ pos: [x, y], size: [width] }) =>
    y >= top + formerHeight && x < left + fresh.size[0] && left < x + width;
  const below = fresh.graph.nodes.filter(isBelow);
  const shift = top + fresh.size[1] + growth + TITLE_HEIGHT - Math.min(...below.map(({ pos }) => pos[1]));
  if (shift > 0) for (const node of below) node.pos = [node.pos[0], node.pos[1] + shift];
}
