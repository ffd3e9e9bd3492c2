"use strict"; // for all files of the page, which are one script there

// Elements of HTML and SVG, and numbers in words.

const SVG = "http://www.w3.org/2000/svg";

const byId = id => document.getElementById(id);
const number = count => count.toLocaleString("en");
const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

// An element with its attributes, or its class alone, and what is in it.
function fill(element, attributes, children) {
  const entries = typeof attributes === "string" ? { class: attributes } : attributes;
  for (const [key, value] of Object.entries(entries)) {
    if (value !== "") element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

const make = (name, attributes, ...children) =>
  fill(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) =>
  fill(document.createElementNS(SVG, name), attributes, children);

function makeButton(attributes, words, does) {
  const button = make("button", attributes, words);
  button.type = "button";
  button.addEventListener("click", does);
  return button;
}

// A button that puts something in its own place.
function moreButton(words, hidden) {
  const button = makeButton("link more", words, () => button.replaceWith(...hidden));
  return button;
}

function drawText(x, y, words, className, anchor = "middle") {
  return svg("text", { x, y, class: className, "text-anchor": anchor }, String(words));
}

// The letter of a rule, in its colour.
function badge(rule, title) {
  const letter = String.fromCharCode(65 + rule % 26) + (Math.floor(rule / 26) || "");
  const element = make("span", { class: "badge", title }, letter);
  element.style.background = `var(--c${rule % 8})`;
  return element;
}
