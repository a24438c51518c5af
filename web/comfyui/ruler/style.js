/** The ruler's style sheet. Colours that depend on the page's theme are variables, which draw.js sets. */

const STYLE = `
.weighted-clip-ruler {
  --wcr-background: var(--comfy-input-bg, #222);
  --wcr-foreground: var(--input-text, #ddd);
  font: 12px/1.45 Inter, system-ui, "Segoe UI", Roboto, sans-serif;
  color: var(--wcr-foreground);
  user-select: text;
}
/* in Nodes 2.0, the colours of the widgets around it */
.lg-node .weighted-clip-ruler {
  --wcr-background: var(--component-node-widget-background, var(--comfy-input-bg, #222));
  --wcr-foreground: var(--component-node-foreground, var(--input-text, #ddd));
}
.lg-node-widget:has(> .weighted-clip-ruler) { grid-template-rows: 1fr auto; row-gap: 4px; }
.lg-node-widget > .weighted-clip-ruler { grid-column: 2 / -1; min-width: 0; }
.weighted-clip-ruler[hidden], .weighted-clip-ruler [hidden] { display: none; }
.wcr-box { background: var(--wcr-background); border-radius: 6px; overflow: hidden; overflow-wrap: anywhere; }
.wcr-box:empty { display: none; }
.wcr-scroll { max-height: 240px; }
.wcr-scroll, .wcr-problems {
  overflow-y: auto; scrollbar-width: thin; scrollbar-color: var(--wcr-line) transparent;
}
.wcr-section { padding: 7px 8px 2px; }
.wcr-section + .wcr-section { border-top: 1px solid var(--wcr-faint); }
.wcr-head, .wcr-bar { display: flex; flex-wrap: wrap; align-items: center; gap: 2px 12px; }
.wcr-head, .wcr-bar { color: var(--wcr-muted); font-size: 11px; }
.wcr-head { padding-bottom: 4px; }
.wcr-label { color: var(--wcr-text); font-weight: 600; }
.wcr-bar { padding: 5px 8px 6px; }
.wcr-meter { flex: 0 0 72px; height: 4px; border-radius: 2px; background: var(--wcr-line); overflow: hidden; }
.wcr-meter > i { display: block; height: 100%; border-radius: 2px; background: var(--wcr-accent); }
.wcr-count { color: var(--wcr-text); font-variant-numeric: tabular-nums; }
.wcr-message { color: var(--wcr-problem); }
.wcr-chips { display: flex; flex-wrap: wrap; align-items: center; gap: 5px 3px; padding-bottom: 5px; }
.wcr-word { display: inline-flex; flex-wrap: wrap; max-width: 100%; row-gap: 5px; }
.wcr-chip {
  display: inline-flex; align-items: baseline; box-sizing: border-box; min-width: 16px; max-width: 100%;
  justify-content: center; padding: 0 6px; border: 1px solid transparent; border-radius: 5px; line-height: 19px;
}
.wcr-joined { border-start-end-radius: 0; border-end-end-radius: 0; padding-inline-end: 2px; min-width: 0; }
.wcr-joins { border-start-start-radius: 0; border-end-start-radius: 0; padding-inline-start: 2px; min-width: 0; }
.wcr-joins { border-inline-start-color: var(--wcr-background); }
.wcr-text { overflow: clip; overflow-clip-margin: 4px; text-overflow: ellipsis; white-space: pre; unicode-bidi: isolate; }
.wcr-note { margin-inline-start: 4px; font-size: 10px; line-height: 1; font-variant-numeric: tabular-nums; white-space: nowrap; }
.wcr-curve { flex: none; align-self: center; width: 30px; height: 12px; margin-inline-start: 4px; fill: none; stroke: currentColor; stroke-width: 1.5; }
.wcr-embedding { border-style: dashed; border-color: currentColor; font-style: italic; }
.wcr-tag { box-shadow: inset 0 0 0 1px var(--wcr-line); color: var(--wcr-muted); }
.wcr-hidden .wcr-text { text-decoration: line-through; text-decoration-thickness: 1.5px; }
.wcr-hidden { border-color: var(--wcr-line); }
.wcr-bound { box-shadow: inset 0 -3px 0 var(--wcr-phrase); }
.wcr-problem-here { cursor: help; }
.wcr-placed { cursor: help; border-color: var(--wcr-accent); }
.wcr-area {
  flex: none; box-sizing: content-box; border: 1px solid var(--wcr-muted); border-radius: 2px; image-rendering: pixelated;
  aspect-ratio: var(--wcr-ratio, 1); height: min(var(--wcr-height), 1.6 * var(--wcr-height) / var(--wcr-ratio, 1));
}
.wcr-placed .wcr-area { --wcr-height: 11px; align-self: center; margin-inline-start: 4px; }
.wcr-places { padding-bottom: 4px; }
.wcr-place {
  display: flex; flex-wrap: wrap; align-items: center; gap: 2px 10px; padding: 2px 0; color: var(--wcr-muted); font-size: 11px;
}
.wcr-place .wcr-area { --wcr-height: 24px; }
.wcr-unknown { line-height: 24px; text-align: center; }
.wcr-time { position: relative; flex: 0 0 72px; height: 6px; border-radius: 2px; background: var(--wcr-line); overflow: hidden; }
.wcr-time > i { position: absolute; height: 100%; background: var(--wcr-accent); }
.wcr-acted { color: var(--wcr-text); }
.wcr-map { display: block; width: 100%; max-width: 288px; margin: 0 auto 4px; border-radius: 3px; cursor: crosshair; }
.wcr-ranked { display: flex; flex-wrap: wrap; gap: 0 10px; min-height: 18px; padding-bottom: 4px; color: var(--wcr-text); }
button.wcr-chip { font: inherit; color: var(--wcr-text); background: var(--wcr-surface); border-color: var(--wcr-surface); }
button.wcr-chip.wcr-placed { border-color: var(--wcr-accent); }
button.wcr-chip[aria-pressed="true"] { background: var(--wcr-line); }
.wcr-editable, .wcr-offered { cursor: pointer; }
.wcr-offered:hover { border-color: var(--wcr-line); }
.wcr-offered[aria-pressed="true"] { border-color: var(--wcr-accent); box-shadow: inset 0 0 0 1px var(--wcr-accent); }
.wcr-input { font-weight: 600; }
.wcr-waved {
  text-decoration: underline wavy 1px var(--wcr-chip-wave); text-underline-offset: 3px; text-decoration-skip-ink: none;
}
.weighted-clip-ruler :focus-visible { outline: 2px solid var(--wcr-accent); outline-offset: 1px; }
.wcr-border {
  display: inline-flex; gap: 6px; padding: 0 5px 0 7px; margin-inline: 3px 1px; line-height: 19px; white-space: nowrap;
  border-inline-start: 2px solid var(--wcr-muted);
  color: var(--wcr-muted); font-size: 10.5px; font-variant-numeric: tabular-nums;
}
.wcr-border b { letter-spacing: 0.04em; font-weight: 600; color: var(--wcr-text); }
.wcr-more { display: flex; align-items: center; gap: 8px; padding: 2px 8px 6px; color: var(--wcr-muted); }
.wcr-button {
  font: inherit; color: var(--wcr-text); background: var(--wcr-surface); border: 1px solid var(--wcr-line);
  border-radius: 5px; padding: 1px 8px; cursor: pointer;
}
.wcr-problems { max-height: 116px; padding: 0 0 4px; }
.wcr-problems p {
  margin: 0 8px 3px; padding: 0 0 0 7px; border-inline-start: 3px solid var(--wcr-wave); color: var(--wcr-problem);
}
.wcr-settings { display: flex; flex-wrap: wrap; gap: 1px 12px; max-height: 116px; overflow-y: auto; padding: 2px 8px 6px; }
.wcr-settings { color: var(--wcr-text); font-size: 11px; }
.wcr-settings b { color: var(--wcr-muted); font-weight: 400; }
.wcr-problems .wcr-button { margin-inline-start: 8px; font-size: 11px; }
.wcr-stale .wcr-scroll, .wcr-stale .wcr-problems { opacity: 0.45; filter: grayscale(1); }
.wcr-asleep { opacity: 0.4; }
.wcr-unseen {
  position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap;
}
.weighted-clip-tooltip {
  position: fixed; z-index: 100000; max-width: 340px; padding: 5px 9px; border-radius: 6px; pointer-events: none;
  font: 12px/1.45 Inter, system-ui, "Segoe UI", Roboto, sans-serif; white-space: pre-line; overflow-wrap: anywhere;
  box-shadow: 0 3px 12px rgb(0 0 0 / 0.4);
}
.weighted-clip-slider {
  position: fixed; z-index: 100000; display: flex; align-items: center; gap: 8px; padding: 4px 9px;
  border: 1px solid; border-radius: 6px; font: 12px/1.45 Inter, system-ui, "Segoe UI", Roboto, sans-serif;
  box-shadow: 0 3px 12px rgb(0 0 0 / 0.4);
}
#weighted-clip-names {
  position: fixed; z-index: 100000; box-sizing: border-box; max-width: min(420px, 90vw); max-height: 226px; padding: 3px;
  overflow-y: auto; scrollbar-width: thin; scrollbar-color: var(--wcr-line) transparent;
  background: var(--wcr-background); color: var(--wcr-text); border: 1px solid var(--wcr-line); border-radius: 6px;
  font: 12px/1.45 Inter, system-ui, "Segoe UI", Roboto, sans-serif; box-shadow: 0 3px 12px rgb(0 0 0 / 0.4);
}
#weighted-clip-names > div {
  display: flex; justify-content: space-between; align-items: baseline; gap: 14px; padding: 2px 7px; border-radius: 4px;
  cursor: pointer; overflow-wrap: anywhere;
}
#weighted-clip-names small { flex: none; color: var(--wcr-muted); font-size: 10px; }
#weighted-clip-offer {
  position: fixed; z-index: 1000; inset: auto 0 72px; display: flex; flex-wrap: wrap; align-items: center; gap: 8px;
  width: fit-content; max-width: 90vw; margin: 0 auto; padding: 8px 12px; border-radius: 8px;
  background: var(--comfy-menu-bg, #353535); color: var(--input-text, #ddd); border: 1px solid var(--border-color, #4e4e4e);
  font: 13px/1.45 Inter, system-ui, "Segoe UI", Roboto, sans-serif; box-shadow: 0 3px 12px rgb(0 0 0 / 0.4);
}
#weighted-clip-offer ul { margin: 0; padding-inline-start: 20px; max-width: 640px; overflow-wrap: anywhere; }
#weighted-clip-offer button {
  font: inherit; color: inherit; background: var(--comfy-input-bg, #222); border: 1px solid var(--border-color, #4e4e4e);
  border-radius: 5px; padding: 2px 10px; cursor: pointer;
}
#weighted-clip-names > div:hover { box-shadow: inset 0 0 0 1px var(--wcr-accent); }
#weighted-clip-names > [aria-selected="true"] { background: var(--wcr-accent); color: var(--wcr-chosen); }
#weighted-clip-names > [aria-selected="true"] small { color: inherit; }
.weighted-clip-slider input { width: 140px; margin: 0; }
.weighted-clip-slider output { min-width: 30px; font-variant-numeric: tabular-nums; text-align: end; }
`;

/** Add the style sheet to the page, once. */
export function addStyle() {
  const id = "weighted-clip-ruler-style";
  if (document.getElementById(id)) return;
  document.head.append(Object.assign(document.createElement("style"), { id, textContent: STYLE }));
}

/** Call a function whenever the theme of the page may have changed. */
export function onTheme(then) {
  const themes = new MutationObserver(() => then());
  for (const element of [document.documentElement, document.body]) {
    themes.observe(element, { attributeFilter: ["style", "class"] });
  }
}
