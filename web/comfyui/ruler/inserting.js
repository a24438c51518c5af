/** Putting a Weighted CLIP behind a loader, before all that take its CLIP. */

import { SERVER, classOf, clipsBefore, isClip, serverOf } from "./clips.js";
import { linkOf, pathsTo } from "./links.js";
import { makeRoom } from "./replacing.js";
import { nodesWithPaths, servedBoxes, textsOf } from "./served.js";

/** Pixels between the new node and its neighbours, and of a title. */
const GAP = 30;
const TITLE_HEIGHT = 30;
/** Pixels of a ruler: its count line with margins, a line of chips, the mean width of a character in it, and all at most. */
const [LEAST, LINE, CHARACTER, MOST] = [85, 25, 11, 350];
/** Maximum number of nodes between a prompt and its loader. */
const MAX_HOPS = 30;

/**
 * Where a Weighted CLIP can be put so that the prompts of a node weigh: its own, those in a subgraph, or those behind a loader.
 * @param {object} node The node.
 * @returns {(() => void) | null} A function that puts it there; null where it is already, or there is no CLIP.
 */
export function inserter(node) {
  const [path] = pathsTo(node.graph);
  const isWhole = Boolean(node.isSubgraphNode?.());
  const all = isWhole ? nodesWithPaths(node.subgraph, [...path, node]) : [{ node, path }];
  const unserved = all.find((one) => textsOf(one.node).length && !serverOf(one.node, one.path));
  const isLoader = !isWhole && !(node.inputs ?? []).some(({ type }) => isClip(type));
  const slot = isLoader ? (node.outputs ?? []).findIndex(({ type }) => isClip(type)) : -1;
  const source = unserved ? loaderOf(unserved.node, unserved.path) : { node, slot };
  if (!source || source.slot < 0) return null;
  const { graph, outputs } = source.node;
  const links = (outputs[source.slot].links ?? []).map((id) => linkOf(graph, id)).filter(Boolean);
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

/** Put the node behind an output, before all links from it, and make room for the rulers that come. */
function insert({ node, slot }, links) {
  const { graph } = node;
  const root = graph.rootGraph ?? graph;
  const before = servedBoxes(root);
  const server = LiteGraph.createNode(SERVER);
  graph.add(server);
  place(server, node);
  for (const { target_id: id, target_slot: at, targetIsIoNode: isOutside, parentId } of links) {
    if (isOutside) graph.outputNode.slots[at].connect(server.outputs[0], server, parentId);
    else server.connect(0, graph.getNodeById(id), at, parentId);
  }
  node.connect(slot, server, 0);
  const fresh = [...servedBoxes(root)].filter(([holder]) => !before.has(holder) && !holder.flags?.collapsed);
  for (const [holder, boxes] of fresh.sort(([a], [b]) => a.pos[1] - b.pos[1])) {
    const texts = holder.widgets.filter(({ name }) => boxes.has(name)).map(({ value }) => String(value ?? ""));
    makeRoom(holder, holder.size[1], rulerHeight(texts.join(" "), holder.size[0]));
  }
}

/** About how high a ruler will be. */
const rulerHeight = (text, width) => Math.min(MOST, LEAST + LINE * Math.ceil((CHARACTER * text.length) / Math.max(1, width - 40)));

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
