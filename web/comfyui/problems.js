/**
 * Shows below the widgets of a node how many tokens its prompt became and every problem in it, once the node has run.
 * Reads the view that the node sends (weighting/view.py). The node works the same without this script.
 */
import { app } from "../../scripts/app.js";

const STYLE = `
.weighted-clip-problems { font: 12px/1.4 sans-serif; color: var(--input-text, #ddd); user-select: text; }
.weighted-clip-problems > div { background: var(--comfy-input-bg, #222); border-radius: 4px; overflow: hidden; }
.weighted-clip-problems p { margin: 0; padding: 3px 8px; border-left: 3px solid transparent; overflow-wrap: anywhere; }
.weighted-clip-problems [role="status"] { max-height: 160px; overflow-y: auto; scrollbar-width: thin; }
.weighted-clip-problems [role="status"] p { border-color: #d98200; }
.weighted-clip-problems [role="status"] + div { opacity: 0.8; }
`;

/** Pixels around the text on the canvas, as around a text box. */
const MARGIN = 10;

/** A paragraph of plain text. */
const paragraph = (text) => Object.assign(document.createElement("p"), { textContent: text });

/** The number of tokens of a view, in words. */
const countTokens = ({ chunks, num_tokens: count }) =>
  chunks.length === 1 ? `${count}/${chunks[0].capacity} tokens` : `${count} tokens in ${chunks.length} chunks`;

/** Give a node the widget, which has no height until there is something to show; returns what shows views. */
function addWidget(node) {
  const element = Object.assign(document.createElement("div"), { className: "weighted-clip-problems" });
  element.innerHTML = `<div><div role="status" data-capture-wheel="true"></div><div></div></div>`;
  const box = element.firstChild;
  const [problems, tokens] = box.children;
  const scrolls = () => problems.scrollHeight > problems.clientHeight;

  const options = { serialize: false, hideOnZoom: false, hideInPanel: true, margin: 0 };
  const widget = node.addDOMWidget("problems", "weighted_clip_problems", element, options);
  widget.serialize = false;
  // of fixed height: with computeLayoutSize, Nodes 2.0 gives it half of a tall node's free space
  let height = 0;
  widget.computeSize = () => [0, height];
  widget.computeLayoutSize = undefined;
  // the height follows the text, which wraps where the node is narrow
  new ResizeObserver(() => {
    if (!box.offsetHeight) return; // empty, or not on the screen
    height = box.offsetHeight + 2 * MARGIN - 4; // the canvas adds 4
    widget.options.margin = MARGIN;
    problems.tabIndex = scrolls() ? 0 : -1;
    node.setDirtyCanvas(true, true);
  }).observe(box);

  // the wheel scrolls a long list; otherwise it is the canvas's
  element.addEventListener("wheel", (event) => {
    event.stopPropagation();
    if (scrolls() && !event.ctrlKey) return;
    event.preventDefault();
    app.canvas.canvas.dispatchEvent(new WheelEvent(event.type, event));
  });

  return (views) => {
    problems.replaceChildren(...views.flatMap((view) => view.issues.map((issue) => paragraph(issue.message))));
    tokens.replaceChildren(paragraph(views.map(countTokens).join(", ")));
  };
}

app.registerExtension({
  name: "WeightedCLIP.Problems",

  setup() {
    document.head.append(Object.assign(document.createElement("style"), { textContent: STYLE }));
  },

  nodeCreated(node) {
    // every node that reads a prompt has a report
    if (!node.comfyClass?.startsWith("WeightedCLIP") || !node.outputs?.some((slot) => slot.name === "report")) return;
    const show = addWidget(node);
    const { onExecuted } = node;
    node.onExecuted = function (output, ...others) {
      onExecuted?.call(this, output, ...others);
      if (output?.weighted_clip) show(output.weighted_clip);
    };
  },

  /** Outputs that are back after another workflow was open. Only for the same text, as ids repeat between workflows. */
  onNodeOutputsUpdated(outputs) {
    for (const [id, output] of Object.entries(outputs)) {
      const text = output?.weighted_clip?.[0].text;
      const node = text === undefined ? null : app.graph.getNodeById(id);
      if (node?.widgets?.some((widget) => widget.value === text)) node.onExecuted?.(output);
    }
  },
});
