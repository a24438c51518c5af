/** Draws placed phrases and regions (hosts/comfy/placing/placed_view.py): small pictures of their areas, their times, and where they acted. */

import { css } from "./colors.js";
import { make } from "./elements.js";
import { say } from "./language.js";
import { acted, shareOf, timesOf, titleOf, weightsOf, whereOf } from "./place_words.js";

/**
 * @typedef {object} Place A placed phrase or a region.
 * @property {string} name Its name: the phrase in quotation marks, or "region 1".
 * @property {string} [words] The first words of a region, or "".
 * @property {number} [strength] Its strength.
 * @property {string} node Id of the node that has placed it.
 * @property {number} [inside] Weight of a phrase in its area.
 * @property {number} [outside] Its weight outside.
 * @property {string} area The area as typed, or "".
 * @property {boolean} has_mask Whether it has a mask.
 * @property {number[][] | null} picture Rows of its mask, from 0 to 1; null if unknown.
 * @property {number} start When it begins.
 * @property {number} end When it ends.
 * @property {"percent" | "steps"} unit What times count.
 * @property {{steps: number[], num_steps: number} | null} [acted] Steps of the last sampling in which it acted, from 0.
 */

/**
 * A small picture of an area: what is in it is filled.
 * @param {number[][]} picture Rows from the top, each from the left; 1 is within the area.
 * @param {object} theme The colours.
 * @param {string} [label] For a screen reader; without one it is decoration.
 * @returns {HTMLCanvasElement} A pixel for each number.
 */
export function drawArea(picture, theme, label = "") {
  const [height, width] = [picture.length, picture[0].length];
  const described = label ? { role: "img", ariaLabel: label } : { ariaHidden: "true" };
  const canvas = make("canvas", "wcr-area", "", { width, height, ...described });
  canvas.style.setProperty("--wcr-ratio", String(width / height));
  const image = new ImageData(width, height);
  for (const [y, row] of picture.entries()) {
    for (const [x, share] of row.entries()) image.data.set([...theme.accent, Math.round(255 * share)], 4 * (y * width + x));
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** Mark a chip that belongs to placed phrases. */
export function markPlaced(element, places, theme, idOf) {
  element.classList.add("wcr-placed");
  element.tabIndex = 0;
  element.dataset.place = places.map((place) => sentence(place)).join("\n");
  element.setAttribute("aria-describedby", places.map(idOf).join(" "));
  element.append(...places.filter(({ picture }) => picture).map(({ picture }) => drawArea(picture, theme)));
}

/**
 * The list of placed phrases and regions below the words.
 * @param {Place[]} places The phrases and regions.
 * @param {object} theme The colours.
 * @param {(place: Place) => string} idOf Id of the row of one.
 * @returns {HTMLElement} The list.
 */
export function drawPlaces(places, theme, idOf) {
  const list = make("div", "wcr-places", "", { role: "list", ariaLabel: say("Places") });
  for (const place of places) {
    const row = list.appendChild(make("div", "wcr-place", "", { role: "listitem", id: idOf(place) }));
    row.append(place.picture ? drawArea(place.picture, theme, shareOf(place)) : make("span", "wcr-area wcr-unknown", "?"));
    row.append(make("span", "wcr-label", titleOf(place)));
    if (isPart(place)) continue;
    row.append(make("span", "", whereOf(place)), make("span", "", weightsOf(place)));
    const strip = drawTimes(place);
    if (strip) row.append(strip);
    const times = timesOf(place);
    if (times) row.append(make("span", "", times));
    if (place.acted) row.append(make("span", place.acted.steps.length ? "wcr-acted" : "wcr-message", acted(place)));
  }
  return list;
}

/** A strip of the way from noise to picture, filled where a phrase or region acts; null while the number of steps is unknown. */
function drawTimes(place) {
  const parts = partsOf(place);
  if (!parts) return null;
  const strip = make("span", "wcr-time", "", { ariaHidden: "true" });
  for (const [start, end] of parts) {
    const part = strip.appendChild(make("i"));
    part.style.left = `${100 * start}%`;
    part.style.width = `${100 * (end - start)}%`;
  }
  return strip;
}

/** Parts of the way, from 0 to 1, in which a phrase or region acts: as sampled, else as wanted. */
function partsOf({ acted: sampled, unit, start, end }) {
  if (!sampled) return unit === "percent" ? [[start, end]] : null;
  return sampled.steps.map((step) => [step / sampled.num_steps, (step + 1) / sampled.num_steps]);
}

/** Whether it is the place of a part of a prompt between ANDs (weighting/reading/timed_view.py), which has only a name. */
const isPart = (place) => place.unit === undefined;

/** All about a place in one line. */
export function sentence(place) {
  if (isPart(place)) return place.name;
  return [`${titleOf(place)}: ${whereOf(place)}`, weightsOf(place), timesOf(place), acted(place)].filter(Boolean).join(", ");
}
