// Pictures of a run: in messages, and as thumbnails of image tokens.

import { count, h } from "./dom.js";

const HASH = /^[0-9a-f]{64}$/;
const SMALL = 96;

/** A function from `{picture, width, height}` to an element that shows the picture; null for what is none. */
export function createPictures(source, run) {
  return (image, className = "picture") => {
    if (!HASH.test(image?.picture ?? "")) return null;
    const [width, height] = [image.width, image.height].map((size) => (Number.isInteger(size) && size > 0 ? size : null));
    const name = width && height ? `image, ${count(width)} x ${count(height)}` : "image";
    const address = source.picture(run, image.picture);
    if (!address) return missing(`${name}: not in this page`);
    const isSmall = width && height && Math.max(width, height) < SMALL;
    const element = h("img", { class: isSmall ? `${className} small` : className, src: address, alt: name, title: name, loading: "lazy", width, height });
    element.addEventListener("error", () => element.replaceWith(missing(`${name}: cannot be shown`)));
    return element;
  };
}

function missing(text) {
  return h("span", { class: "picture-missing" }, text);
}
