/** The prompt boxes of a node as the page shows them: finding one, and changing its text so that it can be undone. */

/** Whether a widget of a node is a box of several lines. */
const isBox = (widget) => widget.type === "customtext";

/** Whether a canvas shows the graph of a node: ids repeat between a workflow and its subgraphs. */
export const isShown = ({ graph }) => Boolean(graph?.list_of_graphcanvas?.length);

/**
 * @typedef {object} Box A prompt box.
 * @property {object} node The node that it is on.
 * @property {object} widget The widget of that node.
 */

/**
 * The element of a prompt box.
 * @param {Box} box The box.
 * @returns {HTMLTextAreaElement | null} Null while it is not on the page.
 */
export function areaOf({ node, widget }) {
  if (!isShown(node)) return null;
  if (widget.element?.isConnected && widget.element.tagName === "TEXTAREA") return widget.element;
  // Nodes 2.0 has elements of its own, in the order of the widgets
  const areas = [...document.querySelectorAll(`[data-node-id="${node.id}"] textarea`)];
  const boxes = node.widgets.filter(isBox);
  return areas.length === boxes.length ? (areas[boxes.indexOf(widget)] ?? null) : null;
}

/** Replace a stretch of a prompt box by a text, as typing does, and give the focus back to what had it. */
export function replaceText(box, { start, end, text }) {
  const { widget } = box;
  const area = areaOf(box);
  const focused = document.activeElement;
  if (area && !area.readOnly && !area.disabled) {
    area.focus({ preventScroll: true });
    area.setSelectionRange(start, end);
    // the only way to a change that the browser undoes
    const isDone = document.activeElement === area && typeInto(text);
    if (focused !== area) focused?.focus?.({ preventScroll: true });
    if (isDone) return;
  }
  const value = String(widget.value ?? "");
  widget.value = value.slice(0, start) + text + value.slice(end);
  widget.callback?.(widget.value);
}

/**
 * What problems of a text offer to write there, in one step.
 * @param {string} text The text.
 * @param {{start: number, end: number, fix: string}[]} issues The problems, in text order.
 * @returns {{start: number, end: number, text: string}} The stretch to replace, and by what.
 */
export function fixedText(text, issues) {
  const [start, end] = [Math.min(...issues.map((issue) => issue.start)), Math.max(...issues.map((issue) => issue.end))];
  let written = "";
  let at = start;
  for (const issue of issues) {
    written += text.slice(at, issue.start) + issue.fix;
    at = issue.end;
  }
  return { start, end, text: written };
}

/** Replace what is selected; whether that was done. */
const typeInto = (text) => (text ? document.execCommand("insertText", false, text) : document.execCommand("delete"));
