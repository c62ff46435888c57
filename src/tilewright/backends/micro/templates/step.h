/* What the model's function calls before each step. */
void example_step(int number);
#define ${macro}_STEP(number) example_step(number)
