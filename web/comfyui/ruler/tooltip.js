/** The message of a problem, or the place of a phrase, next to the chip under the pointer or with the focus. One for the whole page. */

import { css } from "./colors.js";
import { make, standBelow } from "./elements.js";

const CHIP = "[data-problem], [data-place]";

let open = null;

/** Let the chips of a ruler show their `data-problem` and `data-place`, in the colours that `theme()` gives. */
export function addTooltip(root, theme) {
  const chipOf = (event) => event.target.closest?.(CHIP);
  const show = (event) => chipOf(event) && openAt(chipOf(event), theme());
  root.addEventListener("pointerover", show);
  root.addEventListener("focusin", show);
  root.addEventListener("pointerout", (event) => chipOf(event) && closeTooltip());
  root.addEventListener("focusout", closeTooltip);
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !open) return;
    event.stopPropagation();
    closeTooltip();
  });
}

/** Remove the tooltip. */
export function closeTooltip() {
  open?.remove();
  open = null;
  window.removeEventListener("wheel", closeTooltip, true);
}

function openAt(chip, theme) {
  closeTooltip();
  open = make("div", "weighted-clip-tooltip", [chip.dataset.problem, chip.dataset.place].filter(Boolean).join("\n"));
  // read by way of the chip's aria-describedby
  open.setAttribute("aria-hidden", "true");
  open.style.cssText = `background: ${css(theme.text)}; color: ${css(theme.background)}`;
  standBelow(open, chip);
  // the position is wrong once the canvas moves
  window.addEventListener("wheel", closeTooltip, { capture: true, passive: true });
}
