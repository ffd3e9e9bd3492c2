// What is in sight of the list, saved as a picture.

const DRAWN = "svg,.badge,.arrow,.type,.leaf,.scope-of,.end,.tensor,.count,.why,.flow,.to";
const PAINT = ["fill", "stroke", "stroke-width", "stroke-dasharray"];

async function savePicture(view, isPng) {
  const { width, height, x: left, y: top } = view.list.box.getBoundingClientRect();
  const paper = getComputedStyle(document.body).backgroundColor;
  const picture = svg("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` });
  picture.append(svg("rect", { width: "100%", height: "100%", fill: paper }));
  for (const element of view.list.space.querySelectorAll(DRAWN)) {
    const box = element.getBoundingClientRect(), x = box.x - left, y = box.y - top;
    if (element.matches("svg")) picture.append(copyOf(element, x, y, box));
    else if (box.width && element.textContent) picture.append(...textOf(element, x, y, box));
  }
  const words = new XMLSerializer().serializeToString(picture);
  const url = URL.createObjectURL(new Blob([words], { type: "image/svg+xml" }));
  if (!isPng) { download(url, "graphpatch.svg"); return; }
  const image = new Image(), canvas = document.createElement("canvas");
  image.src = url;
  await image.decode();
  canvas.width = width * 2;
  canvas.height = height * 2;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob(blob => download(URL.createObjectURL(blob), "graphpatch.png"));
}

// A text of a row as SVG, line by line as it is drawn; that of a badge on its ground.
function textOf(element, x, y, box) {
  const style = getComputedStyle(element), isBadge = element.matches(".badge");
  const { width, height } = box;
  const ground = svg("rect", { x, y, width, height, rx: 4, fill: style.backgroundColor });
  const lines = isBadge ? [{ x: 5, y: 0, text: element.textContent }] : drawnLines(element, box);
  const texts = lines.map(line => svg("text", {
    x: x + line.x, y: y + line.y + 13, fill: style.color, "font-size": style.fontSize,
    "font-family": style.fontFamily, "font-weight": style.fontWeight,
  }, line.text));
  return isBadge ? [ground, ...texts] : texts;
}

// The lines in which a text is drawn, each at its place in the box: as far as they are in sight.
function drawnLines(element, box) {
  const range = document.createRange(), lines = [];
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    [...texts.currentNode.data].reduce((at, letter) => {
      range.setStart(texts.currentNode, at);
      range.setEnd(texts.currentNode, at + letter.length);
      const place = range.getBoundingClientRect(), x = place.x - box.x, y = place.y - box.y;
      if (!lines.length || y > lines.at(-1).y + 4) lines.push({ x, y: Math.max(y, 0), text: "" });
      const last = lines.at(-1);
      if (place.right <= box.right + 1) last.text += letter;
      else if (!last.text.endsWith("…")) last.text += "…";
      return at + letter.length;
    }, 0);
  }
  return lines;
}

// A copy of an SVG of a row at its place in the picture, with the colours that it has in the page.
function copyOf(element, x, y, { height }) {
  const copy = element.cloneNode(true), parts = element.querySelectorAll("*");
  copy.setAttribute("x", x);
  copy.setAttribute("y", y);
  copy.setAttribute("height", height);
  copy.querySelectorAll("*").forEach((part, at) => {
    const style = getComputedStyle(parts[at]);
    for (const key of PAINT) part.setAttribute(key, style.getPropertyValue(key));
  });
  return copy;
}

function download(url, name) {
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
}
