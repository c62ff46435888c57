/** Everything that goes wrong with a model, its files or its inputs. */
export class TilewrightError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = "TilewrightError";
  }

  /** Every package has a copy of this file: errors of all of them are the same kind. */
  static [Symbol.hasInstance](value) {
    return value instanceof Error && value.name === "TilewrightError";
  }
}
