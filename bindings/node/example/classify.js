"use strict";

// Which digit is in a picture of 7 lines of 5 marks? node classify.js LIBRARY IMAGE

const fs = require("node:fs/promises");
const { load } = require("..");

async function main([library, picture]) {
  const marks = (await fs.readFile(picture, "utf8")).replace(/\s/g, "");
  const image = Float32Array.from(marks, (mark) => (mark === "#" ? 1 : 0));
  const model = await load(library);
  const { digit, probabilities } = await model.run({ image: { data: image, shape: [1, 7, 5] } });
  console.log(`a ${digit.data[0]} (${(100 * probabilities.data[Number(digit.data[0])]).toFixed(1)}%)`);
}

main(process.argv.slice(2));
