/** What the ruler takes of ComfyUI's module of this name. */
export const api = { fetchApi: (route, options) => fetch(route, options), addEventListener: () => {} };
