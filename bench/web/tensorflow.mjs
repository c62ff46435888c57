/** Models of the benchmark as TensorFlow.js's own layers, with random weights: for its speed, not for its numbers. */

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

const MODELS = { mobilenet_v2: mobilenetV2, resnet18 };

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
  if (!(job.model.name in MODELS)) throw new Error("it is not built with layers of TensorFlow.js here");
  const { tf, wasm } = await loadLibrary(job);
  wasm?.setWasmPaths(job.places.tensorflow_files);
  wasm?.setThreadsCount(job.threads);
  await tf.setBackend(job.device);
  if (tf.getBackend() !== job.device) throw new Error(`it took ${tf.getBackend()}`);
  const model = MODELS[job.model.name](tf);
  const [{ data }] = Object.values(inputs);
  const image = tf.tensor(data, [1, 224, 224, 3]);
  return {
    run: async () => {
      const result = model.predict(image);
      const found = await result.data();
      result.dispose();
      return [found];
    },
    about: `${tf.version.tfjs} ${tf.getBackend()}, ${wasm?.getThreadsCount() ?? 0} threads, random weights`,
    close: () => image.dispose(),
  };
}
