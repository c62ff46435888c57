/* Runs the model each time a debugger lets it: it stops in tw_stop before each run, and the debugger finds inputs,
   outputs, the status and what each step took in memory, by their names. Nothing is asked of the debugger. */
#include "${name}.h"

void start_clock(void);
uint32_t clock_ticks(void);

${globals}
int32_t tw_status;
uint32_t tw_begun[${steps} + 1];
volatile uint32_t tw_stops;

void example_step(int number) { tw_begun[number] = clock_ticks(); }

__attribute__((noinline)) void tw_stop(void) { ++tw_stops; }

int main(void) {
  for (;;) {
    tw_stop();
    start_clock();
    tw_status = ${name}_run(${arguments});
    tw_begun[${steps}] = clock_ticks();
  }
}
