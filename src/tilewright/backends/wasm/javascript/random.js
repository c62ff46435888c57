/** The host function that gives keys of random numbers where a model has no seed: no two calls give the same. */

/** Two words of 32 bits, from the source of the system. */
export function drawKey() {
  return [{ dtype: "uint32", shape: [2], data: crypto.getRandomValues(new Uint32Array(2)) }];
}
