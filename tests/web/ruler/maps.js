/** Drives the word maps of a made-up run, and writes down what there is to see. */
import { createWordMaps } from "/comfyui/ruler/word_maps.js";

const NAMES = { "pointerenter": PointerEvent, "pointermove": PointerEvent, "keydown": KeyboardEvent };
const fire = (element, name, init = {}) => element.dispatchEvent(new NAMES[name](name, { bubbles: true, ...init }));

/** Two pictures of 2 rows and 3 columns, and two words: "cat" is read in the left column, "a" everywhere a little. */
const RUN = {
  words: ["cat", "a"],
  rows: 2,
  columns: 3,
  num_pictures: 3,
  largest: [[0.5, 0.1], [0.2, 0.4]],
  maps: btoa(String.fromCharCode(255, 0, 0, 255, 0, 0, ...Array(6).fill(255), ...Array(6).fill(255), ...Array(6).fill(0))),
  is_one_scale: true,
  previews: [null, null],
};

export async function mapsResults() {
  const asked = [];
  const drawing = createWordMaps((file) => asked.push(file));
  document.body.append(drawing.element);
  const find = (selector) => drawing.box.querySelector(selector);
  const lightOf = (column) => {
    const canvas = find("canvas");
    const cell = canvas.width / 3;
    return canvas.getContext("2d").getImageData((column + 0.5) * cell, canvas.height / 4, 1, 1).data[0];
  };
  const lights = () => [0, 1, 2].map(lightOf);
  const ranked = () => [...find(".wcr-ranked").children].map((one) => one.textContent);
  const results = {};
  drawing.show(RUN);
  const [cat, a] = find(".wcr-chips").children;
  fire(cat, "pointerenter");
  results.cat = lights();
  a.focus();
  results.a = lights();
  results.label = find("canvas").ariaLabel;
  a.click();
  a.blur();
  results.kept = [lights(), a.ariaPressed, find("canvas").ariaLabel];
  find("canvas").focus();
  results.middle = ranked();
  fire(find("canvas"), "keydown", { key: "ArrowLeft" });
  fire(find("canvas"), "keydown", { key: "ArrowLeft" });
  results.left = ranked();
  results.told = drawing.element.querySelector("[role=status]").textContent;
  find("canvas").blur();
  results.gone = ranked();
  const { left, top, width, height } = find("canvas").getBoundingClientRect();
  fire(find("canvas"), "pointermove", { clientX: left + width - 1, clientY: top + height - 1 });
  results.corner = ranked();
  results.buttons = [...drawing.box.querySelectorAll(".wcr-head button")].map((button) => button.disabled);
  drawing.box.querySelectorAll(".wcr-head button")[1].click();
  results.next = [find(".wcr-head .wcr-label").textContent, [...drawing.box.querySelectorAll(".wcr-head button")].map((button) => button.disabled)];
  fire(find(".wcr-chips").children[0], "pointerenter");
  results.second = lights();
  drawing.show({ ...RUN, is_one_scale: false });
  fire(find(".wcr-chips").children[1], "pointerenter");
  results.flat = lights();
  results.asked = asked.length;
  drawing.show({ ...RUN, words: ["<img src=x onerror=document.title='bad'>", "a"], previews: [{ filename: "x y.png", subfolder: "", type: "temp" }] });
  results.file = asked;
  results.title = document.title;
  drawing.show(null);
  results.empty = drawing.box.childElementCount;
  drawing.remove();
  drawing.element.remove();
  return results;
}
