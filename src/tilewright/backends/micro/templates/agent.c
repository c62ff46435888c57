/* The runtime that serves a board: it calls functions that a debugger has put into its memory, with arguments that lie
   there too, and says what they returned and took. It stops in tw_stop before each call, and asks for nothing else. */
#include <stdint.h>

void start_clock(void);
uint32_t clock_ticks(void);
uint32_t clock_between(uint32_t begin, uint32_t end);

int32_t (*volatile tw_function)(void* const*);
void* tw_arguments[${most_arguments}];
volatile int32_t tw_status;
volatile uint32_t tw_taken;
volatile uint32_t tw_stops;
_Alignas(16) uint8_t tw_memory[${room}];

__attribute__((noinline)) void tw_stop(void) { ++tw_stops; }

int main(void) {
  tw_arguments[0] = tw_memory; /* linkers drop what nobody names */
  for (;;) {
    tw_stop();
    start_clock();
    const uint32_t begin = clock_ticks();
    tw_status = tw_function(tw_arguments);
    tw_taken = clock_between(begin, clock_ticks());
  }
}
