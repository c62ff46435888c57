/**
 * Functions of C's mathematics that compiled code may call in double precision, where WebAssembly has no instruction.
 * Those of float32 are in the compiled code itself, as are vectors of them.
 */

const INVERSE_ROOT_OF_PI = 0.5641895835477563;
const LANCZOS = [
  0.9999999999998099, 676.5203681218851, -1259.1392167224028, 771.3234287776531, -176.6150291621406,
  12.507343278686905, -0.13857109526572012, 9.984369578019572e-6, 1.5056327351493116e-7,
];

/** erf by a series without cancellation. */
function erfSeries(x) {
  let term = 2 * INVERSE_ROOT_OF_PI * Math.exp(-x * x) * x;
  let sum = term;
  for (let n = 1; Math.abs(term) > Math.abs(sum) * 1e-17; n += 1) {
    term *= (2 * x * x) / (2 * n + 1);
    sum += term;
  }
  return sum;
}

/** erfc for x >= 2, by its continued fraction from the end. */
function erfcFraction(x) {
  let fraction = x;
  for (let n = 120; n >= 1; n -= 1) fraction = x + n / 2 / fraction;
  return (Math.exp(-x * x) * INVERSE_ROOT_OF_PI) / fraction;
}

function erf(x) {
  if (Number.isNaN(x)) return x;
  if (Math.abs(x) < 2) return erfSeries(x);
  return Math.sign(x) * (Math.abs(x) > 6 ? 1 : 1 - erfcFraction(Math.abs(x)));
}

function erfc(x) {
  if (Number.isNaN(x)) return x;
  if (x < 2) return 1 - erf(x);
  return x > 27.3 ? 0 : erfcFraction(x);
}

function lanczos(x) {
  return LANCZOS.reduce((sum, factor, n) => (n === 0 ? factor : sum + factor / (x + n)), 0);
}

function lgamma(x) {
  if (x < 0.5) {
    const sine = Math.abs(Math.sin(Math.PI * (x - Math.round(x))));
    return sine === 0 ? Infinity : Math.log(Math.PI / sine) - lgamma(1 - x);
  }
  if (x === 1 || x === 2) return 0;
  if (x === Infinity) return x;
  const t = x + 6.5;
  return 0.9189385332046728 + (x - 0.5) * Math.log(t) - t + Math.log(lanczos(x - 1));
}

function tgamma(x) {
  if (x < 0.5) return Math.PI / (Math.sin(Math.PI * x) * tgamma(1 - x));
  if (x > 171.7) return Infinity;
  const t = x + 6.5;
  const half = t ** ((x - 0.5) / 2);
  return 2.5066282746310002 * half * Math.exp(-t) * half * lanczos(x - 1);
}

const double = {
  acos: Math.acos, acosh: Math.acosh, asin: Math.asin, asinh: Math.asinh, atan: Math.atan, atan2: Math.atan2,
  atanh: Math.atanh, cbrt: Math.cbrt, cos: Math.cos, cosh: Math.cosh, erf, erfc, exp: Math.exp,
  exp10: (x) => 10 ** x, exp2: (x) => 2 ** x, expm1: Math.expm1,
  fmax: (x, y) => (Number.isNaN(x) ? y : Number.isNaN(y) ? x : Math.max(x, y)),
  fmin: (x, y) => (Number.isNaN(x) ? y : Number.isNaN(y) ? x : Math.min(x, y)),
  fmod: (x, y) => x % y, hypot: Math.hypot, lgamma, log: Math.log, log10: Math.log10, log1p: Math.log1p,
  log2: Math.log2, pow: (x, y) => (x === 1 || (Math.abs(x) === 1 && Math.abs(y) === Infinity) ? 1 : x ** y),
  sin: Math.sin, sinh: Math.sinh, tan: Math.tan, tanh: Math.tanh, tgamma,
};

/** The functions by their names in C: those of float32 end in f, and their results are rounded by WebAssembly. */
export const mathematics = Object.fromEntries(
  Object.entries(double).flatMap(([name, compute]) => [[name, compute], [`${name}f`, compute]]),
);
