/** `measure` in Node: the job is the first argument, the results are printed. */
import { measure } from "./measure.mjs";

const results = await measure(JSON.parse(process.argv[2]));
process.stdout.write(`${JSON.stringify(results)}\n`, () => process.exit(0));
