/** The page of `tilewright demo web`: a drawing in, probabilities of digits out, with the times of the kernels. */
import { load } from "./digits/index.js";

const SIZE = 16;
const at = (id) => document.getElementById(id);
const canvas = at("drawing");
const pen = canvas.getContext("2d", { willReadFrequently: true });
let last;

function clear() {
  pen.fillStyle = "black";
  pen.fillRect(0, 0, canvas.width, canvas.height);
}

/** The drawing as the model was trained: white on black, its strokes in the middle, 16 pixels wide. */
function pixels() {
  const { width, height } = canvas;
  const { data } = pen.getImageData(0, 0, width, height);
  let [left, top, right, bottom] = [width, height, -1, -1];
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      if (data[4 * (y * width + x)] > 40) [left, top, right, bottom] = [Math.min(left, x), Math.min(top, y), Math.max(right, x), Math.max(bottom, y)];
    }
  }
  if (right < 0) return undefined;
  const side = Math.max(right - left, bottom - top) * 1.15 + 1;
  const small = new OffscreenCanvas(SIZE, SIZE).getContext("2d");
  small.imageSmoothingQuality = "high";
  small.drawImage(canvas, (left + right - side) / 2, (top + bottom - side) / 2, side, side, 0, 0, SIZE, SIZE);
  const found = small.getImageData(0, 0, SIZE, SIZE).data;
  return Float32Array.from({ length: SIZE * SIZE }, (_, n) => found[4 * n] / 255);
}

function row(table, cells, isBest = false) {
  const line = table.insertRow();
  line.className = isBest ? "best" : "";
  for (const cell of cells) line.insertCell().append(cell);
}

function bar(share) {
  const element = document.createElement("span");
  element.className = "bar";
  element.style.width = `${Math.round(share * 160)}px`;
  return element;
}

/** Where the model runs, and why not on a GPU. */
function placeOf({ device, level, threads }) {
  if (device.kind === "webgpu") return `WebGPU, ${device.name}`;
  return `WebAssembly (${level}), ${threads} thread${threads > 1 ? "s" : ""}`;
}

async function classify(model) {
  const image = pixels();
  if (image === undefined) return;
  const begin = performance.now();
  const { probabilities } = await model.run({ image });
  const time = performance.now() - begin;
  const best = probabilities.data.indexOf(Math.max(...probabilities.data));
  at("digits").replaceChildren();
  probabilities.data.forEach((share, digit) => row(at("digits"), [String(digit), bar(share), `${(100 * share).toFixed(1)}%`], digit === best));
  at("message").textContent = `This is a ${best}: ${time.toFixed(2)} ms by ${placeOf(model)}`;
  const kernels = await model.profile({ image }, 20);
  at("kernels").replaceChildren();
  for (const { nodes, milliseconds } of kernels) row(at("kernels"), [nodes.join(", "), `${(1000 * milliseconds).toFixed(0)} µs`]);
}

try {
  const model = await load(undefined, { onProgress: ({ loaded, total }) => { at("message").textContent = `${loaded} of ${total} bytes of weights`; } });
  at("message").textContent = "The model is ready.";
  if (model.device.reason) at("place").textContent = `WebAssembly runs the model: ${model.device.reason}.`;
  clear();
  canvas.addEventListener("pointerdown", (event) => { last = [event.offsetX, event.offsetY]; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (last === undefined) return;
    Object.assign(pen, { strokeStyle: "white", lineWidth: 22, lineCap: "round" });
    pen.beginPath();
    pen.moveTo(...last);
    last = [event.offsetX, event.offsetY];
    pen.lineTo(...last);
    pen.stroke();
  });
  canvas.addEventListener("pointerup", async () => { last = undefined; await classify(model); });
  at("clear").addEventListener("click", clear);
  document.documentElement.dataset.ready = "yes";
} catch (error) {
  at("message").textContent = `${error.name}: ${error.message}`;
}
