/** Putting nodes of one class in the place of others, with their links, values and looks. */

/**
 * Replace nodes, by one change that can be undone. Inputs, widgets and outputs are matched by name.
 * @param {object[]} nodes The nodes.
 * @param {string} type The class of the new ones.
 */
export function replaceNodes(nodes, type) {
  const graphs = new Set(nodes.map(({ graph }) => graph));
  for (const graph of graphs) graph.beforeChange();
  for (const node of nodes) replaceNode(node, LiteGraph.createNode(type));
  for (const graph of graphs) graph.afterChange();
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
  const links = (ids) => (ids ?? []).map((id) => graph.getLink?.(id) ?? graph.links[id]).filter(Boolean);
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
}
