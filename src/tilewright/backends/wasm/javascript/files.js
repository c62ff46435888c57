/** Files of a package, by their URLs: fetched, or read where Node has them. */

import { TilewrightError } from "./errors.js";

/** The content of a file. */
export async function readFile(url) {
  const parts = [];
  let bytes = 0;
  for await (const part of streamOf(url)) {
    parts.push(part);
    bytes += part.byteLength;
  }
  const content = new Uint8Array(bytes);
  let place = 0;
  for (const part of parts) {
    content.set(part, place);
    place += part.byteLength;
  }
  return content;
}

/** The content of a file, part by part as it arrives. */
export async function* streamOf(url) {
  if (url.protocol === "file:") {
    const { createReadStream } = await import("node:fs");
    try {
      yield* createReadStream(url, { highWaterMark: 1 << 20 });
    } catch (error) {
      throw new TilewrightError(`cannot read ${url}: ${error.message}`, { cause: error });
    }
    return;
  }
  let response;
  try {
    response = await fetch(url);
  } catch (error) {
    throw new TilewrightError(`cannot fetch ${url}: ${error.message}`, { cause: error });
  }
  if (!response.ok) throw new TilewrightError(`cannot fetch ${url}: ${response.status} ${response.statusText}`);
  const reader = response.body.getReader();
  for (let item = await reader.read(); !item.done; item = await reader.read()) yield item.value;
}

/** The error for a file that has not the length that it should have. */
export function wrongLength(url, bytes, found) {
  return new TilewrightError(`${url} is damaged, or of another model: it must have ${bytes} bytes and has ${found}`);
}
