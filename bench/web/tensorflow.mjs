/** Models of the benchmark in TensorFlow.js's own layers and operators, with random weights: for its speed, not for its numbers. */

const conv = (tf, filters, size, stride, padding = "same", useBias = false) =>
  tf.layers.conv2d({ filters, kernelSize: size, strides: stride, padding, useBias });

/** A convolution with the affine part of batch normalisation folded into it, as converters leave it. */
function block(tf, value, filters, size, stride, activation) {
  const result = conv(tf, filters, size, stride, "same", true).apply(value);
  return activation ? activation.apply(result) : result;
}

function mobilenetV2(tf) {
  const relu6 = () => tf.layers.reLU({ maxValue: 6 });
  const input = tf.input({ shape: [224, 224, 3] });
  let value = block(tf, input, 32, 3, 2, relu6());
  let channels = 32;
  for (const [expansion, filters, count, first] of [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 3, 2], [6, 64, 4, 2], [6, 96, 3, 1], [6, 160, 3, 2], [6, 320, 1, 1]]) {
    for (let n = 0; n < count; n += 1) {
      const stride = n === 0 ? first : 1;
      let inner = expansion === 1 ? value : block(tf, value, channels * expansion, 1, 1, relu6());
      inner = relu6().apply(tf.layers.depthwiseConv2d({ kernelSize: 3, strides: stride, padding: "same" }).apply(inner));
      inner = block(tf, inner, filters, 1, 1);
      value = stride === 1 && channels === filters ? tf.layers.add().apply([value, inner]) : inner;
      channels = filters;
    }
  }
  value = tf.layers.globalAveragePooling2d({}).apply(block(tf, value, 1280, 1, 1, relu6()));
  return tf.model({ inputs: input, outputs: tf.layers.dense({ units: 1000 }).apply(value) });
}

function resnet18(tf) {
  const relu = () => tf.layers.reLU();
  const input = tf.input({ shape: [224, 224, 3] });
  let value = tf.layers.maxPooling2d({ poolSize: 3, strides: 2, padding: "same" }).apply(block(tf, input, 64, 7, 2, relu()));
  for (const [filters, first] of [[64, 1], [128, 2], [256, 2], [512, 2]]) {
    for (let n = 0; n < 2; n += 1) {
      const stride = n === 0 ? first : 1;
      const inner = block(tf, block(tf, value, filters, 3, stride, relu()), filters, 3, 1);
      const same = stride === 1 && value.shape[3] === filters ? value : block(tf, value, filters, 1, stride);
      value = relu().apply(tf.layers.add().apply([inner, same]));
    }
  }
  value = tf.layers.globalAveragePooling2d({}).apply(value);
  return tf.model({ inputs: input, outputs: tf.layers.dense({ units: 1000 }).apply(value) });
}

/** What runs a network of layers on the image of a job. */
const ofImage = (network) => (tf, inputs) => {
  const model = network(tf);
  const image = tf.tensor(Object.values(inputs)[0].data, [1, 224, 224, 3]);
  return () => model.predict(image);
};

/** BERT-small (bench/zoo/bert.py) in operators: products with their bias and activation fused where TensorFlow.js has that. */
function bertSmall(tf, inputs) {
  const [layers, width, heads, inner, tokens, vocabulary, positions] = [6, 384, 12, 1536, 128, 30522, 512];
  const normal = (...shape) => tf.randomNormal(shape, 0, 0.05);
  const [ids, mask, kinds] = ["input_ids", "attention_mask", "token_type_ids"].map((name) =>
    tf.tensor1d(Int32Array.from(inputs[name].data, Number), "int32"));
  const dense = (from, to) => {
    const [weight, bias] = [normal(from, to), normal(to)];
    return (a) => tf.fused.matMul({ a, b: weight, bias });
  };
  const normalized = () => {
    const [scale, shift] = [normal(width), normal(width)];
    return (value) => {
      const { mean, variance } = tf.moments(value, -1, true);
      return value.sub(mean).mul(variance.add(1e-12).rsqrt()).mul(scale).add(shift);
    };
  };
  const gelu = (value) => value.mul(0.5).mul(value.mul(Math.SQRT1_2).erf().add(1));
  const split = (value) => value.reshape([tokens, heads, width / heads]).transpose([1, 0, 2]);
  const [words, segments, places] = [normal(vocabulary, width), normal(2, width), normal(positions, width)];
  const first = normalized();
  const blocks = Array.from({ length: layers }, () => ({
    query: dense(width, width), key: dense(width, width), content: dense(width, width), projection: dense(width, width),
    attended: normalized(), wide: dense(width, inner), narrow: dense(inner, width), ended: normalized(),
  }));
  const pooler = dense(width, width);
  const layer = (value, added, { query, key, content, projection, attended, wide, narrow, ended }) => {
    const scores = tf.matMul(split(query(value)), split(key(value)), false, true).div(Math.sqrt(width / heads)).add(added);
    const context = tf.matMul(scores.softmax(), split(content(value))).transpose([1, 0, 2]).reshape([tokens, width]);
    const middle = attended(projection(context).add(value));
    return ended(narrow(gelu(wide(middle))).add(middle));
  };
  return () => tf.tidy(() => {
    const added = tf.sub(1, mask.cast("float32")).mul(-3.4028234663852886e38);
    const embedded = words.gather(ids).add(segments.gather(kinds)).add(places.slice([0, 0], [tokens, width]));
    const value = blocks.reduce((before, block) => layer(before, added, block), first(embedded));
    return [value, pooler(value.slice([0, 0], [1, width])).tanh()];
  });
}

const MODELS = { mobilenet_v2: ofImage(mobilenetV2), resnet18: ofImage(resnet18), bert_small: bertSmall };

/** A script of a page: the builds of TensorFlow.js for browsers are no modules, and name themselves `tf`. */
function loadScript(url) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = url;
    script.onload = resolve;
    script.onerror = () => reject(new Error(`cannot load ${url}`));
    document.head.append(script);
  });
}

/** TensorFlow.js and its back end for a device: modules in Node, scripts in a page. */
async function loadLibrary({ device, places }) {
  if (typeof document === "undefined") {
    const tf = await import(places.tensorflow);
    return { tf, wasm: await import(places.tensorflow_wasm) };
  }
  await loadScript(places.tensorflow);
  await loadScript(device === "wasm" ? places.tensorflow_wasm : places.tensorflow_webgpu);
  return { tf: globalThis.tf, wasm: globalThis.tf.wasm };
}

export async function makeRunner(job, inputs) {
  if (!(job.model.name in MODELS)) throw new Error("it is not built in TensorFlow.js here");
  const { tf, wasm } = await loadLibrary(job);
  wasm?.setWasmPaths(job.places.tensorflow_files);
  wasm?.setThreadsCount(job.threads);
  await tf.setBackend(job.device);
  if (tf.getBackend() !== job.device) throw new Error(`it took ${tf.getBackend()}`);
  const predict = MODELS[job.model.name](tf, inputs);
  return {
    run: async () => {
      const results = [predict()].flat();
      const found = await Promise.all(results.map((result) => result.data()));
      tf.dispose(results);
      return found;
    },
    about: `${tf.version.tfjs} ${tf.getBackend()}, ${wasm?.getThreadsCount() ?? 0} threads, random weights`,
    close: () => tf.disposeVariables(),
  };
}
