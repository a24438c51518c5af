// Lists that are so long that they scroll are stops of the Tab key in Chrome. Gradio closes them on that key, so the
// focus would be nowhere for one press: it goes to the next menu instead.
document.addEventListener(
  "keydown",
  (event) => {
    if (event.key !== "Tab") return;
    for (const list of document.querySelectorAll("[role=listbox]")) list.tabIndex = -1;
  },
  true,
);
