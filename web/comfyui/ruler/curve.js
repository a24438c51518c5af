/** A curve of what changes over the steps, as a chip shows it. */

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [28, 10];

/**
 * Draw values over the steps, from 0, or the lowest below it, to 1, or the highest above it.
 * @param {number[]} values The values, from the first step to the last.
 * @returns {SVGElement} The curve, in the colour of the text around it.
 */
export function drawCurve(values) {
  const [low, high] = [Math.min(0, ...values), Math.max(1, ...values)];
  const x = (index) => (index * WIDTH) / Math.max(1, values.length - 1);
  const y = (value) => (HEIGHT * (high - value)) / (high - low);
  const svg = document.createElementNS(SVG, "svg");
  for (const [name, value] of Object.entries({ class: "wcr-curve", viewBox: `-1 -1 ${WIDTH + 2} ${HEIGHT + 2}`, "aria-hidden": "true" })) {
    svg.setAttribute(name, value);
  }
  const line = svg.appendChild(document.createElementNS(SVG, "polyline"));
  line.setAttribute("points", values.map((value, index) => `${x(index).toFixed(2)},${y(value).toFixed(2)}`).join(" "));
  return svg;
}
