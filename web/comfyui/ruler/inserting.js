/** Putting a Weighted CLIP between a CLIP and all that take it. */

import { SERVER, classOf, isClip, serverOf } from "./clips.js";
import { pathsTo } from "./links.js";
import { textsOf } from "./served.js";

/** Pixels between the new node and its neighbours, and of a title. */
const GAP = 30;
const TITLE_HEIGHT = 30;

/**
 * Where a Weighted CLIP can be put so that a node's prompts, or those behind a loader, weigh.
 * @param {object} node The node.
 * @returns {(() => void) | null} A function that puts it there; null where it is already, or there is no CLIP.
 */
export function inserter(node) {
  const { graph } = node;
  const slot = textsOf(node).length ? node.inputs.find(({ type, link }) => isClip(type) && link != null) : null;
  const output = node.inputs?.some(({ type }) => isClip(type)) ? null : node.outputs?.find(({ type }) => isClip(type));
  const linkOf = (id) => graph.getLink?.(id) ?? graph.links?.[id];
  const link = linkOf(slot?.link ?? output?.links?.[0]);
  if (!link) return null;
  const reader = graph.getNodeById(link.target_id);
  const isServed = classOf(reader) === SERVER || pathsTo(graph).some((path) => serverOf(reader, path));
  return isServed ? null : () => insert(graph, link, linkOf);
}

/** Put the node behind what a link comes from, and let all that was linked to that come behind it. */
function insert(graph, link, linkOf) {
  const origin = link.originIsIoNode ? graph.inputNode : graph.getNodeById(link.origin_id);
  const output = link.originIsIoNode ? origin.slots[link.origin_slot] : origin.outputs[link.origin_slot];
  const links = [...(output.linkIds ?? output.links)].map(linkOf).filter((one) => one && !one.targetIsIoNode);
  const server = LiteGraph.createNode(SERVER);
  graph.add(server);
  place(server, link.originIsIoNode ? graph.getNodeById(link.target_id) : origin);
  for (const { target_id: id, target_slot: slot } of links) server.connect(0, graph.getNodeById(id), slot);
  if (link.originIsIoNode) output.connect(server.inputs[0], server);
  else origin.connect(link.origin_slot, server, 0);
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
