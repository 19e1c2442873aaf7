// Elements that several parts of the page make.

const SVG = "http://www.w3.org/2000/svg";

/** A button of a class, with what it contains. */
export function button(name, ...content) {
  const element = document.createElement("button");
  element.type = "button";
  element.className = name;
  element.append(...content);
  return element;
}

/** One of the icons of index.html. */
export function icon(name) {
  const [svg, use] = ["svg", "use"].map((tag) => document.createElementNS(SVG, tag));
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}
