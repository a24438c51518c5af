/** Putting a Weighted CLIP behind a loader, before all that take its CLIP. */

import { SERVER, classOf, clipsBefore, isClip, serverOf } from "./clips.js";
import { pathsTo } from "./links.js";
import { nodesWithPaths, textsOf } from "./served.js";

/** Pixels between the new node and its neighbours, and of a title. */
const GAP = 30;
const TITLE_HEIGHT = 30;
/** Maximum number of nodes between a prompt and its loader. */
const MAX_HOPS = 30;

/**
 * Where a Weighted CLIP can be put so that the prompts of a node weigh: its own, those in a subgraph, or those behind a loader.
 * @param {object} node The node.
 * @returns {(() => void) | null} A function that puts it there; null where it is already, or there is no CLIP.
 */
export function inserter(node) {
  const [path] = pathsTo(node.graph);
  const output = (node.inputs ?? []).some(({ type }) => isClip(type)) ? -1 : node.outputs?.findIndex(({ type }) => isClip(type));
  const inner = node.isSubgraphNode?.() ? nodesWithPaths(node.subgraph, [...path, node]) : [{ node, path }];
  const unserved = inner.find((one) => textsOf(one.node).length && !serverOf(one.node, one.path));
  const source = unserved ? loaderOf(unserved.node, unserved.path) : output >= 0 && !node.isSubgraphNode?.() && { node, slot: output };
  if (!source) return null;
  const { graph, outputs } = source.node;
  const links = (outputs[source.slot].links ?? []).map((id) => graph.getLink?.(id) ?? graph.links?.[id]).filter(Boolean);
  const isServed = links.some(({ target_id: id }) => graph.getNodeById(id) && classOf(graph.getNodeById(id)) === SERVER);
  return links.length && !isServed ? () => insert(source, links) : null;
}

/** The output that a node's CLIP comes from in the end; undefined if it is not known. */
function loaderOf(node, path) {
  let [found] = clipsBefore(node, path);
  for (let hops = 0; found && hops < MAX_HOPS; hops += 1) {
    const [before] = clipsBefore(found.node, found.path);
    if (!before) break;
    found = before;
  }
  return found;
}

/** Put the node behind an output, before all links from it. */
function insert({ node, slot }, links) {
  const { graph } = node;
  const server = LiteGraph.createNode(SERVER);
  graph.add(server);
  place(server, node);
  for (const { target_id: id, target_slot: at, targetIsIoNode: isOutside, parentId } of links) {
    if (isOutside) graph.outputNode.slots[at].connect(server.outputs[0], server, parentId);
    else server.connect(0, graph.getNodeById(id), at, parentId);
  }
  node.connect(slot, server, 0);
}

/** Move a new node to where there is room: below its neighbour, above it, or left of it. */
function place(fresh, { pos: [x, y], size: [, height] }) {
  const { graph, size } = fresh;
  const isFree = ([left, top]) =>
    graph.nodes.every(({ id, pos, size: [width, tall] }) => {
      const isBeside = left >= pos[0] + width || pos[0] >= left + size[0];
      const isApart = top - TITLE_HEIGHT >= pos[1] + tall || pos[1] - TITLE_HEIGHT >= top + size[1];
      return id === fresh.id || isBeside || isApart;
    });
  const below = y + height + TITLE_HEIGHT + GAP;
  const places = [[x, below], [x, y - size[1] - TITLE_HEIGHT - GAP], [x - size[0] - GAP, y]];
  fresh.pos = places.find(isFree) ?? [x, below];
}
