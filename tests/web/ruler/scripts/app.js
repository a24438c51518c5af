/** What the ruler takes of ComfyUI's module of this name. */
export const app = {
  canvas: { canvas: document.body },
  registerExtension(extension) {
    this.extension = extension;
  },
};
