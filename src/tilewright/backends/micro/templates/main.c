/* Runs the model once on the contents of input_<n>.bin, writes output_<n>.bin, and prints what each step took.
   Memory and model are static: there is no heap. Files come and go through semihosting. */
#include "${name}.h"
#include "semihosting.h"

void start_clock(void);
uint32_t clock_ticks(void);

${arrays}
static uint32_t begun[${steps} + 1];

void example_step(int number) { begun[number] = clock_ticks(); }

int main(void) {
${reads}
  start_clock();
  const int32_t code = ${name}_run(${arguments});
  begun[${steps}] = clock_ticks();
  if (code) {
    print("${name}_run returned ");
    print_number((uint32_t)code);
    print("\n");
    return 1;
  }
${writes}
  for (int step = 0; step < ${steps}; ++step) {
    print("step ");
    print_number((uint32_t)step);
    print(" ");
    print_number(INSTRUCTIONS((begun[step + 1] - begun[step]) & CLOCK_MASK));
    print("\n");
  }
  print("total ");
  print_number(INSTRUCTIONS((begun[${steps}] - begun[0]) & CLOCK_MASK));
  print("\n");
  return 0;
}
