"use strict"; // for all files of the page, which are one script there

// Elements of HTML and SVG, and numbers in words.

const SVG = "http://www.w3.org/2000/svg";

const byId = id => document.getElementById(id);
const number = count => count.toLocaleString("en");
const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

function make(name, className, ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function makeButton(className, words, does) {
  const button = make("button", className, words);
  button.type = "button";
  button.addEventListener("click", does);
  return button;
}

// A button that puts something in its own place.
function moreButton(words, hidden) {
  const button = makeButton("link more", words, () => button.replaceWith(...hidden));
  return button;
}

function svg(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function drawText(x, y, words, className, anchor = "middle") {
  return svg("text", { x, y, class: className, "text-anchor": anchor }, String(words));
}

// The letter of a rule, in its colour.
function badge(rule, name) {
  const letter = String.fromCharCode(65 + rule % 26) + (Math.floor(rule / 26) || "");
  const element = make("span", "badge", letter);
  element.style.background = `var(--c${rule % 8})`;
  element.title = name;
  return element;
}
