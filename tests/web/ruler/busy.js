/** Drives the ruler as ComfyUI loads it, on nodes that only look like its own, with a server that is busy at first. */
import "/comfyui/ruler.js";
import { app } from "/scripts/app.js";
import { wait } from "./wait.js";

const definitions = JSON.parse(document.getElementById("weights").textContent).definitions;

/** A node on the page: a way to type, what its ruler shows, and every message that it has shown. */
function addNode(text) {
  const widget = { name: "text", value: text, dynamicPrompts: true };
  const messages = [];
  let root = null;
  const addDOMWidget = (name, type, element, options) => {
    root = document.body.appendChild(element);
    const note = () => messages.push(...[...root.querySelectorAll(".wcr-message")].map((one) => one.textContent));
    new MutationObserver(note).observe(root, { childList: true, subtree: true });
    return { options };
  };
  const graph = { links: {}, getNodeById: () => null };
  const node = { comfyClass: "WeightedCLIPLoadPromptLoras", widgets: [widget], inputs: [], graph, addDOMWidget };
  app.extension.beforeRegisterNodeDef({}, definitions.WeightedCLIPLoadPromptLoras);
  const size = { size: [400, 200], setSize: (wanted) => (node.size = wanted) };
  app.extension.nodeCreated(Object.assign(node, size, { setDirtyCanvas: () => {} }));
  node.onAdded();
  const type = (value) => {
    widget.value = value;
    widget.callback(value);
  };
  const chips = () => [...root.querySelectorAll(".wcr-text")].map((element) => element.textContent).join(" ");
  return { type, chips, messages };
}

/** What is told to the test. */
export async function busyResults() {
  const node = addNode("a cat");
  await wait(200);
  node.type("a dog");
  await wait(3000);
  const results = { chips: node.chips(), messages: node.messages };
  const opened = ["a", "b", "c", "d"].map(addNode);
  await wait(3000);
  return { ...results, opened: opened.map((one) => one.chips()) };
}
