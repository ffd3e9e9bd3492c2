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
    if (element.matches("svg")) picture.append(copyOf(element, x, y));
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

// A text of a row as SVG; that of a badge on its ground.
function textOf(element, x, y, { width, height }) {
  const style = getComputedStyle(element), isBadge = element.matches(".badge");
  const ground = svg("rect", { x, y, width, height, rx: 4, fill: style.backgroundColor });
  const text = svg("text", {
    x: x + (isBadge ? 5 : 0), y: y + 13, fill: style.color, "font-size": style.fontSize,
    "font-family": style.fontFamily, "font-weight": style.fontWeight,
  }, element.textContent);
  return isBadge ? [ground, text] : [text];
}

// A copy of an SVG of a row at its place in the picture, with the colours that it has in the page.
function copyOf(element, x, y) {
  const copy = element.cloneNode(true), parts = element.querySelectorAll("*");
  copy.setAttribute("x", x);
  copy.setAttribute("y", y);
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
