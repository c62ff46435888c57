/** Arithmetic over sizes: a number, the name of a symbol, or [operator, operands ...]. Dividing by zero gives 0. */

const OPERATORS = {
  "+": (a, b) => a + b,
  "-": (a, b) => a - b,
  "*": (a, b) => a * b,
  "//": (a, b) => (b ? Math.floor(a / b) : 0),
  "%": (a, b) => (b ? a - b * Math.floor(a / b) : 0),
  min: Math.min,
  max: Math.max,
  "<": (a, b) => Number(a < b),
  "<=": (a, b) => Number(a <= b),
  "==": (a, b) => Number(a === b),
  "!=": (a, b) => Number(a !== b),
};

/** The value of an extent; undefined where a symbol in it has none. */
export function evaluate(extent, valueOf) {
  if (typeof extent === "number") return extent;
  if (typeof extent === "string") return valueOf(extent);
  const [operator, ...operands] = extent;
  if (operator === "if") {
    const holds = evaluate(operands[0], valueOf);
    return holds === undefined ? undefined : evaluate(operands[holds ? 1 : 2], valueOf);
  }
  const [a, b] = operands.map((operand) => evaluate(operand, valueOf));
  return a === undefined || b === undefined ? undefined : OPERATORS[operator](a, b);
}
