// What the page's modules need of a browser while they load.

globalThis.location = { origin: "http://head:8080", pathname: "/", hash: "", search: "" };
globalThis.matchMedia = () => ({ matches: true, addEventListener() {} });
