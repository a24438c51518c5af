/** Drives the list of names on a box that only looks like a node's, and writes down what each key does. */
import { addCompletion } from "/comfyui/ruler/completion.js";
import { wait } from "./wait.js";

const MODIFIERS = ["shiftKey", "ctrlKey", "altKey", "metaKey"];
const KEYS = ["Enter", "Tab", "Escape", "ArrowDown"];

/** What is told to the test. */
export async function namesResults() {
  const area = document.body.appendChild(document.createElement("textarea"));
  const widget = {
    element: area,
    get value() {
      return area.value;
    },
    set value(value) {
      area.value = value;
    },
  };
  const box = { node: { graph: { list_of_graphcanvas: [{}] } }, widget };
  const lists = async () => ({ embeddings: ["easynegative", "easyone"], loras: [] });
  const boxOf = (element) => (element === area ? { box, syntax: "a1111" } : null);
  addCompletion(boxOf, lists, { isOn: () => true, changed: () => {} });
  const rows = () => [...document.querySelectorAll("#weighted-clip-names [role=option]")];
  const shown = () => rows().map((row) => `${row.firstChild.textContent}${row.ariaSelected === "true" ? " *" : ""}`);
  /** Whether the key was ours, what then stands in the box, and the names, the chosen one with a star. */
  const press = (key, init = {}) => {
    const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...init });
    return [!area.dispatchEvent(event), area.value, shown()];
  };

  area.focus();
  area.value = "a eas"; // so many letters at least
  area.setSelectionRange(5, 5);
  area.dispatchEvent(new InputEvent("input", { inputType: "insertText", bubbles: true }));
  await wait(500);
  const results = { shown: shown(), down: press("ArrowDown") };
  results.held = MODIFIERS.flatMap((name) => KEYS.map((key) => press(key, { [name]: true })));
  results.up = press("ArrowUp");
  results.enter = press("Enter");
  area.remove();
  return results;
}
