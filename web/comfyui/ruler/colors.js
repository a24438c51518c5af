/**
 * Colours of the token ruler, by the rules of the drawn pictures (web/pictures/style.py), on any background and
 * text colour the host's theme has. A colour is [red, green, blue] from 0 to 255.
 */

/** Contrast ratio that WCAG 2.1 level AA requires for text. */
const MIN_CONTRAST = 4.5;
/** The same for lines. */
const MIN_LINE_CONTRAST = 3;
/** Colours of phrases, which colour-blind people can tell apart (Okabe and Ito, 2008). */
const PHRASES = [[230, 159, 0], [86, 180, 233], [0, 158, 115], [204, 121, 167], [240, 228, 66], [213, 94, 0]];

/** The colours that do not follow from the host's: those of the pictures. */
const ACCENTS = {
  dark: {
    up: [178, 76, 26],
    down: [40, 108, 198],
    negative: [134, 70, 200],
    problem: [255, 148, 148],
    wave: [255, 77, 109],
    accent: [122, 178, 176],
  },
  light: {
    up: [240, 130, 76],
    down: [86, 156, 240],
    negative: [182, 134, 236],
    problem: [176, 16, 44],
    wave: [226, 32, 74],
    accent: [42, 122, 120],
  },
};
const NEAR_BLACK = [12, 13, 15];
const WHITE = [255, 255, 255];

/** All colours by name, for the background of the chips and a text colour on it. */
export function themeOf(background, text) {
  const accents = luminance(background) < luminance(text) ? ACCENTS.dark : ACCENTS.light;
  return {
    ...accents,
    background,
    surface: mix(background, text, 0.09),
    line: mix(background, text, 0.3),
    faint: mix(background, text, 0.15),
    text: readable(background, text),
    muted: readable(background, mix(background, text, 0.72), text),
    problem: toned(background, accents.problem, MIN_CONTRAST),
  };
}

/** Colour of a chip: plain at 1, warmer above, cooler below, violet below 0; the further away, the fuller. */
export function weightColor(weight, theme) {
  if (Number.isNaN(weight) || weight === 1) return theme.surface;
  if (weight < 0) return mix(theme.surface, theme.negative, 0.45 + 0.55 * share(-weight));
  return mix(theme.surface, weight > 1 ? theme.up : theme.down, share(Math.abs(weight - 1)));
}

/** The first wanted colour that is readable on a background, else white or near-black, whichever is better. */
export function readable(background, ...wanted) {
  const good = wanted.find((color) => contrast(background, color) >= MIN_CONTRAST);
  return good ?? (contrast(background, WHITE) >= contrast(background, NEAR_BLACK) ? WHITE : NEAR_BLACK);
}

/** Colour of the wavy line on a chip of some background. */
export const waveColor = (background, theme) => toned(background, theme.wave, MIN_LINE_CONTRAST);

/** Colour of the line below a bound phrase, by its number from 1. */
export const phraseColor = (number, theme) => toned(theme.surface, PHRASES[(number - 1) % PHRASES.length], MIN_LINE_CONTRAST);

/** A colour made darker or lighter, just enough for a contrast with its background. */
function toned(background, color, wanted) {
  const end = readable(background);
  for (let amount = 0; amount < 1; amount += 0.1) {
    const tone = mix(color, end, amount);
    if (contrast(background, tone) >= wanted) return tone;
  }
  return end;
}

/** `amount` of the second colour in the first, from 0 to 1. */
const mix = (first, second, amount) => first.map((value, i) => Math.round(value + (second[i] - value) * amount));

/** Contrast ratio of two colours by WCAG 2.1, from 1 to 21. */
export function contrast(first, second) {
  const [darker, lighter] = [luminance(first), luminance(second)].sort((a, b) => a - b);
  return (lighter + 0.05) / (darker + 0.05);
}

/** For CSS. */
export const css = (color) => `rgb(${color.join(", ")})`;

/** Any CSS colour, as returned by getComputedStyle; null for one that is not opaque or unknown. */
export function parseColor(text) {
  const simple = /^rgba?\((\d+), (\d+), (\d+)(?:, 1)?\)$/.exec(text);
  if (simple) return simple.slice(1).map(Number);
  if (!text || !CSS.supports("color", text)) return null;
  const context = new OffscreenCanvas(1, 1).getContext("2d");
  context.fillStyle = text;
  context.fillRect(0, 0, 1, 1);
  const [red, green, blue, alpha] = context.getImageData(0, 0, 1, 1).data;
  return alpha === 255 ? [red, green, blue] : null;
}

/** The colours that the page gives an element; null while it is not on the page. */
export function pageTheme(element) {
  if (!element.isConnected) return null;
  const style = getComputedStyle(element);
  const [background, text] = [parseColor(style.backgroundColor), parseColor(style.color)];
  return background && text ? themeOf(background, text) : null;
}

/** Give an element some colours of a theme, as variables of its style. */
export function dress(element, theme, names) {
  for (const name of names) element.style.setProperty(`--wcr-${name}`, css(theme[name]));
}

/** 0 at distance 0, 0.2 at 0.1, 0.68 at 0.5, 0.9 at 1, approaching 1. */
const share = (distance) => 1 - Math.exp(-2.3 * distance);

const luminance = (color) => {
  const [red, green, blue] = color.map((channel) => {
    const value = channel / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
