/**
 * Advanced inputs on ComfyUI's canvas, which draws them like all others: hidden until a button below them, as in Nodes
 * 2.0, asks for them. One that is set or linked in a file stays in place, so that nothing acts unseen.
 */

import { say } from "./language.js";
import { after } from "./wrap.js";

/** ComfyUI's setting that shows advanced inputs everywhere. */
const ALWAYS = "Comfy.Node.AlwaysShowAdvancedWidgets";

/**
 * Hide the advanced inputs of a new node, unless there is only one, and make it lower by their rows.
 * @param {object} node A node that has all its widgets, but was not read from a file yet.
 * @param {(id: string) => unknown} settingOf Gives the value of a setting of ComfyUI.
 */
export function hideAdvanced(node, settingOf) {
  const rare = (node.widgets ?? []).filter((widget) => widget.options?.advanced);
  if (rare.length < 2) return;
  const defaults = new Map(rare.map((widget) => [widget, widget.value]));
  const [width, height] = node.size;
  const least = node.computeSize()[1];
  const used = new Set();
  let areShown = false;
  let isMeasured = false;
  // Nodes 2.0 hides them by itself, but measures all; the user may change to it and back
  const isNodes2 = () => Boolean(globalThis.LiteGraph?.vueNodesMode);
  const isHidden = () => !areShown && (isMeasured || !isNodes2()) && !settingOf(ALWAYS);
  const measure = node.computeSize;
  node.computeSize = function (...values) {
    isMeasured = true;
    const size = measure.apply(this, values);
    isMeasured = false;
    return size;
  };
  for (const widget of rare) hideWhile(() => !used.has(widget) && isHidden(), widget);

  const options = { serialize: false, canvasOnly: true };
  const toggle = () => {
    const before = node.computeSize()[1];
    areShown = !areShown;
    node.setSize([node.size[0], node.size[1] + node.computeSize()[1] - before]);
    node.setDirtyCanvas(true, true);
  };
  const button = node.addWidget("button", "advanced", null, toggle, options);
  button.serialize = false;
  const isButtonHidden = () => isNodes2() || Boolean(settingOf(ALWAYS));
  const label = () => say(areShown ? "Hide advanced inputs" : "Show advanced inputs");
  hideWhile(isButtonHidden, button);
  Object.defineProperty(button, "label", { get: label, set: () => {}, configurable: true });

  const isUsed = (widget) =>
    widget.value !== defaults.get(widget) ||
    node.inputs?.some((input) => input.widget?.name === widget.name && input.link != null);
  node.setSize([width, height + node.computeSize()[1] - least]);
  after(node, "onConfigure", () => rare.filter(isUsed).forEach((widget) => used.add(widget)));
}

/** Hide a widget from the canvas while a function says so; Nodes 2.0 asks neither property. */
function hideWhile(isHidden, widget) {
  const define = (name, get) => Object.defineProperty(widget, name, { get, set: () => {}, configurable: true });
  define("hidden", isHidden);
  if (!widget.visibility) return; // front ends before 1.58 ask for `hidden`
  const own = () => Reflect.get(Object.getPrototypeOf(widget), "visibility", widget);
  const suppressed = (visibility) => ({ ...visibility, suppression: { ...visibility.suppression, byExtension: true } });
  define("visibility", () => (isHidden() ? suppressed(own()) : own()));
}
