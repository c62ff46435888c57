/* Runs the model once on the contents of input_<n>.bin, writes output_<n>.bin, and prints what each step took.
   Memory and model are static: there is no heap. Files come and go through semihosting. */
#include "${name}.h"
#include "semihosting.h"

void start_clock(void);
uint32_t clock_ticks(void);
uint32_t clock_between(uint32_t begin, uint32_t end);

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
    print_number(clock_between(begun[step], begun[step + 1]));
    print("\n");
  }
  print("total ");
  print_number(clock_between(begun[0], begun[${steps}]));
  print("\n");
  return 0;
}
