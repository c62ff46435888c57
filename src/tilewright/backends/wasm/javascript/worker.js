/** The worker of a model: see serve() in tilewright.js. */
import { serve } from "./tilewright.js";

serve();
