/** The ruler's texts about a placed phrase or a region. */

import { say } from "./language.js";
import { counted } from "./words.js";

/** Its name: "“red cat”", "region 1", "region 1 “a blue dog”". */
export const titleOf = ({ name, words }) => `${say(name)}${words ? ` “${words}”` : ""}`;

/** Where it acts: "left half", "the mask", "left half and the mask", "the whole picture". */
export function whereOf({ area, has_mask: hasMask }) {
  if (area) return hasMask ? say(`${area} and the mask`) : area;
  return say(hasMask ? "the mask" : "the whole picture");
}

/** How much of the picture it covers: "50 % of the picture". */
export function shareOf({ picture }) {
  const cells = picture.flat();
  return say(`${Math.round((100 * cells.reduce((sum, cell) => sum + cell, 0)) / cells.length)} % of the picture`);
}

/** Its weights: "weight 1, outside 0", or "strength 1" of a region. */
export function weightsOf({ inside, outside, strength, area, has_mask: hasMask }) {
  if (strength !== undefined) return say(`strength ${strength}`);
  return area || hasMask ? say(`weight ${inside}, outside ${outside}`) : say(`weight ${inside}`);
}

/** When it acts, or "" for all the time. */
export function timesOf({ unit, start, end }) {
  if (unit === "steps") return say(`from step ${start} to before step ${end}`);
  return start === 0 && end === 1 ? "" : say(`from ${start} to ${end} of the way`);
}

/** In how many steps of the last sampling it acted, or "" before one. */
export const acted = ({ acted: sampled }) =>
  sampled ? say(`acted in ${sampled.steps.length} of ${counted(sampled.num_steps, "step")}`) : "";
